"""A thread that holds a lock while another thread requests the lock."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from indexer.jit.mutex import Mutex

_DEADLINE_S = 60.0
_TURNS = 20_000
"""Turns of a loop in bytecode, while the other thread requests the lock."""


@contextmanager
def hold_lock_elsewhere(lock: Mutex) -> Iterator[list[str]]:
    """Make the block wait for a lock that another thread holds at the start.

    Yields the order of events; "held" marks the moment when the other thread releases the lock.
    """
    order: list[str] = []
    is_held, asks = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            assert asks.wait(_DEADLINE_S)
            for _ in range(_TURNS):
                pass
            order.append("held")

    holder = threading.Thread(target=hold)
    holder.start()
    assert is_held.wait(_DEADLINE_S)
    asks.set()
    yield order
    holder.join(_DEADLINE_S)
