"""Sessions over the connections of replica synchronisation: messages, digests and repairs."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from select_service.adapters.http_get import HttpClient
from select_service.adapters.replicas.event_publisher import ReplicaPublisher
from select_service.adapters.replicas.event_subscriber import Receive
from select_service.adapters.replicas.peer_list import PeerListUnavailable, walk_pages
from select_service.adapters.replicas.peer_state import PeerListLocation, ReplicaPeerState
from select_service.adapters.replicas.session_list import fetch_session_page
from select_service.core.identity import PartitionKey
from select_service.core.load.ledger import Ledger
from select_service.core.replication.load_events import PeerFrameError
from select_service.core.replication.repair import UnexpectedProcess
from select_service.core.replication.session_events import SESSION_TOPIC, decode_session_event
from select_service.core.replication.session_exchange import (
    SESSION_DIGEST_TOPIC,
    SessionExchange,
    decode_session_digest,
)
from select_service.core.replication.session_repair import (
    SessionListAnswer,
    SessionRepair,
    SessionRepairResult,
)
from select_service.core.sessions.session_pages import SessionFilter

REPAIR_S_MAX = 60.0
"""Time limit of a repair, in seconds."""


class SessionSync:
    """Session part of replica synchronisation.  Belongs to the thread of the event loop."""

    def __init__(
        self, exchange: SessionExchange, publisher: ReplicaPublisher, *, repairs: bool
    ) -> None:
        """repairs: whether sessions of peers are read where digests differ"""
        self._exchange, self._publisher, self._repairs = exchange, publisher, repairs

    def start_sending(self, ledger: Ledger) -> None:
        """Publish uses of sessions from now on."""
        publish = self._publisher.offer_session
        self._exchange.start_sending(ledger, publish, repairs=self._repairs)

    def receivers(self, peer: Callable[[], ReplicaPeerState]) -> dict[bytes, Receive]:
        """Return the handlers of a peer's payloads, by topic."""
        return {
            SESSION_TOPIC: lambda payload: self._handle_event(peer(), payload),
            SESSION_DIGEST_TOPIC: lambda payload: self._handle_digest(peer(), payload),
        }

    def _handle_event(self, peer: ReplicaPeerState, payload: bytes) -> None:
        now = peer.last_frame_at = monotonic()
        try:
            event = decode_session_event(payload)
        except PeerFrameError as error:
            peer.dropped["session"] += 1
            peer.record_error(str(error), now)
            return
        reason = self._exchange.apply_event(event, now)
        if reason is None:
            peer.sessions_applied += 1
        else:
            peer.dropped[f"session_{reason}"] += 1

    def _handle_digest(self, peer: ReplicaPeerState, payload: bytes) -> None:
        now = peer.last_frame_at = monotonic()
        try:
            digest = decode_session_digest(payload)
        except PeerFrameError as error:
            peer.dropped["session"] += 1
            peer.record_error(str(error), now)
            return
        if peer.may_send_as(digest.router_id):
            peer.session_agreement.record_digest(digest, self._exchange, now)
        else:
            peer.dropped["origin"] += 1

    def publish_digest(self) -> None:
        """Publish the digest of the next scopes, if there are sessions."""
        is_read = self._publisher.is_subscribed(SESSION_DIGEST_TOPIC)
        if is_read and len(self._exchange.directory):
            self._publisher.offer_session_digest(self._exchange.make_digest(monotonic()))

    def check_peer(
        self,
        peer: ReplicaPeerState,
        locate_list: Callable[[ReplicaPeerState], PeerListLocation],
        http: HttpClient | None,
    ) -> None:
        """Start a due repair from a peer; raise the exception of the last repair."""
        if peer.session_task is not None and peer.session_task.done():
            task, peer.session_task = peer.session_task, None
            with suppress(asyncio.CancelledError):
                task.result()
        due = peer.session_agreement.due_repair(monotonic()) if self._repairs else None
        if due is not None and http is not None and peer.session_task is None:
            place = locate_list(peer)
            peer.session_task = asyncio.create_task(self._repair_from(peer, place, http, due))

    async def _repair_from(
        self,
        peer: ReplicaPeerState,
        place: PeerListLocation,
        http: HttpClient,
        due: tuple[PartitionKey, int],
    ) -> None:
        agreement = peer.session_agreement
        assert agreement.router_id is not None
        repair = SessionRepair(self._exchange, agreement.router_id, *due)
        result: SessionRepairResult | None = None
        try:
            async with asyncio.timeout(REPAIR_S_MAX):
                await _run_repair(repair, place, http)
            result = repair.result
        except (PeerListUnavailable, UnexpectedProcess, TimeoutError) as error:
            peer.record_error(str(error) or f"no sessions after {REPAIR_S_MAX:g} s", monotonic())
        agreement.record_repair(due[0], result, monotonic())


async def _run_repair(repair: SessionRepair, place: PeerListLocation, http: HttpClient) -> None:
    async def fetch(wanted: SessionFilter) -> SessionListAnswer:
        page = await fetch_session_page(http, place.url, wanted, with_key=place.with_key)
        return SessionListAnswer(page, monotonic())

    await walk_pages(repair.run_repair(), fetch)
