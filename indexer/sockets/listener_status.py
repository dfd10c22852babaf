"""Status of a rank's event stream."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from indexer.index.cache_group_status import CacheGroupStatus

StreamState = Literal[
    "no_events_yet", "connected", "catching_up", "degraded", "unverified", "unconnected"
]
UNCONNECTED_S = 10.0
"""Seconds without an answer after which a rank is `unconnected`; a restarting engine or a short
network fault takes less.
"""


class StreamPulse(NamedTuple):
    """Part of a ListenerStatus that is read often, and for all ranks.

    is_bound: reusable prefixes of the rank are upper bounds
    """

    state: StreamState
    batches: int
    last_event_monotonic: float | None
    is_bound: bool = False


class MissingConnection(NamedTuple):
    """Missing connection.

    since: monotonic seconds;  error: reason, if known
    """

    endpoint: str
    since: float
    error: str | None

    def is_long(self, now: float) -> bool:
        """Return whether the rank counts as `unconnected` by now."""
        return now - self.since >= UNCONNECTED_S


@dataclass(frozen=True, slots=True)
class ListenerStatus:
    """Status of a rank's stream since it was opened.

    state: degraded means that the index may lack events of this rank, for the reason in `degraded`
    (`feed` describes how that ends; after a broken connection, until a message shows whether any
    are missing); unverified means that a loss is possible, for the reason in `doubt`;
    unconnected means that the endpoint has not answered for UNCONNECTED_S
    degraded_monotonic, doubted_monotonic: begin of the state, monotonic seconds
    is_counted: repeated stores count as copies, until they prove to be none (`inflations`)
    connected: there is a connection; connect_error: reason without one, if known
    unconnected_monotonic: begin of a connection loss longer than UNCONNECTED_S; else None
    batches: decoded and applied; replayed: those among them from a replay; lost: known to be
    missing
    stale: batches received twice; dropped: events not indexed, by reason
    is_size_wrong: the registered block size probably differs from the engine's
    unknown_fields: fields of events without a meaning here, by name
    lookahead_events: stored events with another lookahead than the registration of EAGLE has
    plain_eagle_events: stored events of blocks alone although the rank is registered as EAGLE
    inside_block_events: stored events of the end of a prompt inside a block
    has_registered_size: a block of the registered size has come since the engine's start
    cache_groups: cache groups of the rank; None while only one dense group is known
    engine_changes, engine_change: times that another engine took over the address, and the last one
    """

    state: StreamState
    endpoint: str
    replay_endpoint: str | None
    last_sequence: int | None
    batches: int
    gaps: int
    replayed: int
    lost: int
    stale: int
    restarts: int
    decode_errors: int
    last_error: str | None
    is_size_wrong: bool
    last_event_monotonic: float | None
    connected: bool
    connect_error: str | None
    unconnected_monotonic: float | None
    is_counted: bool
    inflations: int
    degraded: str | None
    degraded_monotonic: float | None
    doubt: str | None
    doubted_monotonic: float | None
    stored_blocks: int
    removed_blocks: int
    dropped: dict[str, int]
    unknown_fields: dict[str, int] = field(default_factory=dict)
    lookahead_events: int = 0
    plain_eagle_events: int = 0
    inside_block_events: int = 0
    has_registered_size: bool = False
    cache_groups: CacheGroupStatus | None = None
    engine_changes: int = 0
    engine_change: str | None = None
