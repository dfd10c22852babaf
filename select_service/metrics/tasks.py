"""What the due tasks of the event loop cost: series by the name of the task."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric

from select_service.metrics.series import COUNTER, GAUGE, Family, series_of


@dataclass(slots=True)
class TaskCounts:
    """One task since the start; a step is what it does in one turn of the event loop."""

    steps: int = 0
    overruns: int = 0
    """Steps that took longer than a turn should."""
    seconds: float = 0.0
    longest_s: float = 0.0

    def add(self, seconds: float, budget_s: float) -> None:
        self.steps += 1
        self.overruns += seconds > budget_s
        self.seconds += seconds
        self.longest_s = max(self.longest_s, seconds)


TASKS: Sequence[Family[TaskCounts]] = (
    Family(COUNTER, "task_steps", "Steps of tasks that are due again and again", lambda t: t.steps),
    Family(COUNTER, "task_seconds", "Time that the steps took", lambda t: t.seconds),
    Family(COUNTER, "task_overruns", "Steps that took over 5 ms", lambda t: t.overruns),
    Family(GAUGE, "task_longest_step_seconds", "The longest step", lambda t: t.longest_s),
)


def of_tasks(tasks: Mapping[str, TaskCounts]) -> Iterator[Metric]:
    """Families of all tasks."""
    return series_of(TASKS, ("task",), {(name,): counts for name, counts in tasks.items()})
