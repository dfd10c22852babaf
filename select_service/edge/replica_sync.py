"""EDGE: the replica plane of one process: its publisher, its peers, and what is known of each.

Brings events and digests of peers into the core, publishes a digest with every tick, and carries
out repairs that the core finds due.  Everything runs on the event loop but the fetching of lists.
"""

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from urllib.parse import urlsplit

import zmq

from indexer.endpoints import endpoint_error
from select_service.core import replica_digest, replica_events
from select_service.core.replica_agreement import Agreement
from select_service.core.replica_events import DecodeError
from select_service.core.replica_repair import AnotherProcess, Answer, Repair, Repaired
from select_service.core.replica_state import ReplicaState
from select_service.edge.peer_list import NoList, fetch_page
from select_service.edge.replica_publisher import ReplicaPublisher
from select_service.edge.replica_subscriber import ReplicaSubscriber
from select_service.errors import BadRequest, CapacityExceeded
from select_service.schema import ReplicaDifference, ReplicaPeer, ReplicaRepairs, ReplicaStatus

PEERS_MAX = 64
REPAIR_S_MAX = 120.0
"""A list that takes longer is given up; the next repair begins anew."""

log = logging.getLogger("select_service.replicas")


@dataclass(slots=True)
class _Peer:
    """One peer.  `dropped` counts messages that were read and changed nothing, by reason."""

    subscriber: ReplicaSubscriber
    agreement: Agreement = field(default_factory=Agreement)
    dropped: Counter[str] = field(default_factory=Counter)
    applied: int = 0
    last_frame_at: float | None = None
    repairs: int = 0
    failed_repairs: int = 0
    last_error: str | None = None
    done: Repaired = field(default_factory=Repaired)
    task: asyncio.Task[None] | None = None


class ReplicaSync:
    """Belongs to the thread of the event loop."""

    def __init__(
        self, state: ReplicaState, publisher: ReplicaPublisher, *, repair: bool, url: str | None
    ) -> None:
        """repair: fetch what is missing from peers.  url: where they find our HTTP interface."""
        self._state = state
        self._publisher = publisher
        self._repair = repair
        self._url = url
        self._http_port = 0
        self._digests = 0
        self._peers: dict[str, _Peer] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._loop: asyncio.AbstractEventLoop | None = None

    def bind(self, port: int) -> None:
        """Raises zmq.ZMQError."""
        self._publisher.bind(self._context, port)

    def start(self, http_port: int) -> None:
        """Publish and receive from now on; to be called on the event loop."""
        self._http_port = http_port
        self._loop = asyncio.get_running_loop()
        self._publisher.start(self._loop)
        for peer in self._peers.values():
            peer.subscriber.start(self._loop)

    def close(self) -> None:
        """Leave at once."""
        for peer in self._peers.values():
            _end(peer)
        self._publisher.close()
        self._context.destroy(linger=0)

    # --- peers

    def peers(self) -> list[str]:
        """Their endpoints, sorted."""
        return sorted(self._peers)

    def register(self, endpoint: str) -> bool:
        """Listen to a peer.  False: it was known.  Raises BadRequest, CapacityExceeded."""
        error = endpoint_error(endpoint)
        if error is not None:
            raise BadRequest(error)
        if endpoint in self._peers:
            return False
        if len(self._peers) >= PEERS_MAX:
            raise CapacityExceeded(f"{PEERS_MAX} peers are registered, the most there may be")
        peer = _Peer(ReplicaSubscriber(endpoint, {}))
        peer.subscriber = ReplicaSubscriber(
            endpoint,
            {
                replica_events.TOPIC: lambda payload: self._event_came(peer, payload),
                replica_digest.TOPIC: lambda payload: self._digest_came(peer, payload),
            },
        )
        try:
            peer.subscriber.connect(self._context)
        except zmq.ZMQError:
            raise BadRequest(f"failed to register replica peer `{endpoint}`") from None
        self._peers[endpoint] = peer
        if self._loop is not None:
            peer.subscriber.start(self._loop)
        log.info("replica peer registered", extra={"fields": {"endpoint": endpoint}})
        return True

    def deregister(self, endpoint: str) -> bool:
        """Stop listening at once.  False: there is no such peer.  Raises BadRequest."""
        error = endpoint_error(endpoint)
        if error is not None:
            raise BadRequest(error)
        peer = self._peers.pop(endpoint, None)
        if peer is None:
            return False
        _end(peer)
        log.info("replica peer deregistered", extra={"fields": {"endpoint": endpoint}})
        return True

    # --- what comes

    def _event_came(self, peer: _Peer, payload: bytes) -> None:
        now = peer.last_frame_at = monotonic()
        try:
            event = replica_events.decode(payload)
        except DecodeError as error:
            _refuse(peer, "decode", error)
            return
        peer.agreement.event_came(event.router_id)
        reason = self._state.apply(event, now)
        if reason is None:
            peer.applied += 1
        else:
            peer.dropped[reason] += 1

    def _digest_came(self, peer: _Peer, payload: bytes) -> None:
        now = peer.last_frame_at = monotonic()
        try:
            digest = replica_digest.decode(payload)
        except DecodeError as error:
            _refuse(peer, "digest", error)
            return
        reason = self._state.compare(digest, peer.agreement, now)
        if reason is not None:
            peer.dropped[reason] += 1
        elif self._repair and peer.agreement.repair_due(now) and peer.task is None:
            peer.task = asyncio.create_task(self._repair_from(peer))

    # --- what is done every second

    def tick(self) -> None:
        """Publish a digest.  Raises whatever ended a repair that should not have ended."""
        self._digests += 1
        digest = self._state.digest(
            self._digests, self._publisher.offered, self._http_port, self._url
        )
        self._publisher.offer_digest(replica_digest.encode(digest))
        for peer in self._peers.values():
            peer.subscriber.look_at_connection()
            if peer.task is not None and peer.task.done():
                task, peer.task = peer.task, None
                with suppress(asyncio.CancelledError):
                    task.result()

    # --- repair

    async def _repair_from(self, peer: _Peer) -> None:
        """Fetch the list of a peer and follow it."""
        agreement = peer.agreement
        assert agreement.router_id is not None
        peer.repairs += 1
        repair = Repair(self._state, agreement.router_id, monotonic())
        try:
            async with asyncio.timeout(REPAIR_S_MAX):
                await _follow(repair, _url_of(peer))
        except (NoList, AnotherProcess, TimeoutError) as error:
            peer.failed_repairs += 1
            peer.last_error = str(error) or f"no complete list after {REPAIR_S_MAX:g} s"
            agreement.repair_failed(monotonic())
        else:
            agreement.repair_ended(repair.done.progress, monotonic())
        _add(peer.done, repair.done)
        fields = {"endpoint": peer.subscriber.endpoint, "error": peer.last_error}
        fields |= {name: getattr(repair.done, name) for name in Repaired.__slots__}
        log.info("replica repair", extra={"fields": fields})

    # --- views

    def status(self) -> ReplicaStatus:
        now = monotonic()
        return ReplicaStatus(
            enabled=True,
            router_id=self._state.router_id,
            repair=self._repair,
            frames_out=self._publisher.sent,
            frames_dropped_out=self._publisher.dropped,
            frames_queued=self._publisher.queued,
            peers=[_shown(self._peers[endpoint], now) for endpoint in self.peers()],
        )


async def _follow(repair: Repair, url: str) -> None:
    walk = repair.walk()
    wanted = next(walk)
    while True:
        asked_at = monotonic()
        page = await asyncio.to_thread(fetch_page, url, wanted)
        try:
            wanted = walk.send(Answer(page, asked_at, monotonic()))
        except StopIteration:
            return


def _url_of(peer: _Peer) -> str:
    """What the peer says, else its HTTP port on the host that its events come from."""
    agreement = peer.agreement
    if agreement.url is not None:
        return agreement.url
    parts = urlsplit(peer.subscriber.endpoint)
    host = parts.hostname if parts.scheme == "tcp" and parts.hostname else "127.0.0.1"
    return f"http://[{host}]:{agreement.port}" if ":" in host else f"http://{host}:{agreement.port}"


def _refuse(peer: _Peer, reason: str, error: DecodeError) -> None:
    peer.dropped[reason] += 1
    peer.last_error = str(error)


def _end(peer: _Peer) -> None:
    peer.subscriber.close()
    if peer.task is not None:
        peer.task.cancel()


def _add(total: Repaired, more: Repaired) -> None:
    for name in Repaired.__slots__:
        setattr(total, name, getattr(total, name) + getattr(more, name))


def _shown(peer: _Peer, now: float) -> ReplicaPeer:
    subscriber, agreement, done = peer.subscriber, peer.agreement, peer.done
    subscriber.look_at_connection()
    last = peer.last_frame_at
    reservations, prefill_tokens = agreement.difference
    return ReplicaPeer(
        endpoint=subscriber.endpoint,
        connected=subscriber.connected,
        router_id=agreement.router_id,
        frames_in=subscriber.frames,
        applied=peer.applied,
        digests=agreement.digests,
        lost=agreement.lost,
        dropped=dict(sorted((subscriber.dropped + peer.dropped).items())),
        seconds_since_last_frame=None if last is None else round(max(0.0, now - last), 3),
        divergence_reservations=reservations,
        divergence_prefill_tokens=prefill_tokens,
        divergence=[
            ReplicaDifference(
                model_name=key.model_name,
                tenant_id=key.tenant_id,
                reservations=difference.reservations,
                prefill_tokens=difference.prefill_tokens,
            )
            for key, difference in sorted(agreement.differences.items())
        ],
        repairs=ReplicaRepairs(
            runs=peer.repairs,
            failed=peer.failed_repairs,
            added=done.added,
            dropped=done.dropped,
            changed=done.changed,
            repeated=done.repeated,
            refused=done.refused,
        ),
        last_error=peer.last_error,
    )
