"""Work of a client that nobody waits for: tasks and timers, ended together."""

import asyncio
from collections.abc import Callable, Coroutine

TASKS_MAX = 20_000
"""What is to be told beyond that waits for the next call of its lease, or for the selector's own
time to live."""
AT_ONCE = 32
"""Calls in the background that are under way together."""


class Background:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self.permits = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._standing: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()

    @property
    def is_full(self) -> bool:
        return len(self._tasks) >= TASKS_MAX

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Something that ends, and is waited for when the client is closed."""
        _keep(self._tasks, work)

    def stand(self, work: Coroutine[None, None, None]) -> None:
        """Something that goes on until the client is closed."""
        _keep(self._standing, work)

    def later(self, seconds: float, act: Callable[[], None]) -> asyncio.TimerHandle:
        """Call `act` in so many seconds, unless the timer is cancelled before."""

        def fire() -> None:
            self._timers.discard(timer)
            act()

        timer = asyncio.get_running_loop().call_later(seconds, fire)
        self._timers.add(timer)
        return timer

    def cancel(self, timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
            self._timers.discard(timer)

    async def close(self, seconds: float) -> None:
        """Wait so long for what ends, and cancel the rest."""
        for timer in self._timers:
            timer.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        left = [*self._tasks, *self._standing]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


def _keep(tasks: set[asyncio.Task[None]], work: Coroutine[None, None, None]) -> None:
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
