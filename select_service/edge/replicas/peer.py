"""EDGE: what one process knows of one replica that it listens to, and how the status shows it."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

from select_service.access.replica_keys import ReplicaKey
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
    name: as which replica it was registered; replica: whose key has to answer there.  Both None
    where no keys are used.
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
    name: str | None = None
    replica: ReplicaKey | None = None

    def may_say(self, router_id: int) -> bool:
        """May messages with this router id come from it?  Nobody can tell where there is no key."""
        return self.replica is None or self.replica.may_be(router_id)

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
        """Nothing of what it says is followed any more, until it is connected to again."""
        self.subscriber.close()
        self.held_back = None
        if self.task is not None:
            self.task.cancel()


class ListPlace(NamedTuple):
    """Where the list of a peer is.  with_key: may what answers there have our key?"""

    url: str
    with_key: bool


def list_place(peer: Peer, own: tuple[str, int], *, believes_urls: bool) -> ListPlace:
    """Of a peer with a key: what our own configuration says, and nothing that came from the peer.

    Without keys nobody knows who speaks.  So a URL in a digest counts on the host of the peer's
    endpoint alone, unless all are believed; that is never reason enough to send our key elsewhere,
    nor over plain HTTP where we speak TLS ourselves.

    own: scheme and port of our HTTP interface, which are the others' where nothing else is said
    """
    told = urlsplit(peer.subscriber.endpoint)
    is_named = told.scheme == "tcp" and told.hostname is not None
    host = told.hostname if is_named and told.hostname else "127.0.0.1"
    if peer.replica is not None:
        return ListPlace(peer.replica.url or _url(*own, host), with_key=True)
    said = peer.agreement.url
    is_there = said is None or urlsplit(said).hostname == host
    if said is not None and (is_there or believes_urls):
        is_as_secret = own[0] == "http" or urlsplit(said).scheme == "https"
        return ListPlace(said, is_named and is_there and is_as_secret)
    return ListPlace(_url(own[0], peer.agreement.port, host), is_named)


def _url(scheme: str, port: int, host: str) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def shown(peer: Peer, own_router_id: int, now: float) -> ReplicaPeer:
    """The peer's part of the status."""
    subscriber, agreement = peer.subscriber, peer.agreement
    subscriber.look_at_connection()
    reservations, prefill_tokens = agreement.difference
    return ReplicaPeer(
        endpoint=subscriber.endpoint,
        replica=None if peer.replica is None else peer.replica.name,
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
