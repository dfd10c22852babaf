"""Bodies of migrations: reservations moved to other ranks."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from select_service.schemas.common import AnswerResult, RankAddress, RequestBody, Status


class MovedFrom(RankAddress, kw_only=True):
    """Rank that the reservation left."""


class MovedTo(MovedFrom, kw_only=True):
    """Rank that holds the reservation now."""

    endpoint: str
    """Request endpoint of the worker, as registered; empty when the worker has left since."""
    leg: Literal["prefill", "decode"] | UnsetType = UNSET
    """Leg of a pair that moved, whose new hand-over `/reservations/{reservation_id}/move` gives;
    absent for reservations on one rank.
    """


class MigrationEvent(Struct, kw_only=True):
    """Move of one reservation, or its failure."""

    seq: int
    """Sequence number of the event, without gaps; pass it as `after` for later events."""
    reservation_id: str
    """Id of the reservation."""
    source: MovedFrom = field(name="from")
    """Rank that the reservation leaves."""
    target: MovedTo | None = field(name="to")
    """New rank; null: no rank found, and the reservation stays booked until freed or released."""
    method: Literal["transfer", "reprefill", "abort"]
    """`transfer`: the KV cache is to be copied; `reprefill`: the target computes the prompt and the
    output so far again; `abort`: neither is possible.
    """
    estimated_ms: float
    """Planned time until the request continues, milliseconds."""
    cause: str
    """Reason for leaving the rank."""
    lockstep: bool
    """Whether all reservations moved together to the only worker with capacity for all."""
    leg: Literal["prefill", "decode"] | UnsetType = UNSET
    """Leg of a pair that left its rank; absent for reservations on one rank."""


class MigrationPage(Struct, kw_only=True):
    """Migration events in order."""

    events: list[MigrationEvent]
    """Events, oldest first; further events may follow."""
    next: int
    """Value of `after` for the next call."""
    gap: bool | UnsetType = UNSET
    """True: events between `after` and the first event here are no longer kept, or `after` comes
    from an earlier process. Query each reservation then. Absent otherwise.
    """


class MigratedRequest(RequestBody, kw_only=True):
    """Body of the confirmation of a migration."""

    ok: bool
    """Whether the request continues on the new rank."""
    took_ms: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    """Time from the event until the request continued, milliseconds."""


class Done(Status, kw_only=True):
    """Response of a reservation call that succeeded."""

    migrated_to: MovedTo | UnsetType = UNSET
    """New rank of the reservation; present only after a move, until the move is confirmed."""
    lost_leg: Literal["prefill"] | UnsetType = UNSET
    """Leg of a pair whose rank is gone before the prefill ended; `/reservations/{reservation_id}/
    move` gives another. Absent otherwise.
    """
    answer: AnswerResult | UnsetType = UNSET
    """What became of the tokens in `output_token_ids`: `added` to the blocks that the rank is
    assumed to hold; `not_assumed`: its index comes from KV events; `prompt_unknown`: the prompt was
    given as hashes, with images or for EAGLE, or is too long; `prompt_evicted`: the rank is not
    assumed to hold the prompt any more. Absent without tokens.
    """


class Confirmation(Struct, kw_only=True):
    """Result of a confirmed migration."""

    method: Literal["transfer", "reprefill"]
    """`reprefill` after a failed transfer: the target must compute the prompt again."""
    migrated_to: MovedTo
    """Rank that holds the reservation."""
