"""Cleared caches over the connections of replica synchronisation."""

import logging
from collections.abc import Callable
from time import monotonic

from select_service.adapters.replicas.event_publisher import ReplicaPublisher
from select_service.adapters.replicas.event_subscriber import Receive
from select_service.adapters.replicas.peer_state import ReplicaPeerState
from select_service.core.replication.cleared_caches import (
    CLEARED_TOPIC,
    ClearedCaches,
    decode_clears,
)
from select_service.core.replication.load_events import PeerFrameError

log = logging.getLogger("select_service.replicas")


class ClearSync:
    """Part of replica synchronisation for cleared caches.  Belongs to the event loop's thread."""

    def __init__(self, caches: ClearedCaches, publisher: ReplicaPublisher) -> None:
        self._caches, self._publisher = caches, publisher

    def receivers(self, peer: Callable[[], ReplicaPeerState]) -> dict[bytes, Receive]:
        """Return the handler of a peer's payloads, by topic."""
        return {CLEARED_TOPIC: lambda payload: self._handle_clears(peer(), payload)}

    def _handle_clears(self, peer: ReplicaPeerState, payload: bytes) -> None:
        now = peer.last_frame_at = monotonic()
        try:
            message = decode_clears(payload)
        except PeerFrameError as error:
            peer.dropped["cleared"] += 1
            peer.record_error(str(error), now)
            return
        if not peer.may_send_as(message.router_id):
            peer.dropped["origin"] += 1
        elif (reason := self._caches.receive(message, now)) is not None:
            peer.dropped[reason] += 1

    def run_turn(self, now: float) -> None:
        """Apply some clears of peers, and publish due clears of this replica."""
        if n := self._caches.run_turn(now):
            log.info("caches cleared by replicas", extra={"fields": {"clears": n}})
        payload = self._caches.make_message(now)
        if payload is not None and self._publisher.is_subscribed(CLEARED_TOPIC):
            self._publisher.offer_clears(payload)
