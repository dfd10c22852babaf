"""The two clocks, and what the times in a dump mean on the one that does not jump.

Clocks of different machines may differ by anything, so what a peer tells is taken relative to the
moment it arrives; what this machine wrote into a file, by the wall clock.
"""

import time

from indexer.dumps.moment import CLOCK_DOUBT_S, Moment


def now() -> Moment:
    return Moment(time.monotonic(), time.time())


def heard_by_peer(_taken_at: float, age: float) -> float | None:
    """Monotonic seconds of what was `age` seconds old when the peer took its dump, just now."""
    return time.monotonic() - age


def heard_by_this_machine(taken_at: float, age: float) -> float | None:
    """The same of a dump that was taken here at `taken_at`, unix seconds.

    None when that is still to come: then the wall clock was set back.
    """
    here = now()
    passed = here.unix - taken_at
    return None if passed < -CLOCK_DOUBT_S else here.monotonic - passed - age
