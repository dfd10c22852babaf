"""State of a replica peer, and its presentation in the status."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

from select_service.adapters.replicas.event_subscriber import ReplicaSubscriber
from select_service.adapters.replicas.replica_log import ReplicaPeerLog
from select_service.auth.replica_keys_schema import ReplicaKey
from select_service.core.replication.load_events import LoadEvent
from select_service.core.replication.peer_agreement import PeerAgreement
from select_service.core.replication.repair import RepairResult
from select_service.core.replication.session_repair import SessionAgreement
from select_service.schemas.replicas import ReplicaDifference, ReplicaPeer, ReplicaRepairs

SILENT_S = 10.0
"""Seconds without a message after which the connection of a digest-sending peer counts as dead."""


@dataclass(slots=True)
class ReplicaPeerState:
    """Replica peer.

    dropped: number of parsed messages without effect, by reason
    sender_router_id: router id of the last readable message
    messages_received: number of messages with this router id since it first appeared
    frames_out: number of this process's messages that the peer has received, by its digest
    tried_at: time when the connection was last healthy or got a new socket
    held_back: last event, while applying it would exceed a bounded step
    name: registered replica name; None without keys
    replica: expected replica with its key; None without keys
    sessions_applied: number of messages about sessions that had an effect
    """

    subscriber: ReplicaSubscriber
    log: ReplicaPeerLog
    tried_at: float
    agreement: PeerAgreement = field(default_factory=PeerAgreement)
    dropped: Counter[str] = field(default_factory=Counter)
    applied: int = 0
    progress: int = 0
    sender_router_id: int | None = None
    messages_received: int = 0
    frames_out: int | None = None
    last_frame_at: float | None = None
    repairs: int = 0
    failed_repairs: int = 0
    last_error: str | None = None
    last_error_at: float | None = None
    repaired: RepairResult = field(default_factory=RepairResult)
    task: asyncio.Task[None] | None = None
    held_back: LoadEvent | None = None
    name: str | None = None
    replica: ReplicaKey | None = None
    session_agreement: SessionAgreement = field(default_factory=SessionAgreement)
    sessions_applied: int = 0
    session_task: asyncio.Task[None] | None = None

    def may_send_as(self, router_id: int) -> bool:
        """Return whether the peer may send messages of this router id; always True without keys."""
        return self.replica is None or self.replica.owns_router_id(router_id)

    def count_message(self, router_id: int) -> None:
        """Count a readable message."""
        if router_id != self.sender_router_id:
            self.sender_router_id, self.messages_received = router_id, 0
        self.messages_received += 1

    def is_silent(self, now: float) -> bool:
        """Return whether a message is overdue: peers send digests every second."""
        at = self.last_frame_at
        return self.agreement.digests > 0 and at is not None and at + SILENT_S <= now

    def record_error(self, error: str, now: float) -> None:
        """Record an error for the status."""
        self.last_error, self.last_error_at = error, now

    def dropped_by_reason(self) -> dict[str, int]:
        """Return the number of dropped messages by reason."""
        return dict(sorted((self.subscriber.dropped + self.dropped).items()))

    def stop_following(self) -> None:
        """Close the connection and cancel the repair.

        Messages are ignored until the next connect.
        """
        self.subscriber.close()
        self.held_back = None
        for task in (self.task, self.session_task):
            if task is not None:
                task.cancel()


class PeerListLocation(NamedTuple):
    """URL of a peer's reservation list.

    with_key: whether the API key may be sent there
    """

    url: str
    with_key: bool


def peer_list_location(
    peer: ReplicaPeerState, own: tuple[str, int], *, trusts_urls: bool
) -> PeerListLocation:
    """Return where the list of a peer is fetched.

    A peer with a key uses the URL of the own configuration, and nothing that the peer has sent.
    Without keys, senders are not authenticated.  A URL in a digest is then used only if its host is
    the host of the peer's endpoint, unless all URLs are trusted.  Even a trusted URL on another
    host never receives the API key, and plain HTTP does not either if this process uses TLS.
    own: scheme and port of the own HTTP interface, the defaults for peers
    """
    told = urlsplit(peer.subscriber.endpoint)
    is_named = told.scheme == "tcp" and told.hostname is not None
    host = told.hostname if is_named and told.hostname else "127.0.0.1"
    if peer.replica is not None:
        return PeerListLocation(peer.replica.url or _make_url(*own, host), with_key=True)
    said = peer.agreement.url
    # A digest is unauthenticated without keys: its URL must not redirect this process elsewhere.
    is_there = said is None or urlsplit(said).hostname == host
    if said is not None and (is_there or trusts_urls):
        is_as_secret = own[0] == "http" or urlsplit(said).scheme == "https"
        return PeerListLocation(said, is_named and is_there and is_as_secret)
    return PeerListLocation(_make_url(own[0], peer.agreement.port, host), is_named)


def _make_url(scheme: str, port: int, host: str) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def peer_status(peer: ReplicaPeerState, own_router_id: int, now: float) -> ReplicaPeer:
    """Return the status of a peer."""
    subscriber, agreement = peer.subscriber, peer.agreement
    subscriber.update_connection()
    reservations, prefill_tokens = agreement.total_difference
    return ReplicaPeer(
        endpoint=subscriber.endpoint,
        replica=None if peer.replica is None else peer.replica.name,
        is_self=peer.sender_router_id == own_router_id,
        connected=subscriber.connected,
        router_id=agreement.router_id,
        frames_in=subscriber.frames,
        frames_out=peer.frames_out,
        applied=peer.applied,
        digests=agreement.digests,
        progress=peer.progress,
        sessions=peer.sessions_applied,
        session_repairs=peer.session_agreement.repairs,
        sessions_repaired=peer.session_agreement.applied,
        lost=agreement.lost,
        dropped=peer.dropped_by_reason(),
        seconds_since_last_frame=_seconds_since(peer.last_frame_at, now),
        divergence_reservations=reservations,
        divergence_prefill_tokens=prefill_tokens,
        divergence=_difference_rows(agreement),
        repairs=_repair_counts(peer),
        last_error=peer.last_error,
        seconds_since_last_error=_seconds_since(peer.last_error_at, now),
    )


def _seconds_since(at: float | None, now: float) -> float | None:
    return None if at is None else round(max(0.0, now - at), 3)


def _difference_rows(agreement: PeerAgreement) -> list[ReplicaDifference]:
    return [
        ReplicaDifference(
            model_name=key.model_name,
            tenant_id=key.tenant_id,
            reservations=difference.reservations,
            prefill_tokens=difference.prefill_tokens,
        )
        for key, difference in sorted(agreement.differences.items())
    ]


def _repair_counts(peer: ReplicaPeerState) -> ReplicaRepairs:
    done = peer.repaired
    return ReplicaRepairs(
        runs=peer.repairs,
        failed=peer.failed_repairs,
        added=done.added,
        dropped=done.dropped,
        changed=done.changed,
        repeated=done.repeated,
        refused=done.refused,
    )
