"""What the state machine did and somebody else has to carry out or to show.

Verbs note effects in order; nobody is called while a verb runs.
"""

from typing import NamedTuple

from select_service.core.health.kinds import Kind, State
from select_service.core.identity import Rank


class StateChanged(NamedTuple):
    """A rank went from one state to another."""

    rank: Rank
    was: State
    state: State
    cause: Kind | None


class WeightChanged(NamedTuple):
    """Its column in the table of ranks is to be this from now on; 0: no candidate."""

    rank: Rank
    weight: float


class MovesAsked(NamedTuple):
    """What is booked on the rank is to be moved."""

    rank: Rank
    reservations: int


class Drained(NamedTuple):
    """Nothing is booked any more on a rank that drains."""

    rank: Rank


class ReleaseAsked(NamedTuple):
    """What is still booked on the rank is to be released."""

    rank: Rank
    reservations: int


class CheckAsked(NamedTuple):
    """The rank is to be checked soon, out of its turn."""

    rank: Rank


class ProbeAsked(NamedTuple):
    """The breaker lets one check through."""

    rank: Rank


class Withheld(NamedTuple):
    """The rank would be taken out if not too many were already."""

    rank: Rank
    cause: Kind


class Promoted(NamedTuple):
    """A spare serves from now on, and the failed rank is the spare."""

    spare: Rank
    failed: Rank


class Reset(NamedTuple):
    """What was known of the rank is forgotten: it is another process now."""

    rank: Rank


class ChecksRefused(NamedTuple):
    """The engine of a worker refuses the request of a check, so its health is not known.

    rank: of the worker, which was asked;  model_name: under which the engine was asked
    """

    rank: Rank
    endpoint: str | None
    model_name: str
    why: str


class ChecksAccepted(NamedTuple):
    """No rank of the worker refuses checks any more.  rank: the last one that did"""

    rank: Rank


Effect = (
    StateChanged
    | WeightChanged
    | MovesAsked
    | Drained
    | ReleaseAsked
    | CheckAsked
    | ProbeAsked
    | Withheld
    | Promoted
    | Reset
    | ChecksRefused
    | ChecksAccepted
)
