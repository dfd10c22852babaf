"""HTTP bodies of replica synchronization."""

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct, field

from select_service.schemas.common import Endpoint, RequestBody

ReplicaName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]


class ReplicaPeerRequest(RequestBody, kw_only=True):
    """Body of POST /replica_sync/deregister_peer."""

    endpoint: Endpoint
    """ZMQ endpoint of the peer's publisher, such as `tcp://selector-b:9092`."""


class NewReplicaPeerRequest(ReplicaPeerRequest, kw_only=True):
    """Body of POST /replica_sync/register_peer."""

    replica: ReplicaName | None = None
    """Name in `--replica-keys-file` of the replica expected at the endpoint; when omitted, the
    replica with this endpoint in that file. Null or omitted where replicas have no keys.
    """


class ReplicaDifference(Struct, kw_only=True):
    """Lower bounds of the differences between a peer and this replica in one partition."""

    model_name: str
    """Model of the partition."""
    tenant_id: str
    """Tenant of the partition."""
    reservations: int
    """Reservations known to one side only."""
    prefill_tokens: int
    """Active prefill tokens counted by one side only."""


class ReplicaRepairs(Struct, kw_only=True):
    """Repairs from the peer's reservation list, and their results in reservations."""

    runs: int
    """Started repairs."""
    failed: int
    """Repairs that could not fetch the list."""
    added: int
    """Reservations booked here by repairs."""
    dropped: int
    """Reservations removed here by repairs."""
    changed: int
    """Reservations moved or corrected here by repairs."""
    repeated: int
    """Events sent again because the peer had missed them."""
    refused: int
    """Reservations of the peer that cannot be booked here, mostly because the catalogs differ."""


class ReplicaPeer(Struct, kw_only=True):
    """Messages and differences of one peer."""

    endpoint: str
    """Registered endpoint."""
    replica: str | None
    """Name of the replica expected at the endpoint, by its key; null where replicas have no keys,
    and while no replica of the file matches: such a peer is not connected.
    """
    is_self: bool = field(name="self")
    """Whether the peer is this process. Its messages are dropped; deregister such a peer."""
    connected: bool
    """Whether the connection is up and both sides use ZMTP."""
    router_id: int | None
    """Id of the process that sent the last digest; null before the first digest, and with other
    implementations.
    """
    frames_in: int
    """Received messages of all kinds."""
    frames_out: int | None
    """Our messages that the peer reports as received; null before such a report, and with other
    implementations.
    """
    applied: int
    """Applied events."""
    digests: int
    """Compared digests."""
    progress: int
    """Applied messages about the progress of prefills."""
    sessions: int
    """Applied messages about sessions."""
    session_repairs: int
    """Readings of the peer's sessions, where digests differed."""
    sessions_repaired: int
    """Sessions added or changed here by such readings."""
    lost: int
    """Events of the peer known to be lost."""
    dropped: dict[str, int]
    """Messages without effect, by reason."""
    seconds_since_last_frame: float | None
    """Seconds since the last event or digest; null before the first."""
    divergence_reservations: int
    """Sum of `reservations` in `divergence`; 0 until the peer has sent a digest."""
    divergence_prefill_tokens: int
    """Sum of `prefill_tokens` in `divergence`; 0 until the peer has sent a digest."""
    divergence: list[ReplicaDifference]
    """Partitions that differ, as of the last digest."""
    repairs: ReplicaRepairs
    """Repairs of differences with the peer."""
    last_error: str | None
    """The last unreadable message or failed repair; null if there was none."""
    seconds_since_last_error: float | None
    """Seconds since the last error; null if there was none."""


class ReplicaStatus(Struct, kw_only=True):
    """Response of GET /replica_sync/status.

    Frames go to all subscribers alike and are therefore counted once.  Without replica
    synchronization all fields except `router_id` are false, 0 or empty.
    """

    enabled: bool
    """Whether `--replica-sync-port` is set."""
    secured: bool
    """Whether `--replica-keys-file` is set: traffic is encrypted and replicas authenticate by
    keys.
    """
    keys_error: str | None
    """Error of the keys file, with the previous keys still in effect; null without an error."""
    router_id: int
    """Id of this process among its peers: new at each start, random except for a mark of its
    key.
    """
    repair: bool
    """Whether differences are repaired (`--replica-sync-repair`)."""
    frames_out: int
    """Published events."""
    digests_out: int
    """Published digests; a digest per second."""
    progress_out: int
    """Published messages about the progress of prefills."""
    sessions_out: int
    """Published messages about sessions."""
    frames_dropped_out: int
    """Events not published because the queue was full or the prompt too long."""
    frames_queued: int
    """Events and digests waiting for the network now."""
    subscribers: int
    """Open connections to the publishing port, a connection for each listening replica."""
    refused: int
    """Refused connections to the publishing port: an unknown key or no CURVE. Where replicas have
    no keys, only connections that do not use ZMTP.
    """
    peers: list[ReplicaPeer]
    """Peers that this replica subscribes to, by endpoint."""
