"""EDGE: what one process knows of one replica that it listens to, and how the status shows it."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from select_service.bodies.replicas import ReplicaDifference, ReplicaPeer, ReplicaRepairs
from select_service.core.replicas.agreement import Agreement
from select_service.core.replicas.events import LoadEvent
from select_service.core.replicas.repair import Repaired
from select_service.edge.replicas.log import PeerLog
from select_service.edge.replicas.subscriber import ReplicaSubscriber

MUTE_S = 10.0
"""A peer that sends digests and was not heard for so long has a connection that leads nowhere."""


@dataclass(slots=True)
class Peer:
    """`dropped` counts messages that were read and changed nothing, by reason.

    speaker: router id in its last readable message; heard: messages with it since it first came.
    frames_out: how many messages of ours the peer says have arrived.
    tried_at: when its connection was last seen in order, or got a new socket.
    held_back: its last event, while following that would not be a bounded step.
    """

    subscriber: ReplicaSubscriber
    log: PeerLog
    tried_at: float
    agreement: Agreement = field(default_factory=Agreement)
    dropped: Counter[str] = field(default_factory=Counter)
    applied: int = 0
    progress: int = 0
    speaker: int | None = None
    heard: int = 0
    frames_out: int | None = None
    last_frame_at: float | None = None
    repairs: int = 0
    failed_repairs: int = 0
    last_error: str | None = None
    last_error_at: float | None = None
    done: Repaired = field(default_factory=Repaired)
    task: asyncio.Task[None] | None = None
    held_back: LoadEvent | None = None

    def hear(self, router_id: int) -> None:
        """A readable message came."""
        if router_id != self.speaker:
            self.speaker, self.heard = router_id, 0
        self.heard += 1

    def is_mute(self, now: float) -> bool:
        """Should it have been heard?  Whoever sends digests does so every second."""
        at = self.last_frame_at
        return self.agreement.digests > 0 and at is not None and at + MUTE_S <= now

    def failed(self, error: str, now: float) -> None:
        self.last_error, self.last_error_at = error, now

    def all_dropped(self) -> dict[str, int]:
        return dict(sorted((self.subscriber.dropped + self.dropped).items()))

    def end(self) -> None:
        self.subscriber.close()
        if self.task is not None:
            self.task.cancel()


def url_of(peer: Peer) -> str:
    """What the peer says, else its HTTP port on the host that its events come from."""
    agreement = peer.agreement
    if agreement.url is not None:
        return agreement.url
    parts = urlsplit(peer.subscriber.endpoint)
    host = parts.hostname if parts.scheme == "tcp" and parts.hostname else "127.0.0.1"
    return f"http://[{host}]:{agreement.port}" if ":" in host else f"http://{host}:{agreement.port}"


def is_where_told(peer: Peer) -> bool:
    """Does it answer on the host that we were told of?  What a peer says of itself is not believed
    so far that a key would be sent there."""
    told = urlsplit(peer.subscriber.endpoint)
    return told.scheme == "tcp" and told.hostname == urlsplit(url_of(peer)).hostname


def shown(peer: Peer, own_router_id: int, now: float) -> ReplicaPeer:
    """The peer's part of the status."""
    subscriber, agreement = peer.subscriber, peer.agreement
    subscriber.look_at_connection()
    reservations, prefill_tokens = agreement.difference
    return ReplicaPeer(
        endpoint=subscriber.endpoint,
        is_self=peer.speaker == own_router_id,
        connected=subscriber.connected,
        router_id=agreement.router_id,
        frames_in=subscriber.frames,
        frames_out=peer.frames_out,
        applied=peer.applied,
        digests=agreement.digests,
        progress=peer.progress,
        lost=agreement.lost,
        dropped=peer.all_dropped(),
        seconds_since_last_frame=_age(peer.last_frame_at, now),
        divergence_reservations=reservations,
        divergence_prefill_tokens=prefill_tokens,
        divergence=_differences(agreement),
        repairs=_repairs(peer),
        last_error=peer.last_error,
        seconds_since_last_error=_age(peer.last_error_at, now),
    )


def _age(at: float | None, now: float) -> float | None:
    return None if at is None else round(max(0.0, now - at), 3)


def _differences(agreement: Agreement) -> list[ReplicaDifference]:
    return [
        ReplicaDifference(
            model_name=key.model_name,
            tenant_id=key.tenant_id,
            reservations=difference.reservations,
            prefill_tokens=difference.prefill_tokens,
        )
        for key, difference in sorted(agreement.differences.items())
    ]


def _repairs(peer: Peer) -> ReplicaRepairs:
    done = peer.done
    return ReplicaRepairs(
        runs=peer.repairs,
        failed=peer.failed_repairs,
        added=done.added,
        dropped=done.dropped,
        changed=done.changed,
        repeated=done.repeated,
        refused=done.refused,
    )
