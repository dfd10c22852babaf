"""Tasks of the event loop that are due again and again, a bounded step per turn.

A task that says there is more goes on in the next turn of the loop, not at its next time, and the
others and the requests have their turns in between.  Nothing else has a timer.
"""

import asyncio
from collections.abc import Sequence
from time import monotonic, perf_counter

from select_service.core.due_task import DueTask
from select_service.metrics.tasks import TaskCounts

STEP_S = 0.005
"""What a step should take at most; longer ones are counted."""


class DueTasks:
    """Belongs to the thread of the event loop."""

    def __init__(self, tasks: Sequence[DueTask], now: float) -> None:
        """now: the tasks are due one interval later"""
        self.counts = {task.name: TaskCounts() for task in tasks}
        self._tasks = {task.name: task for task in tasks}
        self._due_at = {task.name: now + task.interval_s for task in tasks}

    async def run(self) -> None:
        """Ends only by cancellation, or with what a task raised."""
        while True:
            wait_s = self.turn(monotonic())
            await asyncio.sleep(max(0.0, wait_s))

    def turn(self, now: float) -> float:
        """One step of the task that is due longest, if any is.  Returns seconds until the next."""
        name = min(self._due_at, key=self._due_at.__getitem__)
        if self._due_at[name] <= now:
            task, begun = self._tasks[name], perf_counter()
            more = task.step(now)
            self.counts[name].add(perf_counter() - begun, STEP_S)
            del self._due_at[name]  # and again behind all others that are due
            self._due_at[name] = now if more else now + task.interval_s
        return min(self._due_at.values()) - now
