"""EDGE: the replica plane of one process: its publisher, its peers, and what is known of each.

Brings what peers say into the core, tells them how far prefills are, publishes a digest with every
tick, and carries out repairs that the core finds due.  Everything runs on the event loop but the
fetching of lists.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

import zmq

from indexer.endpoints import endpoint_error
from indexer.sockets.names import Names
from select_service.bodies.replicas import ReplicaStatus
from select_service.core.replicas import digest as replica_digest
from select_service.core.replicas import events as replica_events
from select_service.core.replicas import progress as replica_progress
from select_service.core.replicas.digest import Receipt
from select_service.core.replicas.events import FrameError, LoadEvent
from select_service.core.replicas.repair import AnotherProcess, PageAnswer, Repair, Repaired
from select_service.core.replicas.state import ReplicaState
from select_service.destinations import Destinations
from select_service.edge.http_client import HttpClient
from select_service.edge.replicas.log import OutLog, PeerLog
from select_service.edge.replicas.peer import ListPlace, Peer, list_place, shown
from select_service.edge.replicas.peer_list import NoList, fetch_page
from select_service.edge.replicas.publisher import ReplicaPublisher
from select_service.edge.replicas.subscriber import Receive, ReplicaSubscriber
from select_service.edge.supervised import Callbacks
from select_service.errors import BadRequest, CapacityExceeded, DestinationRefused

if TYPE_CHECKING:
    from select_service.access.plane_keys import PlaneKeys
    from select_service.edge.file_changes import FollowedFiles
    from select_service.edge.replicas.keyed import Keyed

PEERS_MAX = 64
CONNECT_ANEW_S = 10.0
"""A peer that is not connected for so long, or mute, gets a new socket, whatever the old one still
tries."""
REPAIR_S_MAX = 120.0
"""A list that takes longer is given up; the next repair begins anew."""

log = logging.getLogger("select_service.replicas")

T = TypeVar("T")


class ReplicaSync:
    """Belongs to the thread of the event loop."""

    def __init__(
        self,
        state: ReplicaState,
        publisher: ReplicaPublisher,
        callbacks: Callbacks,
        names: Names,
        *,
        repair: bool,
        url: str | None,
        destinations: Destinations | None = None,
        keys: "PlaneKeys | None" = None,
        believes_urls: bool = False,
    ) -> None:
        """repair: fetch what is missing from peers.  url: where they find our HTTP interface.

        destinations: where peers may be, judged before they are registered
        keys: None: plain.  believes_urls: without keys, lists are fetched wherever a peer says.
        """
        self._state = state
        self._publisher = publisher
        self._callbacks = callbacks
        self._names = names
        self._repair = repair
        self._url = url
        self._destinations = destinations or Destinations()
        self._believes_urls = believes_urls
        self._keyed = None if keys is None else _keyed(keys, self._keys_changed)
        self._http_port, self._scheme = 0, "http"
        self._digests = self._n_ranks = 0
        self._peers: dict[str, Peer] = {}
        self._out_log = OutLog()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._http: HttpClient | None = None

    def bind(self, port: int, address: str = "127.0.0.1") -> None:
        """address: numeric.  Raises zmq.ZMQError."""
        options = {} if self._keyed is None else self._keyed.admit(self._context, self._callbacks)
        host = f"[{address}]" if ":" in address else address
        self._publisher.bind(self._context, f"tcp://{host}:{port}", options)

    def start(self, http_port: int, http: HttpClient, *, is_tls: bool = False) -> None:
        """Publish and receive from now on; to be called on the event loop.

        http_port: of our own interface, is_tls: what it speaks
        http: how lists of peers are asked for
        """
        self._http_port, self._http, self._scheme = http_port, http, "https" if is_tls else "http"
        self._loop = asyncio.get_running_loop()
        self._publisher.start(self._loop)
        if self._keyed is not None:
            self._keyed.start()
        for peer in self._peers.values():
            peer.subscriber.start(self._loop)

    def close(self) -> None:
        """Leave at once."""
        for peer in self._peers.values():
            peer.end()
        self._publisher.close()
        if self._keyed is not None:
            self._keyed.close()
        self._context.destroy(linger=0)

    # --- peers

    def peers(self) -> list[str]:
        """Their endpoints, sorted."""
        return sorted(self._peers)

    def background(self) -> list[asyncio.Task[None]]:
        """What runs until `close`."""
        return [] if self._keyed is None else self._keyed.background()

    def followed(self) -> "list[FollowedFiles]":
        """Files that are read again when they change."""
        return [] if self._keyed is None else [self._keyed.files]

    def register(self, endpoint: str, name: str | None = None) -> bool:
        """Listen to a peer.  False: it was known.

        Raises BadRequest, DestinationRefused, CapacityExceeded.

        name: the replica that has to answer there; None: the one that the endpoint belongs to
        """
        error = endpoint_error(endpoint) or self._unknown(endpoint, name)
        if error is not None:
            raise BadRequest(error)
        return self.expect(endpoint, name)

    def _unknown(self, endpoint: str, name: str | None) -> str | None:
        if self._keyed is None:
            return None if name is None else f"replicas have no keys here, so none is `{name}`"
        if self._keyed.find(endpoint, name) is not None:
            return None
        if name is None:
            return f"no replica of the file of keys has the endpoint `{endpoint}`; name the replica"
        return f"no replica of the file of keys has the name `{name}`"

    def expect(self, endpoint: str, name: str | None = None) -> bool:
        """As `register`, for a well-formed endpoint; where keys are used, also one that no replica
        of the file has: it is not listened to before one has."""
        if endpoint in self._peers:
            return False
        refusal = self._destinations.refusal_of_endpoint(endpoint)
        if refusal is not None:
            raise DestinationRefused(f"replica peer `{endpoint}` is refused: {refusal}")
        if len(self._peers) >= PEERS_MAX:
            raise CapacityExceeded(f"{PEERS_MAX} peers are registered, the most there may be")
        now = monotonic()
        receivers: dict[bytes, Receive] = {
            replica_events.TOPIC: lambda payload: self._event_came(peer, payload),
            replica_digest.TOPIC: lambda payload: self._digest_came(peer, payload),
            replica_progress.TOPIC: lambda payload: self._progress_came(peer, payload),
        }
        subscriber = ReplicaSubscriber(
            endpoint, receivers, self._callbacks, self._names, lambda: self._is_ready(peer)
        )
        peer = Peer(subscriber, PeerLog(endpoint, now), tried_at=now, name=name)
        try:
            if self._may_connect(peer):
                peer.subscriber.connect(self._context)
        except zmq.ZMQError:
            raise BadRequest(_unconnectable(endpoint)) from None
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
        peer.end()
        log.info("replica peer deregistered", extra={"fields": {"endpoint": endpoint}})
        return True

    def _may_connect(self, peer: Peer) -> bool:
        """Is it known who has to answer there, where that matters?"""
        if self._keyed is None:
            return True
        peer.replica = self._keyed.find(peer.subscriber.endpoint, peer.name)
        if peer.replica is not None:
            peer.subscriber.server = self._keyed.server(peer.replica)
        return peer.replica is not None

    def _keys_changed(self, gone: frozenset[str]) -> None:
        """Connections of keys that went end; those to replicas with another key are made anew."""
        if gone:
            self._publisher.bind_anew()
        for peer in self._peers.values():
            old = peer.replica
            if not self._may_connect(peer):
                peer.end()
            elif old is None or peer.replica is None or old.public_key != peer.replica.public_key:
                peer.subscriber.connect_anew(self._context)

    # --- what comes

    def _is_its_own(self, peer: Peer, router_id: int) -> bool:
        """A replica speaks for itself alone.  False, and counted: for another one."""
        if peer.may_say(router_id):
            return True
        peer.dropped["origin"] += 1
        return False

    def _event_came(self, peer: Peer, payload: bytes) -> None:
        now = peer.last_frame_at = monotonic()
        event = _decoded(replica_events.decode, payload, peer, "decode", now)
        if event is None or not self._is_its_own(peer, event.router_id):
            return
        peer.hear(event.router_id)
        peer.agreement.event_came(event.router_id)
        if self._state.may_apply(event):
            self._apply(peer, event, now)
        else:
            peer.held_back = event

    def _is_ready(self, peer: Peer) -> bool:
        """May the next message of the peer be taken?  An event that is held back comes first."""
        event = peer.held_back
        if event is not None:
            if not self._state.may_apply(event):
                return False
            peer.held_back = None
            self._apply(peer, event, monotonic())
        return self._state.ledger.keeps_up_everywhere()

    def _apply(self, peer: Peer, event: LoadEvent, now: float) -> None:
        reason = self._state.apply(event, now)
        if reason is None:
            peer.applied += 1
        else:
            peer.dropped[reason] += 1

    def _digest_came(self, peer: Peer, payload: bytes) -> None:
        now = peer.last_frame_at = monotonic()
        digest = _decoded(replica_digest.decode, payload, peer, "digest", now)
        if digest is None or not self._is_its_own(peer, digest.router_id):
            return
        peer.hear(digest.router_id)
        reason = self._state.compare(digest, peer.agreement, now)
        if reason is not None:
            peer.dropped[reason] += 1
            return
        own_id = self._state.router_id
        arrived = [heard.messages for heard in digest.heard if heard.router_id == own_id]
        peer.frames_out = max(arrived, default=0)
        peer.log.divergence(peer.agreement)
        if self._repair and peer.agreement.repair_due(now) and peer.task is None:
            peer.task = asyncio.create_task(self._repair_from(peer))

    def _progress_came(self, peer: Peer, payload: bytes) -> None:
        now = peer.last_frame_at = monotonic()
        progress = _decoded(replica_progress.decode, payload, peer, "progress", now)
        if progress is None or not self._is_its_own(peer, progress.router_id):
            return
        if self._state.progress.hear(progress):
            peer.progress += 1
        else:
            peer.dropped["own"] += 1

    # --- what is done every tenth of a second

    def tell_progress(self, now: float) -> bool:
        """One turn of telling peers how far prefills are.  Returns whether there is more to do."""
        return self._state.progress.step(now, self._publisher.offer_progress)

    # --- what is done every second

    def tick(self) -> None:
        """Publish a digest.  Raises whatever ended a repair that should not have ended."""
        now = monotonic()
        self._digests += 1
        heard = [Receipt(p.speaker, p.heard) for p in self._peers.values() if p.speaker is not None]
        digest = self._state.digest(
            self._digests, self._publisher.offered, self._http_port, self._url, heard
        )
        self._publisher.offer_digest(replica_digest.encode(digest))
        self._out_log.drops(self._publisher.dropped, self._publisher.last_drop, now)
        n_ranks, self._n_ranks = self._n_ranks, self._state.n_ranks()
        if self._n_ranks > n_ranks:
            for peer in self._peers.values():
                peer.agreement.catalog_grew()
        self._publisher.subscribers()  # so that what libzmq tells of connections does not pile up
        for peer in self._peers.values():
            self._look_at(peer, now)
            if peer.task is not None and peer.task.done():
                task, peer.task = peer.task, None
                with suppress(asyncio.CancelledError):
                    task.result()

    def _look_at(self, peer: Peer, now: float) -> None:
        peer.subscriber.look_at_connection()
        peer.log.connection(peer.subscriber.connected, now)
        if (refusal := peer.subscriber.refusal) is not None:
            peer.failed(refusal, now)
        if peer.subscriber.connected and not peer.is_mute(now):
            peer.tried_at = now
        elif now - peer.tried_at >= CONNECT_ANEW_S:
            peer.tried_at = now
            if self._may_connect(peer):
                peer.subscriber.connect_anew(self._context)
        peer.log.drops(peer.all_dropped(), peer.last_error, now)
        if peer.speaker == self._state.router_id:
            peer.log.is_self(now)

    # --- repair

    async def _repair_from(self, peer: Peer) -> None:
        """Fetch the list of a peer and follow it."""
        agreement = peer.agreement
        assert agreement.router_id is not None
        assert self._http is not None
        peer.repairs += 1
        repair = Repair(self._state, agreement.router_id, monotonic())
        try:
            async with asyncio.timeout(REPAIR_S_MAX):
                await _follow(repair, self._list_of(peer), self._http)
        except (NoList, AnotherProcess, TimeoutError) as error:
            reason = str(error) or f"no complete list after {REPAIR_S_MAX:g} s"
            peer.failed_repairs += 1
            peer.failed(reason, monotonic())
            peer.log.repair_failed(reason)
            agreement.repair_failed(monotonic())
        else:
            peer.log.repair_ended(repair.done)
            agreement.repair_ended(repair.done.progress, monotonic())
        _add(peer.done, repair.done)

    def _list_of(self, peer: Peer) -> ListPlace:
        place = list_place(peer, (self._scheme, self._http_port), believes_urls=self._believes_urls)
        said = peer.agreement.url
        if said is not None and place.url != said:
            peer.log.url_not_believed(said, place.url, monotonic())
        return place

    # --- views

    def status(self) -> ReplicaStatus:
        now, router_id = monotonic(), self._state.router_id
        return ReplicaStatus(
            enabled=True,
            secured=self._keyed is not None,
            keys_error=None if self._keyed is None else self._keyed.error,
            router_id=router_id,
            repair=self._repair,
            frames_out=self._publisher.sent,
            digests_out=self._publisher.digests_sent,
            progress_out=self._publisher.progress_sent,
            frames_dropped_out=self._publisher.dropped,
            frames_queued=self._publisher.queued,
            subscribers=self._publisher.subscribers(),
            refused=self._publisher.refused,
            peers=[shown(self._peers[endpoint], router_id, now) for endpoint in self.peers()],
        )


def _keyed(keys: "PlaneKeys", changed: Callable[[frozenset[str]], None]) -> "Keyed":
    from select_service.edge.replicas.keyed import Keyed  # nobody else needs ZAP

    return Keyed(keys, changed)


async def _follow(repair: Repair, place: ListPlace, http: HttpClient) -> None:
    walk = repair.walk()
    wanted = next(walk)
    while True:
        answer = None
        if wanted is None:
            await asyncio.sleep(0)
        else:
            asked_at = monotonic()
            page = await fetch_page(http, place.url, wanted, with_key=place.with_key)
            answer = PageAnswer(page, asked_at, monotonic())
        try:
            wanted = walk.send(answer)
        except StopIteration:
            return


def _unconnectable(endpoint: str) -> str:
    """Why libzmq refuses an endpoint that is well formed."""
    text = f"failed to register replica peer `{endpoint}`"
    if endpoint.startswith("tcp://*:"):
        text += ": nothing can be connected to `*`; give the host name or address of the peer"
    return text


def _add(total: Repaired, more: Repaired) -> None:
    for name in Repaired.__slots__:
        setattr(total, name, getattr(total, name) + getattr(more, name))


def _decoded(
    decode: Callable[[bytes], T], payload: bytes, peer: Peer, reason: str, now: float
) -> T | None:
    """None for a message that cannot be read, which is counted under `reason`."""
    try:
        return decode(payload)
    except FrameError as error:
        peer.dropped[reason] += 1
        peer.failed(str(error), now)
        return None
