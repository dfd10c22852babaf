"""Status of a rank's KV event stream, as worker records show it."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from select_service.schemas.common import Certainty

KvEventState = Literal[
    "connected", "catching_up", "degraded", "no_events_yet", "unconnected", "unverified"
]


class KvEventReason(Struct, kw_only=True):
    """Reason and age of a known or possible error in a rank's index."""

    reason: str
    """Cause of the condition."""
    seconds: float
    """Age of the condition, seconds."""


class KvCacheGroup(Struct, kw_only=True):
    """Layers of a rank that share one block table."""

    group: int
    """Number of the group in the engine's events."""
    kind: str
    """Kind of the layers in the engine's events, such as `full_attention`, `sliding_window` or
    `mamba`.
    """
    block_size: int
    """Tokens in a block of the group."""
    blocks: int
    """Blocks that the index has of the group now."""


class KvEventStatus(Struct, kw_only=True):
    """Status of a rank's event listener since the listener was opened."""

    state: KvEventState
    """`no_events_yet`; `connected`; `catching_up`: a gap is being replayed; `degraded`: events were
    lost, the index of this rank may be wrong; `unverified`: events may have been missed, and the
    engine has not confirmed them yet; `unconnected`: the endpoint has not answered for 10 s, and no
    events arrive. Fields with the last three names give age and reason.
    """
    connected: bool
    """Whether the connection to the engine's events is up."""
    connect_error: str | None
    """Reason for the missing connection, if known; null while connected."""
    degraded: KvEventReason | UnsetType = UNSET
    """Cause of events known to be missing; absent when none are. Ends when the engine clears its
    cache or restarts.
    """
    unverified: KvEventReason | UnsetType = UNSET
    """Cause of possibly missing events; absent when there is no such doubt."""
    unconnected: KvEventReason | UnsetType = UNSET
    """Cause of a connection missing for at least 10 s; absent otherwise."""
    last_sequence: int | None
    """Sequence number of the last applied batch; null before the first batch."""
    batches: int
    """Applied batches."""
    gaps: int
    """Number of gaps in the batches."""
    replayed: int
    """Batches received by replay."""
    lost: int
    """Batches known to be permanently lost."""
    restarts: int
    """Number of times the engine restarted its sequence numbers."""
    semantics: Literal["counted", "set"]
    """Meaning of repeated announcements. Switches to `set` when a rank announces more copies than
    `total_kv_blocks`.
    """
    decode_errors: int
    """Undecodable messages or events."""
    dropped: dict[str, int] | UnsetType = UNSET
    """Events not indexed, by reason, as in `select_service_kv_event_dropped_total`; absent when all
    were indexed.
    """
    unknown_fields: dict[str, int] | UnsetType = UNSET
    """Fields of events that this version does not know, by name; absent without any. Fields whose
    name may be that of a key give their blocks an identity of their own.
    """
    engine_changes: int | UnsetType = UNSET
    """Number of times that another engine took over the address, by its topic; absent if never."""
    groups: list[KvCacheGroup] | UnsetType = UNSET
    """Cache groups of the rank, so far as its events show them. This field and the next four are
    absent for ranks with one group of full attention whose matches all count.
    """
    unit: int | UnsetType = UNSET
    """Tokens of the unit by which the engine names prefixes, as far as known."""
    lookahead: int | UnsetType = UNSET
    """Number of tokens behind a block that its name covers."""
    certainty: Certainty | UnsetType = UNSET
    """Certainty of the rank's overlaps: the `exact` reusable prefix, `at_most` for an upper
    bound, or `unknown`: perhaps too high, perhaps too low.
    """
    why: str | UnsetType | None = UNSET
    """Reasons why overlaps are not exact; null for `exact`."""
    last_error: str | None
    """Last error, or mismatch with the registration; null if there was none."""
    seconds_since_last_event: float | None
    """Seconds since the last batch; null before the first batch."""
