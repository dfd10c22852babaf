"""When a dump was taken, on both clocks of a machine."""

from typing import NamedTuple

CLOCK_DOUBT_S = 1.0
"""Times of two sources that are closer than this count as equal."""


class Moment(NamedTuple):
    """Seconds on the clock that does not jump, and on the one on the wall."""

    monotonic: float
    unix: float
