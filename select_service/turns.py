"""Long answers, made in turns of the event loop so that nobody waits for all of one."""

import asyncio
from collections.abc import Generator, Iterable, Iterator
from time import perf_counter
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

TURN_S = 0.002
"""How long one turn may take before others are served; a single row may take longer."""

_encode = msgspec.json.Encoder().encode


async def in_turns(rows: Iterable[T | None]) -> list[T]:
    """All rows.  They are asked for one by one, so one that is made then shows that moment.

    None is no row: a part of one has been made, and others may be served before the next part.
    """
    found = []
    until = perf_counter() + TURN_S
    for row in rows:
        if row is not None:
            found.append(row)
        if perf_counter() > until:
            await asyncio.sleep(0)
            until = perf_counter() + TURN_S
    return found


async def encoded_in_turns(rows: Iterable[Any]) -> list[msgspec.Raw]:
    """Every row as JSON, made as `in_turns` makes it."""
    return await in_turns(None if row is None else msgspec.Raw(_encode(row)) for row in rows)


async def result_in_turns(steps: Generator[None, None, T]) -> T:
    """What steps come to, of which each may be the last of a turn."""
    result: list[T] = []

    def outcome() -> Iterator[None]:
        result.append((yield from steps))

    await in_turns(outcome())
    return result[0]
