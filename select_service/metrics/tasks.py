"""Metrics of the periodic tasks, by task name."""

from collections.abc import Sequence
from dataclasses import dataclass

from select_service.metrics.series import FamilyRow


@dataclass(slots=True)
class TaskCounts:
    """Counters of a task since the start; a step is its work in an event loop iteration."""

    steps: int = 0
    overruns: int = 0
    """Number of steps over the target duration."""
    seconds: float = 0.0
    longest_s: float = 0.0

    def count_step(self, seconds: float, budget_s: float) -> None:
        """Count a step."""
        self.steps += 1
        self.overruns += seconds > budget_s
        self.seconds += seconds
        self.longest_s = max(self.longest_s, seconds)


TASKS: Sequence[FamilyRow[TaskCounts]] = (
    FamilyRow(
        "task_steps_total",
        "Steps of a periodic task; a step is its work in one turn of the event loop.",
        lambda t: t.steps,
    ),
    FamilyRow(
        "task_seconds_total",
        "Seconds spent in the steps of a task; the rate is its share of the event loop.",
        lambda t: t.seconds,
    ),
    FamilyRow(
        "task_overruns_total",
        "Steps that took longer than 5 ms and delayed requests.",
        lambda t: t.overruns,
    ),
    FamilyRow(
        "task_longest_step_seconds",
        "Longest step of a task since the start, in seconds.",
        lambda t: t.longest_s,
    ),
)
