"""HTTP bodies of the replica plane; see schema for their rules."""

from msgspec import Struct, field

from select_service.bodies.common import Endpoint


class ReplicaPeerRequest(Struct, kw_only=True):
    """POST /replica_sync/register_peer and /deregister_peer."""

    endpoint: Endpoint


class ReplicaDifference(Struct, kw_only=True):
    """How far a peer and this replica are apart in one partition, at least."""

    model_name: str
    tenant_id: str
    reservations: int
    prefill_tokens: int


class ReplicaRepairs(Struct, kw_only=True):
    """How often the list of the peer was fetched, and what followed, in reservations.

    repeated: events said again because the peer had missed them; refused: no such rank here.
    """

    runs: int
    failed: int
    added: int
    dropped: int
    changed: int
    repeated: int
    refused: int


class ReplicaPeer(Struct, kw_only=True):
    """What came from one peer.

    applied: events that were followed; dropped: messages that changed nothing, by reason; lost:
    events of the peer that are known not to have arrived.  frames_out: messages of ours that the
    peer says have arrived.  router_id and frames_out are null and divergence is 0 until the peer
    has sent a digest, which other implementations never do.
    """

    endpoint: str
    is_self: bool = field(name="self")
    connected: bool
    router_id: int | None
    frames_in: int
    frames_out: int | None
    applied: int
    digests: int
    lost: int
    dropped: dict[str, int]
    seconds_since_last_frame: float | None
    divergence_reservations: int
    divergence_prefill_tokens: int
    divergence: list[ReplicaDifference]
    repairs: ReplicaRepairs
    last_error: str | None
    seconds_since_last_error: float | None


class ReplicaStatus(Struct, kw_only=True):
    """GET /replica_sync/status.  Frames go out to all subscribers alike, so they are counted once.

    subscribers: open connections to the port that publishes, one per replica that listens.
    """

    enabled: bool
    router_id: int
    repair: bool
    frames_out: int
    digests_out: int
    frames_dropped_out: int
    frames_queued: int
    subscribers: int
    peers: list[ReplicaPeer]
