"""A thread that has a lock while another one comes to it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from indexer.jit.mutex import Mutex

_DEADLINE_S = 60.0
_TURNS = 20_000
"""Of a loop in bytecode, while the other thread comes to the lock."""


@contextmanager
def held_by_another(lock: Mutex) -> Iterator[list[str]]:
    """What the block does that needs the lock has to wait: another thread has it when it begins.

    Yields who has done their part so far: "held", when the other one gives it back.
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
