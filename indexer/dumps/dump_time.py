"""Time of a dump, on both clocks of a machine."""

from typing import NamedTuple

CLOCK_TOLERANCE_S = 1.0
"""Times of two sources that are closer than this, in seconds, count as equal."""


class DumpTime(NamedTuple):
    """Seconds on the monotonic clock, and on the wall clock."""

    monotonic: float
    unix: float
