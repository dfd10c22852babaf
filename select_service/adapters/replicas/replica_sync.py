"""Replica synchronisation of one process: the publisher, the peers and their state.

Passes peer messages to the core, sends prefill progress, publishes a digest every second and runs
the repairs that the core requests.  Everything runs on the event loop.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import zmq

from indexer.sockets.dns_resolver import Resolver
from indexer.zmq_endpoints import endpoint_error
from select_service.adapters.guarded_callbacks import GuardedCallbacks
from select_service.adapters.http_get import HttpClient
from select_service.adapters.replicas.clear_sync import ClearSync
from select_service.adapters.replicas.event_publisher import ReplicaPublisher
from select_service.adapters.replicas.event_subscriber import Receive, ReplicaSubscriber
from select_service.adapters.replicas.peer_list import PeerListUnavailable, fetch_page, walk_pages
from select_service.adapters.replicas.peer_state import (
    PeerListLocation,
    ReplicaPeerState,
    peer_list_location,
    peer_status,
)
from select_service.adapters.replicas.replica_log import PublisherLog, ReplicaPeerLog
from select_service.adapters.replicas.session_sync import SessionSync
from select_service.base.errors import BadRequest, CapacityExceeded, DestinationRefused
from select_service.core.load.reservations import ReservationFilter
from select_service.core.replication import digest as replica_digest
from select_service.core.replication import load_events as replica_events
from select_service.core.replication import prefill_progress as replica_progress
from select_service.core.replication.digest import Receipt
from select_service.core.replication.load_events import LoadEvent, PeerFrameError
from select_service.core.replication.repair import (
    Repair,
    RepairResult,
    ReservationPageAnswer,
    UnexpectedProcess,
)
from select_service.core.replication.replica_state import ReplicaState
from select_service.core.replication.session_exchange import SessionExchange
from select_service.net.egress_policy import EgressPolicy
from select_service.schemas.replicas import ReplicaStatus

if TYPE_CHECKING:
    from select_service.adapters.reload.file_watch import FollowedFiles
    from select_service.adapters.replicas.curve_peers import CurvePeers
    from select_service.auth.replica_keypair import ReplicaKeypair

PEERS_MAX = 64
RECONNECT_S = 10.0
"""Seconds after which an unconnected or silent peer gets a new socket."""
REPAIR_S_MAX = 120.0
"""Time limit of a repair, in seconds; the next repair starts from the beginning."""

log = logging.getLogger("select_service.replicas")

T = TypeVar("T")


class ReplicaSyncConfig(NamedTuple):
    """Configuration of replica synchronisation.

    repair: True fetches missing reservations from peers
    url: URL of the own HTTP interface, announced to peers
    destinations: egress policy, checked before a peer is registered; None allows the usual ones
    keys: CURVE keys; None means unencrypted connections
    trusts_urls: True fetches lists from any URL that a peer announces (without keys only)
    """

    repair: bool
    url: str | None
    destinations: EgressPolicy | None = None
    keys: "ReplicaKeypair | None" = None
    trusts_urls: bool = False


class ReplicaSync:
    """Replica synchronisation.  Belongs to the thread of the event loop."""

    def __init__(
        self,
        state: ReplicaState,
        publisher: ReplicaPublisher,
        callbacks: GuardedCallbacks,
        names: Resolver,
        config: ReplicaSyncConfig,
        sessions: SessionExchange,
    ) -> None:
        self._state = state
        self._sessions = SessionSync(sessions, publisher, repairs=config.repair)
        self._sessions.start_sending(state.ledger)
        self._publisher = publisher
        self._clears = ClearSync(state.cleared_caches, publisher)
        self._callbacks = callbacks
        self._names = names
        self._repair = config.repair
        self._url = config.url
        self._destinations = config.destinations or EgressPolicy()
        self._trusts_urls = config.trusts_urls
        self._curve_peers = (
            None if config.keys is None else _make_curve_peers(config.keys, self._keys_changed)
        )
        self._http_port, self._scheme = 0, "http"
        self._digests = self._n_ranks = 0
        self._peers: dict[str, ReplicaPeerState] = {}
        self._out_log = PublisherLog()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._http: HttpClient | None = None

    def bind_publisher(self, port: int, address: str = "127.0.0.1") -> None:
        """Bind the publisher.

        address: numeric address
        Raises zmq.ZMQError.
        """
        options = (
            {}
            if self._curve_peers is None
            else self._curve_peers.install_authenticator(self._context, self._callbacks)
        )
        host = f"[{address}]" if ":" in address else address
        self._publisher.bind_socket(self._context, f"tcp://{host}:{port}", options)

    def start(self, http_port: int, http: HttpClient, *, is_tls: bool = False) -> None:
        """Publish and receive from now on; call this on the event loop.

        http_port: port of the own HTTP interface
        http: client for peer lists
        is_tls: whether the own interface uses HTTPS
        """
        self._http_port, self._http, self._scheme = http_port, http, "https" if is_tls else "http"
        self._loop = asyncio.get_running_loop()
        self._publisher.start(self._loop)
        if self._curve_peers is not None:
            self._curve_peers.start()
        for peer in self._peers.values():
            peer.subscriber.start(self._loop)

    def close(self) -> None:
        """Close all sockets at once."""
        for peer in self._peers.values():
            peer.stop_following()
        self._publisher.close()
        if self._curve_peers is not None:
            self._curve_peers.close()
        self._context.destroy(linger=0)

    # Peers.

    def peer_endpoints(self) -> list[str]:
        """Return the endpoints of all peers, sorted."""
        return sorted(self._peers)

    def background_tasks(self) -> list[asyncio.Task[None]]:
        """Return the tasks that run until `close`."""
        return [] if self._curve_peers is None else self._curve_peers.background_tasks()

    def followed_files(self) -> "list[FollowedFiles]":
        """Return the files that are reloaded when they change."""
        return [] if self._curve_peers is None else [self._curve_peers.files]

    def register_peer(self, endpoint: str, name: str | None = None) -> bool:
        """Register a peer; return False if it is already registered.

        name: replica expected to answer; None means the replica of this endpoint
        Raises BadRequest, DestinationRefused, CapacityExceeded.
        """
        error = endpoint_error(endpoint) or self._unknown_replica_error(endpoint, name)
        if error is not None:
            raise BadRequest(error)
        return self.add_peer(endpoint, name)

    def _unknown_replica_error(self, endpoint: str, name: str | None) -> str | None:
        if self._curve_peers is None:
            if name is None:
                return None
            return f"replica keys are not configured, so the name `{name}` is unknown"
        if self._curve_peers.find_replica(endpoint, name) is not None:
            return None
        if name is None:
            return f"endpoint `{endpoint}` is not in the replica keys file; give `replica`"
        return f"replica name `{name}` is not in the replica keys file"

    def add_peer(self, endpoint: str, name: str | None = None) -> bool:
        """Add a peer with a well-formed endpoint, as `register` does.

        With keys, an endpoint without a replica in the key file is accepted too, but no connection
        is made until the file has one.
        """
        if endpoint in self._peers:
            return False
        refusal = self._destinations.endpoint_refusal(endpoint)
        if refusal is not None:
            raise DestinationRefused(f"replica peer `{endpoint}` is refused: {refusal}")
        if len(self._peers) >= PEERS_MAX:
            raise CapacityExceeded(f"peer limit reached ({PEERS_MAX}); deregister one first")
        now = monotonic()
        receivers: dict[bytes, Receive] = {
            replica_events.EVENT_TOPIC: lambda payload: self._handle_event(peer, payload),
            replica_digest.DIGEST_TOPIC: lambda payload: self._handle_digest(peer, payload),
            replica_progress.PROGRESS_TOPIC: lambda payload: self._handle_progress(peer, payload),
            **self._sessions.receivers(lambda: peer),
            **self._clears.receivers(lambda: peer),
        }
        subscriber = ReplicaSubscriber(
            endpoint, receivers, self._callbacks, self._names, lambda: self._is_ready(peer)
        )
        peer = ReplicaPeerState(subscriber, ReplicaPeerLog(endpoint, now), tried_at=now, name=name)
        try:
            if self._may_connect(peer):
                peer.subscriber.connect(self._context)
        except zmq.ZMQError:
            raise BadRequest(_unconnectable_error(endpoint)) from None
        self._peers[endpoint] = peer
        if self._loop is not None:
            peer.subscriber.start(self._loop)
        log.info("replica peer registered", extra={"fields": {"endpoint": endpoint}})
        return True

    def deregister_peer(self, endpoint: str) -> bool:
        """Remove a peer at once; return False if it is not registered.  Raises BadRequest."""
        error = endpoint_error(endpoint)
        if error is not None:
            raise BadRequest(error)
        peer = self._peers.pop(endpoint, None)
        if peer is None:
            return False
        peer.stop_following()
        log.info("replica peer deregistered", extra={"fields": {"endpoint": endpoint}})
        return True

    def _may_connect(self, peer: ReplicaPeerState) -> bool:
        """Look up the key of a peer; return False if a key is required and missing."""
        if self._curve_peers is None:
            return True
        peer.replica = self._curve_peers.find_replica(peer.subscriber.endpoint, peer.name)
        if peer.replica is not None:
            peer.subscriber.server = self._curve_peers.curve_server(peer.replica)
        return peer.replica is not None

    def _keys_changed(self, gone: frozenset[str]) -> None:
        """Close connections of removed keys and reconnect to replicas with a new key."""
        # libzmq checks keys only while connecting, so removed keys need new connections for
        # everyone.
        if gone:
            self._publisher.rebind_socket()
        for peer in self._peers.values():
            old = peer.replica
            if not self._may_connect(peer):
                peer.stop_following()
            elif old is None or peer.replica is None or old.public_key != peer.replica.public_key:
                peer.subscriber.reconnect(self._context)

    # Incoming messages.

    def _is_its_own(self, peer: ReplicaPeerState, router_id: int) -> bool:
        """Return whether a peer may send messages of this router id; a violation is counted."""
        if peer.may_send_as(router_id):
            return True
        peer.dropped["origin"] += 1
        return False

    def _handle_event(self, peer: ReplicaPeerState, payload: bytes) -> None:
        now = peer.last_frame_at = monotonic()
        event = _decode_message(replica_events.decode_event, payload, peer, "decode", now)
        if event is None or not self._is_its_own(peer, event.router_id):
            return
        peer.count_message(event.router_id)
        peer.agreement.count_event(event.router_id)
        if self._state.may_apply(event):
            self._apply_event(peer, event, now)
        else:
            # Applying a large event takes several iterations; further messages of this peer wait,
            # see _is_ready.
            peer.held_back = event

    def _is_ready(self, peer: ReplicaPeerState) -> bool:
        """Apply an event that is held back.

        Return whether the next message of the peer may be read.
        """
        event = peer.held_back
        if event is not None:
            if not self._state.may_apply(event):
                return False
            # Cleared before `_apply_event`, which may raise: the event must not block the peer for
            # ever.
            peer.held_back = None
            self._apply_event(peer, event, monotonic())
        return self._state.ledger.is_ready_everywhere()

    def _apply_event(self, peer: ReplicaPeerState, event: LoadEvent, now: float) -> None:
        reason = self._state.apply_event(event, now)
        if reason is None:
            peer.applied += 1
        else:
            peer.dropped[reason] += 1

    def _handle_digest(self, peer: ReplicaPeerState, payload: bytes) -> None:
        now = peer.last_frame_at = monotonic()
        digest = _decode_message(replica_digest.decode_digest, payload, peer, "digest", now)
        if digest is None or not self._is_its_own(peer, digest.router_id):
            return
        peer.count_message(digest.router_id)
        reason = self._state.compare_digest(digest, peer.agreement, now)
        if reason is not None:
            peer.dropped[reason] += 1
            return
        own_id = self._state.router_id
        arrived = [heard.messages for heard in digest.heard if heard.router_id == own_id]
        peer.frames_out = max(arrived, default=0)
        peer.log.log_divergence(peer.agreement)
        # One repair per peer at a time; the agreement paces them.
        if self._repair and peer.agreement.is_repair_due(now) and peer.task is None:
            peer.task = asyncio.create_task(self._repair_from(peer))

    def _handle_progress(self, peer: ReplicaPeerState, payload: bytes) -> None:
        now = peer.last_frame_at = monotonic()
        progress = _decode_message(replica_progress.decode_progress, payload, peer, "progress", now)
        if progress is None or not self._is_its_own(peer, progress.router_id):
            return
        if self._state.progress.apply_progress(progress):
            peer.progress += 1
        else:
            peer.dropped["own"] += 1

    # Every tenth of a second.

    def publish_progress(self, now: float) -> bool:
        """Publish a bounded part of the prefill progress; return whether more is due.

        Cleared caches go with it, which should not wait for a digest either.
        """
        self._clears.run_turn(now)
        if not self._publisher.is_subscribed(replica_progress.PROGRESS_TOPIC):
            return False
        return self._state.progress.run_turn(now, self._publisher.offer_progress)

    # Every second.

    def publish_digest(self) -> None:
        """Publish a digest to its subscribers and check all peers.

        Raises the unexpected exception of a repair.
        """
        now = monotonic()
        if self._publisher.is_subscribed(replica_digest.DIGEST_TOPIC):
            self._offer_digest()
        self._sessions.publish_digest()
        self._out_log.log_drops(self._publisher.dropped, self._publisher.last_drop, now)
        # A peer's reservations on unknown ranks were dropped; new ranks make a repair worthwhile.
        n_ranks, self._n_ranks = self._n_ranks, self._state.count_ranks()
        if self._n_ranks > n_ranks:
            for peer in self._peers.values():
                peer.agreement.reset_pause()
        self._publisher.count_subscribers()  # empties the monitor queue of libzmq
        for peer in self._peers.values():
            self._check_peer(peer, now)
            self._sessions.check_peer(peer, self._locate_list, self._http)
            if peer.task is not None and peer.task.done():
                task, peer.task = peer.task, None
                with suppress(asyncio.CancelledError):
                    task.result()

    def _offer_digest(self) -> None:
        self._digests += 1
        heard = [
            Receipt(p.sender_router_id, p.messages_received)
            for p in self._peers.values()
            if p.sender_router_id is not None
        ]
        digest = self._state.make_digest(
            self._digests, self._publisher.offered, self._http_port, self._url, heard
        )
        self._publisher.offer_digest(replica_digest.encode_digest(digest))

    def _check_peer(self, peer: ReplicaPeerState, now: float) -> None:
        peer.subscriber.update_connection()
        peer.log.log_connection(peer.subscriber.connected, now)
        if (refusal := peer.subscriber.refusal) is not None:
            peer.record_error(refusal, now)
        if peer.subscriber.connected and not peer.is_silent(now):
            peer.tried_at = now
        # libzmq reconnects by itself, except after protocol errors and for half-open connections.
        elif now - peer.tried_at >= RECONNECT_S:
            peer.tried_at = now
            if self._may_connect(peer):
                peer.subscriber.reconnect(self._context)
        peer.log.log_drops(peer.dropped_by_reason(), peer.last_error, now)
        if peer.sender_router_id == self._state.router_id:
            peer.log.log_self_connection(now)

    # Repair.

    async def _repair_from(self, peer: ReplicaPeerState) -> None:
        """Fetch the list of a peer and repair the differences."""
        agreement = peer.agreement
        assert agreement.router_id is not None
        assert self._http is not None
        peer.repairs += 1
        repair = Repair(self._state, agreement.router_id, monotonic())
        try:
            async with asyncio.timeout(REPAIR_S_MAX):
                await _run_repair(repair, self._locate_list(peer), self._http)
        except (PeerListUnavailable, UnexpectedProcess, TimeoutError) as error:
            reason = str(error) or f"no complete list after {REPAIR_S_MAX:g} s"
            peer.failed_repairs += 1
            peer.record_error(reason, monotonic())
            peer.log.log_repair_failure(reason)
            agreement.record_failed_repair(monotonic())
        else:
            peer.log.log_repair(repair.result)
            agreement.record_repair(repair.result.has_progress, monotonic())
        _add_repaired(peer.repaired, repair.result)

    def _locate_list(self, peer: ReplicaPeerState) -> PeerListLocation:
        place = peer_list_location(
            peer, (self._scheme, self._http_port), trusts_urls=self._trusts_urls
        )
        said = peer.agreement.url
        if said is not None and place.url != said:
            peer.log.log_untrusted_url(said, place.url, monotonic())
        return place

    # Status.

    def replica_status(self) -> ReplicaStatus:
        """Return the replica status."""
        now, router_id = monotonic(), self._state.router_id
        return ReplicaStatus(
            enabled=True,
            secured=self._curve_peers is not None,
            keys_error=None if self._curve_peers is None else self._curve_peers.error,
            router_id=router_id,
            repair=self._repair,
            frames_out=self._publisher.sent,
            digests_out=self._publisher.digests_sent,
            progress_out=self._publisher.progress_sent,
            sessions_out=self._publisher.sessions_sent,
            frames_dropped_out=self._publisher.dropped,
            frames_queued=self._publisher.queue_length,
            subscribers=self._publisher.count_subscribers(),
            refused=self._publisher.refused,
            peers=[
                peer_status(self._peers[endpoint], router_id, now)
                for endpoint in self.peer_endpoints()
            ],
        )


def _make_curve_peers(
    keys: "ReplicaKeypair", changed: Callable[[frozenset[str]], None]
) -> "CurvePeers":
    from select_service.adapters.replicas.curve_peers import (
        CurvePeers,  # imported only if ZAP is needed
    )

    return CurvePeers(keys, changed)


async def _run_repair(repair: Repair, place: PeerListLocation, http: HttpClient) -> None:
    async def fetch(wanted: ReservationFilter) -> ReservationPageAnswer:
        asked_at = monotonic()
        page = await fetch_page(http, place.url, wanted, with_key=place.with_key)
        return ReservationPageAnswer(page, asked_at, monotonic())

    await walk_pages(repair.run_repair(), fetch)


def _unconnectable_error(endpoint: str) -> str:
    """Return the error for a well-formed endpoint that libzmq rejects."""
    text = f"failed to register replica peer `{endpoint}`"
    if endpoint.startswith("tcp://*:"):
        text += ": `*` is not a destination; give the host name or address of the peer"
    return text


def _add_repaired(total: RepairResult, more: RepairResult) -> None:
    for name in RepairResult.__slots__:
        setattr(total, name, getattr(total, name) + getattr(more, name))


def _decode_message(
    decode: Callable[[bytes], T], payload: bytes, peer: ReplicaPeerState, reason: str, now: float
) -> T | None:
    """Decode a message; None for an unreadable message, which is counted under `reason`."""
    try:
        return decode(payload)
    except PeerFrameError as error:
        peer.dropped[reason] += 1
        peer.record_error(str(error), now)
        return None
