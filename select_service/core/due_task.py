"""Work that is due again and again; the core says what, whoever has a clock does it."""

from collections.abc import Callable
from typing import NamedTuple

SECOND_S = 1.0
"""How often most of it is due."""


class DueTask(NamedTuple):
    """step: takes the time, in seconds of the monotonic clock; returns whether more is to do."""

    name: str
    interval_s: float
    step: Callable[[float], bool]
