"""Scheduler of periodic tasks on the event loop, one bounded step per loop iteration.

A task with more work continues in the next iteration of the loop, not at its next interval; other
tasks and requests run in between.  The service has no other timers.
"""

import asyncio
from collections.abc import Sequence
from time import monotonic, perf_counter

from select_service.core.periodic_task import PeriodicTask
from select_service.metrics.tasks import TaskCounts

STEP_S = 0.005
"""Target duration of a step in seconds; longer steps are counted."""


class PeriodicTasks:
    """Scheduler of periodic tasks.  Belongs to the thread of the event loop."""

    def __init__(self, tasks: Sequence[PeriodicTask], now: float) -> None:
        """Schedule every task one interval after `now` (monotonic clock, seconds)."""
        self.counts = {task.name: TaskCounts() for task in tasks}
        self._tasks = {task.name: task for task in tasks}
        self._due_at = {task.name: now + task.interval_s for task in tasks}

    async def run_tasks(self) -> None:
        """Run tasks until cancelled, or until a task raises an exception."""
        while True:
            wait_s = self.run_next_step(monotonic())
            await asyncio.sleep(max(0.0, wait_s))

    def run_next_step(self, now: float) -> float:
        """Run one step of the most overdue task, if any.

        Return the seconds until the next task is due.
        """
        # A scan, not a heap: there are about a dozen tasks, and `min` takes the first of equal
        # times.
        name = min(self._due_at, key=self._due_at.__getitem__)
        if self._due_at[name] <= now:
            task, begun = self._tasks[name], perf_counter()
            more = task.step(now)
            self.counts[name].count_step(perf_counter() - begun, STEP_S)
            del self._due_at[name]  # re-inserted behind all tasks that are due now
            self._due_at[name] = now if more else now + task.interval_s
        return min(self._due_at.values()) - now
