"""Background tasks and timers of a client, which end together."""

import asyncio
from collections.abc import Callable, Coroutine

TASKS_MAX = 20_000
"""Limit of pending tasks. Beyond the limit a lease waits for its next call, or the reservation
expires at the selector.
"""
CONCURRENT_CALLS_MAX = 32
"""Background calls that run at the same time."""


class BackgroundTasks:
    """Tasks and timers of an event loop."""

    def __init__(self) -> None:
        self.permits = asyncio.Semaphore(CONCURRENT_CALLS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._endless_tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()

    @property
    def is_full(self) -> bool:
        return len(self._tasks) >= TASKS_MAX

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Start a task that ends by itself; `close` waits for it."""
        _start_task(self._tasks, work)

    def spawn_forever(self, work: Coroutine[None, None, None]) -> None:
        """Start a task that runs until `close` cancels it."""
        _start_task(self._endless_tasks, work)

    def call_later(self, seconds: float, act: Callable[[], None]) -> asyncio.TimerHandle:
        """Return a timer that calls `act` after `seconds`, unless cancelled before."""

        def fire() -> None:
            self._timers.discard(timer)
            act()

        timer = asyncio.get_running_loop().call_later(seconds, fire)
        self._timers.add(timer)
        return timer

    def cancel_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
            self._timers.discard(timer)

    async def close(self, seconds: float) -> None:
        """Wait at most `seconds` for the spawned tasks, then cancel all tasks."""
        for timer in self._timers:
            timer.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        # A copy, because done callbacks change both sets while this waits.
        left = [*self._tasks, *self._endless_tasks]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


def _start_task(tasks: set[asyncio.Task[None]], work: Coroutine[None, None, None]) -> None:
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    # The event loop keeps only weak references: without the set a task could be collected.
    task.add_done_callback(tasks.discard)
