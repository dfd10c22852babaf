"""Monotonic and wall clock, and the conversion of times in a dump to the monotonic clock.

Clocks of different machines may differ by any amount, so ages in a peer's dump are relative to its
arrival; ages in a file of this machine are converted by the wall clock.
"""

import time

from indexer.dumps.dump_time import CLOCK_TOLERANCE_S, DumpTime


def read_clocks() -> DumpTime:
    """Return the current time on both clocks."""
    return DumpTime(time.monotonic(), time.time())


def peer_event_time(_taken_at: float, age: float) -> float | None:
    """Return the monotonic time of an event that was `age` seconds old in a dump taken just now."""
    return time.monotonic() - age


def local_event_time(taken_at: float, age: float) -> float | None:
    """Return the monotonic time of an event in a dump taken on this machine.

    taken_at: time of the dump, seconds since 1970
    age: age of the event at that time, seconds
    None means that `taken_at` is in the future, because the wall clock was set back.
    """
    here = read_clocks()
    passed = here.unix - taken_at
    # A small negative difference is clock adjustment (NTP), a large one a clock set back.
    return None if passed < -CLOCK_TOLERANCE_S else here.monotonic - passed - age
