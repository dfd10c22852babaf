"""Effects: actions and notifications that the health state machine requests from other parts.

Methods append effects in order; no listener is called while a method runs.
"""

from typing import NamedTuple

from select_service.core.health.health_kinds import CheckKind, RankHealthState
from select_service.core.identity import Rank


class StateChanged(NamedTuple):
    """Change of a rank's state."""

    rank: Rank
    previous_state: RankHealthState
    state: RankHealthState
    cause: CheckKind | None


class WeightChanged(NamedTuple):
    """New weight of a rank in the rank table; 0 removes the rank from the candidates."""

    rank: Rank
    weight: float


class MigrationRequested(NamedTuple):
    """Request to migrate the reservations of a rank."""

    rank: Rank
    reservations: int


class DrainFinished(NamedTuple):
    """A draining rank has no reservations left."""

    rank: Rank


class ReleaseRequested(NamedTuple):
    """Request to release the remaining reservations of a rank."""

    rank: Rank
    reservations: int


class CheckRequested(NamedTuple):
    """Request for an early check of a rank."""

    rank: Rank


class ProbeRequested(NamedTuple):
    """Request for a probe, allowed by the circuit breaker."""

    rank: Rank


class ConnectionProbeRequested(NamedTuple):
    """Request to try a connection to a rank that refused connections; not passed to listeners."""

    rank: Rank


class EjectionWithheld(NamedTuple):
    """The rank stayed in rotation only because of the ejection limit."""

    rank: Rank
    cause: CheckKind


class SparePromoted(NamedTuple):
    """A spare now serves in place of a failed rank, which becomes the spare."""

    spare: Rank
    failed: Rank


class RankReset(NamedTuple):
    """The health history of the rank is cleared, because its process is new."""

    rank: Rank


class ChecksRefused(NamedTuple):
    """The engine of a worker rejects check requests, so its health is unknown.

    rank: checked rank of the worker
    model_name: model name used in the request
    """

    rank: Rank
    endpoint: str | None
    model_name: str
    why: str


class ChecksAccepted(NamedTuple):
    """No rank of the worker rejects check requests any more.

    rank: last rank that rejected them
    """

    rank: Rank


# One union instead of a base class: `match` statements are checked for completeness.
HealthEffect = (
    StateChanged
    | WeightChanged
    | MigrationRequested
    | DrainFinished
    | ReleaseRequested
    | CheckRequested
    | ProbeRequested
    | ConnectionProbeRequested
    | EjectionWithheld
    | SparePromoted
    | RankReset
    | ChecksRefused
    | ChecksAccepted
)
