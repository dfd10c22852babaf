"""The service under a stopwatch, for soak.py: `python scripts/bench/soak_service.py [its flags]`.

The event loop is asyncio's own instead of uvloop, so that every step of it can be timed, and so are
the mutex of every index where Python holds it and every run of the garbage collector, which is part
of the step in which it happens.  After SIGUSR1 the longest since the last time are logged.

CPU is that of the thread: what other work on the machine takes does not count.
"""

import asyncio
import gc
import logging
import signal
import sys
import time
from asyncio import events
from collections.abc import Callable, Coroutine
from types import FrameType, TracebackType
from typing import Any

import uvloop

from indexer.index import prefix_index
from indexer.mutex import Mutex
from select_service.__main__ import main

log = logging.getLogger("select_service.soak")


class Longest:
    """The longest of many stretches of work, by CPU and by wall time."""

    def __init__(self) -> None:
        self.count, self.cpu_s, self.wall_s, self.what = 0, 0.0, 0.0, ""

    def add(self, cpu_s: float, wall_s: float, what: Callable[[], str]) -> None:
        self.count += 1
        self.wall_s = max(self.wall_s, wall_s)
        if cpu_s > self.cpu_s:
            self.cpu_s, self.what = cpu_s, what()

    def row(self) -> dict[str, Any]:
        """In milliseconds."""
        cpu_ms, wall_ms = 1e3 * self.cpu_s, 1e3 * self.wall_s
        return {"count": self.count, "cpu_ms": cpu_ms, "wall_ms": wall_ms, "what": self.what}


steps, holds, collections = Longest(), Longest(), Longest()


class TimedMutex(Mutex):
    """One that notes for how long Python holds it, and who.

    Kernels that take it themselves do not pass here: each of their calls is one bounded step.
    """

    def __enter__(self) -> None:
        super().__enter__()
        self._cpu, self._wall = time.thread_time(), time.perf_counter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        cpu, wall = time.thread_time() - self._cpu, time.perf_counter() - self._wall
        holds.add(cpu, wall, lambda: sys._getframe(3).f_code.co_qualname)
        super().__exit__(kind, error, at)


def time_every_lock() -> None:
    prefix_index.Mutex = TimedMutex  # type: ignore[attr-defined]


def time_every_collection() -> None:
    begun = [0.0, 0.0]

    def note(phase: str, info: dict[str, int]) -> None:
        now = [time.thread_time(), time.perf_counter()]
        if phase == "start":
            begun[:] = now
            return
        cpu, wall = (at - began for at, began in zip(now, begun, strict=True))
        collections.add(cpu, wall, lambda: f"generation {info['generation']}")

    gc.callbacks.append(note)


def time_every_step() -> None:
    run = events.Handle._run

    def timed(handle: events.Handle) -> None:
        cpu, wall = time.thread_time(), time.perf_counter()
        run(handle)
        cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
        steps.add(cpu, wall, lambda: _name(handle))

    events.Handle._run = timed  # type: ignore[assignment, method-assign]


def _name(handle: events.Handle) -> str:
    """Of the coroutine of a task's step, else of the callback."""
    callback = handle._callback  # type: ignore[attr-defined]
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        return str(task.get_coro().__qualname__)  # type: ignore[union-attr]
    return str(getattr(callback, "__qualname__", type(callback).__name__))


def run_on_asyncio(work: Coroutine[Any, Any, Any], **_options: Any) -> Any:
    return asyncio.run(work)


def tell(_number: int, _frame: FrameType | None) -> None:
    kinds = {"step": steps, "hold": holds, "collection": collections}
    log.info("longest", extra={"fields": {name: each.row() for name, each in kinds.items()}})
    for each in kinds.values():
        each.__init__()  # type: ignore[misc]


if __name__ == "__main__":
    uvloop.run = run_on_asyncio  # type: ignore[assignment]
    uvloop.new_event_loop = asyncio.new_event_loop  # type: ignore[assignment]
    time_every_lock()
    time_every_collection()
    time_every_step()
    signal.signal(signal.SIGUSR1, tell)
    sys.exit(main())
