"""HTTP bodies of the replica plane."""

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct, field

from select_service.bodies.common import Endpoint, RequestBody

ReplicaName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]


class ReplicaPeerRequest(RequestBody, kw_only=True):
    """POST /replica_sync/deregister_peer."""

    endpoint: Endpoint
    """ZMQ endpoint on which the peer publishes, such as `tcp://selector-b:9092`."""


class NewReplicaPeerRequest(RequestBody, kw_only=True):
    """POST /replica_sync/register_peer."""

    endpoint: Endpoint
    """ZMQ endpoint on which the peer publishes, such as `tcp://selector-b:9092`."""
    replica: ReplicaName | None = None
    """Name in `--replica-keys-file` of the replica that has to answer there; left out, the one that
    the endpoint belongs to in that file. Null, or left out, where replicas have no keys."""


class ReplicaDifference(Struct, kw_only=True):
    """How far a peer and this replica are apart in one partition, at least."""

    model_name: str
    """Model of the partition."""
    tenant_id: str
    """Tenant of the partition."""
    reservations: int
    """Reservations that one side has and the other has not."""
    prefill_tokens: int
    """Active prefill tokens that one side counts and the other does not."""


class ReplicaRepairs(Struct, kw_only=True):
    """How often the list of the peer was fetched, and what followed, in reservations."""

    runs: int
    """Repairs begun."""
    failed: int
    """Repairs whose list could not be had."""
    added: int
    """Reservations that repairs booked here."""
    dropped: int
    """Reservations that repairs gave up here."""
    changed: int
    """Reservations that repairs moved or put right here."""
    repeated: int
    """Events said again because the peer had missed them."""
    refused: int
    """Reservations of the peer that cannot be booked here, mostly because the catalogs differ."""


class ReplicaPeer(Struct, kw_only=True):
    """What came from one peer."""

    endpoint: str
    """As it was registered."""
    replica: str | None
    """Name of the replica whose key has to answer there; null where replicas have no keys, and as
    long as no replica of the file is meant, which is not listened to then."""
    is_self: bool = field(name="self")
    """Is the peer this process? Its messages are dropped then; it should be deregistered."""
    connected: bool
    """Does the connection stand, and do both sides speak ZMTP?"""
    router_id: int | None
    """Of the process that sent the last digest; null before that, and with other
    implementations."""
    frames_in: int
    """Messages of any kind that came."""
    frames_out: int | None
    """Messages of ours that the peer says it has read; null until it says so, and with other
    implementations."""
    applied: int
    """Events that were followed."""
    digests: int
    """Digests that were compared."""
    progress: int
    """Messages about the progress of prefills that were followed."""
    lost: int
    """Events of the peer that are known not to have arrived."""
    dropped: dict[str, int]
    """Messages that changed nothing, by reason."""
    seconds_since_last_frame: float | None
    """Seconds since the last event or digest; null before the first one."""
    divergence_reservations: int
    """Sum of `reservations` in `divergence`; 0 until the peer has sent a digest."""
    divergence_prefill_tokens: int
    """Sum of `prefill_tokens` in `divergence`; 0 until the peer has sent a digest."""
    divergence: list[ReplicaDifference]
    """Partitions in which the two differ, as of the last digest."""
    repairs: ReplicaRepairs
    """What was done about differences."""
    last_error: str | None
    """The last unreadable message or failed repair; null if there was none."""
    seconds_since_last_error: float | None
    """How long ago that was; null if there was none."""


class ReplicaStatus(Struct, kw_only=True):
    """GET /replica_sync/status.  Frames go out to all subscribers alike, so they are counted once.

    Without a replica plane everything but `router_id` is false, 0 or empty.
    """

    enabled: bool
    """Is there a `--replica-sync-port`?"""
    secured: bool
    """Is it encrypted, and are replicas known by their keys? `--replica-keys-file`"""
    keys_error: str | None
    """What is wrong with that file, so that the keys before go on counting; null if nothing is."""
    router_id: int
    """This process among its peers: new at each start, random but for a mark of its key."""
    repair: bool
    """Are differences repaired? `--replica-sync-repair`"""
    frames_out: int
    """Events handed to the network."""
    digests_out: int
    """Digests handed to the network, one a second."""
    progress_out: int
    """Messages about the progress of prefills that were handed to the network."""
    frames_dropped_out: int
    """Events that were not published: the queue was full, or the prompt too long."""
    frames_queued: int
    """Events and digests that wait for the network now."""
    subscribers: int
    """Connections to the publishing port that are open now, one per replica that listens."""
    refused: int
    """Connections to the publishing port that were refused: the key is not known, or it is not
    CURVE; 0 where replicas have no keys, but for those that do not speak ZMTP."""
    peers: list[ReplicaPeer]
    """By endpoint, those that this replica listens to."""
