"""Waiting in tests: for a condition, never for a time.

The limit only ends a test that would wait for ever. No test depends on speed: the limit is wide
enough for a machine that is busy with other work.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 120.0
POLL_S = 0.002
CPU_S_MAX = 20.0
"""Seconds of CPU after which work is not slow but of the wrong complexity."""

T = TypeVar("T")


def eventually(predicate: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """Poll `predicate` and return the first true value."""
    until = time.monotonic() + patience_s
    while not (value := predicate()):
        assert time.monotonic() < until, f"not within {patience_s} s"
        time.sleep(POLL_S)
    return value


async def eventually_on_loop(predicate: Callable[[], T]) -> T:
    """Poll `predicate` and return the first true value while the event loop goes on."""
    until = time.monotonic() + PATIENCE_S
    while not (value := predicate()):
        assert time.monotonic() < until, f"not within {PATIENCE_S} s"
        await asyncio.sleep(POLL_S)
    return value
