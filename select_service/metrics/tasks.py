"""Metrics of the periodic tasks, by task name."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric

from select_service.metrics.series import COUNTER, GAUGE, FamilyRow, make_series


@dataclass(slots=True)
class TaskCounts:
    """Counters of one task since the start; a step is its work in one event loop iteration."""

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
    FamilyRow(COUNTER, "task_steps", "Steps of periodic tasks", lambda t: t.steps),
    FamilyRow(COUNTER, "task_seconds", "Total duration of the steps", lambda t: t.seconds),
    FamilyRow(COUNTER, "task_overruns", "Steps longer than 5 ms", lambda t: t.overruns),
    FamilyRow(
        GAUGE, "task_longest_step_seconds", "Duration of the longest step", lambda t: t.longest_s
    ),
)


def task_metrics(tasks: Mapping[str, TaskCounts]) -> Iterator[Metric]:
    """Yield the series of all tasks."""
    return make_series(TASKS, ("task",), {(name,): counts for name, counts in tasks.items()})
