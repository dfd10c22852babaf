"""Bodies of reservations that have moved."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from select_service.bodies.common import RequestBody, Status


class MovedFrom(Struct, kw_only=True):
    """The rank that was left."""

    worker_id: int
    """Its worker."""
    dp_rank: int
    """Data-parallel rank of the worker."""


class MovedTo(MovedFrom, kw_only=True):
    """The rank on which a reservation is now."""

    endpoint: str
    """Where the worker takes requests, as it was registered; empty when it has left since."""


class MigrationEvent(Struct, kw_only=True):
    """One reservation that is elsewhere now, or that could not be moved."""

    seq: int
    """Number of the event, without holes; ask for later ones with it."""
    reservation_id: str
    """Which one."""
    source: MovedFrom = field(name="from")
    """The rank that is left."""
    target: MovedTo | None = field(name="to")
    """Where it goes on; null: nowhere, it stays booked until it is freed or released."""
    method: Literal["transfer", "reprefill", "abort"]
    """`transfer`: its KV cache is to be carried over; `reprefill`: the target computes prompt and
    output so far again; `abort`: neither is possible."""
    estimated_ms: float
    """Until it can go on, in milliseconds, by the plan."""
    cause: str
    """Why its rank is left."""
    lockstep: bool
    """Did it go to the one worker that had room for all?"""


class MigrationPage(Struct, kw_only=True):
    """Events in their order."""

    events: list[MigrationEvent]
    """The oldest first; there may be more."""
    next: int
    """The `after` of the next call."""
    gap: bool | UnsetType = UNSET
    """True: events between `after` and the first of these are not kept any more, or `after` is of
    an earlier process: ask for each reservation. Absent otherwise."""


class MigratedRequest(RequestBody, kw_only=True):
    """How the move of a reservation went."""

    ok: bool
    """Does the request go on there?"""
    took_ms: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    """From the event until then, in milliseconds."""


class Done(Status, kw_only=True):
    """It is done."""

    migrated_to: MovedTo | UnsetType = UNSET
    """Where the reservation is now; only after it has moved, until that is confirmed."""


class Confirmation(Struct, kw_only=True):
    """What became of a move."""

    method: Literal["transfer", "reprefill"]
    """`reprefill` after a transfer that failed: the target is to compute it again."""
    migrated_to: MovedTo
    """Where the reservation is."""
