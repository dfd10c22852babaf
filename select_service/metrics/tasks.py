"""What the due tasks of the event loop cost: series by the name of the task."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric

from select_service.metrics.series import counters, gauges


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


def of_tasks(tasks: Mapping[str, TaskCounts]) -> Iterator[Metric]:
    """Families of all tasks."""

    def values(name: str) -> dict[tuple[str, ...], float]:
        return {(task,): getattr(counts, name) for task, counts in tasks.items()}

    label = ("task",)
    yield counters(
        "task_steps", "Steps of tasks that are due again and again", label, values("steps")
    )
    yield counters("task_seconds", "Time that the steps took", label, values("seconds"))
    yield counters("task_overruns", "Steps that took over 5 ms", label, values("overruns"))
    yield gauges("task_longest_step_seconds", "The longest step", label, values("longest_s"))
