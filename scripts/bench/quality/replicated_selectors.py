"""Several selectors before one fleet: each places its own clients and sends events to the others.

Events, digests and repairs are those of the core, as bytes. The simulated network delays every
message equally and loses some. KV events reach every selector.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from random import Random
from typing import Any, NamedTuple

from scripts.bench.quality.work_rule import WorkRouter
from select_service.core.load.reservations import ReservationFilter
from select_service.core.replication import digest as replica_digest
from select_service.core.replication import load_events as replica_events
from select_service.core.replication import prefill_progress as replica_progress
from select_service.core.replication.load_events import LoadEvent
from select_service.core.replication.peer_agreement import PeerAgreement
from select_service.core.replication.repair import Repair, ReservationPageAnswer, UnexpectedProcess
from select_service.sim.engine.core_router import CoreRouter
from select_service.sim.engine.kv_block_pool import Change
from select_service.sim.engine.replay_world import RankRequest, ReplayWorld

DIGEST_S = 1.0
PROGRESS_S = replica_progress.PROGRESS_S
HELP = frozenset({"work", "progress", "share"})
"""Cooperation of replicas beyond the reference's events: own work in events (always in the core),
progress of prefills, and preference for the ranks of the own share.
"""


class ReplicaNetwork(NamedTuple):
    """Network between selectors.  loss: share of lost events

    sticky: whether the requests of a session go to one selector
    help:   subset of HELP
    """

    selectors: int
    delay_s: float
    loss: float = 0.0
    sticky: bool = False
    help: frozenset[str] = HELP


class ReplicaMember:
    """A selector with its synchronization state."""

    def __init__(self, group: "ReplicatedRouter", number: int, chooser: CoreRouter) -> None:
        self.chooser = chooser
        self.replicas = chooser.selector.followers.replicas
        self._group, self._number = group, number
        self._encode = replica_events.LoadEventEncoder().encode_event
        self._agreements: dict[int, PeerAgreement] = {}
        self._repairing: set[int] = set()
        self._sent = self._digests = 0
        self.replicas.start_sending(self._broadcast)

    def _broadcast(self, event: LoadEvent) -> None:
        self._sent += 1
        self._group.broadcast(self._number, "hear", bytes(self._encode(event)))

    def hear(self, sender: int, payload: bytes, now: float) -> None:
        """Receive an event of a peer."""
        event = replica_events.decode_event(payload)
        self._agreement(sender).count_event(event.router_id)
        self.replicas.apply_event(event, now)

    def tick(self, now: float) -> None:
        """Send the digest, start repairs and share ranks, once a second."""
        while self._group.shares and self.replicas.shares.run_turn(now):
            pass
        self._digests += 1
        digest = self.replicas.make_digest(self._digests, self._sent, 1, None)
        self._group.broadcast(self._number, "compare", replica_digest.encode_digest(digest))
        for peer, agreement in self._agreements.items():
            if agreement.is_repair_due(now) and peer not in self._repairing:
                self._repair(peer, agreement, now)

    def compare(self, sender: int, payload: bytes, now: float) -> None:
        """Receive the digest of a peer."""
        self.replicas.compare_digest(
            replica_digest.decode_digest(payload), self._agreement(sender), now
        )

    def send_progress(self) -> None:
        """Send the progress of prefills, every PROGRESS_S."""
        say = partial(self._group.broadcast, self._number, "hear_progress")
        while self.replicas.progress.run_turn(self._group.now, say):
            pass

    def hear_progress(self, sender: int, payload: bytes, now: float) -> None:
        """Receive the progress of a peer's prefills."""
        self.replicas.progress.apply_progress(replica_progress.decode_progress(payload))

    def _agreement(self, peer: int) -> PeerAgreement:
        return self._agreements.setdefault(peer, PeerAgreement())

    def _repair(self, peer: int, agreement: PeerAgreement, now: float) -> None:
        self._repairing.add(peer)
        assert agreement.router_id is not None
        repair = Repair(self.replicas, agreement.router_id, now)
        walk = repair.run_repair()
        first = next(walk)
        assert first is not None
        self._request_page(peer, first, partial(self._receive_page, peer, agreement, repair, walk))

    def _request_page(
        self, peer: int, wanted: ReservationFilter, then: Callable[[ReservationPageAnswer], None]
    ) -> None:
        """Request pages over HTTP, which are never lost."""
        asked_at = self._group.now

        def read() -> None:
            page = self._group.members[peer].chooser.selector.inspection.list_reservations(
                wanted, self._group.now
            )
            self._group.carry(lambda: then(ReservationPageAnswer(page, asked_at, self._group.now)))

        self._group.carry(read)

    def _receive_page(
        self,
        peer: int,
        agreement: PeerAgreement,
        repair: Repair,
        walk: Any,
        answer: ReservationPageAnswer,
    ) -> None:
        try:
            wanted = walk.send(answer)
            while wanted is None:
                wanted = walk.send(None)
        except StopIteration:
            self._repairing.discard(peer)
            agreement.record_repair(repair.result.has_progress, self._group.now)
        except UnexpectedProcess:
            self._repairing.discard(peer)
            agreement.record_failed_repair(self._group.now)
        else:
            self._request_page(
                peer, wanted, partial(self._receive_page, peer, agreement, repair, walk)
            )


def share_of(rank: int, selectors: int) -> int:
    """Return the selector with the share of a rank, by rendezvous hashing."""
    return max(range(selectors), key=lambda number: Random(f"{rank} {number}").random())


class ReplicatedRouter:
    """Router composed of several selectors."""

    def __init__(
        self, choosers: Sequence[CoreRouter], link: ReplicaNetwork, world: ReplayWorld, seed: int
    ) -> None:
        self._world, self._link = world, link
        self._rng = Random(f"clients and losses {seed}")
        self._owner: dict[int, CoreRouter] = {}
        self.shares = "share" in link.help
        self.members = [
            ReplicaMember(self, number, chooser) for number, chooser in enumerate(choosers)
        ]
        for number, member in enumerate(self.members):
            # Staggered, as the clocks of real selectors are.
            world.schedule_every(DIGEST_S, self._tick, member, first=number / len(self.members))
            if "progress" in link.help:
                world.schedule_every(PROGRESS_S, member.send_progress)
        workers = [chooser for chooser in choosers if isinstance(chooser, WorkRouter)]
        for chooser in workers:
            self._attach_own_work(chooser, workers)

    # Network

    @property
    def now(self) -> float:
        return self._world.time

    def broadcast(self, sender: int, verb: str, payload: bytes) -> None:
        for number, member in enumerate(self.members):
            if number != sender and self._rng.random() >= self._link.loss:
                # By name, because messages carry the name of their handler.
                self.carry(partial(self._arrive, getattr(member, verb), sender, payload))

    def carry(self, action: Callable[[], None]) -> None:
        self._world.schedule_at(self.now + self._link.delay_s, action)

    def _arrive(self, verb: Callable[..., None], sender: int, payload: bytes) -> None:
        verb(sender, payload, self.now)

    def _tick(self, member: ReplicaMember) -> None:
        member.tick(self.now)

    # Exchange between policies in Python; cores exchange the same data by themselves

    def _attach_own_work(self, chooser: WorkRouter, choosers: Sequence[WorkRouter]) -> None:
        """Attach own work to the event of an admission and to the rows of a repair."""
        given = self._link.help
        if "work" in given:
            chooser.account.peers_work = choosers[0].account.peers_work
        if "share" in given:
            for rank in range(len(chooser.outside)):
                owner = choosers[share_of(rank, len(choosers))]
                chooser.outside[rank] = chooser is not owner
        if "progress" in given:
            others = [other for other in choosers if other is not chooser]
            self._world.schedule_every(PROGRESS_S, self._tell_progress, chooser, others)

    def _tell_progress(self, chooser: WorkRouter, others: Sequence[WorkRouter]) -> None:
        for name, done in chooser.account.progress():
            for other in others:
                if self._rng.random() >= self._link.loss:
                    self.carry(partial(other.account.receive_progress, name, done))

    # Router methods

    def choose(self, ask: RankRequest, now: float) -> int | None:
        number = ask.session if self._link.sticky else self._rng.randrange(len(self.members))
        chooser = self.members[number % len(self.members)].chooser
        self._owner[ask.number] = chooser
        return chooser.choose(ask, now)

    def first_token(self, number: int, now: float) -> None:
        self._owner[number].first_token(number, now)

    def output_block(self, number: int, now: float) -> None:
        self._owner[number].output_block(number, now)

    def finished(self, number: int, now: float) -> None:
        self._owner.pop(number).finished(number, now)

    def changed(self, rank: int, changes: Sequence[Change], now: float) -> None:
        for member in self.members:
            member.chooser.changed(rank, changes, now)

    def released(self, now: float) -> Iterable[tuple[int, int]]:
        return chain.from_iterable(member.chooser.released(now) for member in self.members)
