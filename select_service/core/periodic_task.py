"""Periodic tasks: defined by the core, run by the owner of a clock."""

from collections.abc import Callable
from typing import NamedTuple

SECOND_S = 1.0
"""Usual interval of periodic tasks, seconds."""


class PeriodicTask(NamedTuple):
    """Periodic task.

    step: takes the time of the monotonic clock in seconds; returns whether another step is due
    """

    name: str
    interval_s: float
    step: Callable[[float], bool]
