"""Several selectors before the same fleet: each chooses for its own clients, and tells the others.

Events, digests and the course of a repair are those of the core, as bytes; the network between the
selectors delays every message by the same time, and loses some.  KV events reach every selector.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from random import Random
from typing import Any, NamedTuple

from scripts.bench.quality.work import WorkChooser
from select_service.core.load.reservations import ReservationFilter
from select_service.core.replicas import digest as replica_digest
from select_service.core.replicas import events as replica_events
from select_service.core.replicas import progress as replica_progress
from select_service.core.replicas.agreement import Agreement
from select_service.core.replicas.events import LoadEvent
from select_service.core.replicas.repair import AnotherProcess, PageAnswer, Repair
from select_service.replaying.core_choosers import CoreChooser
from select_service.replaying.pool import Change
from select_service.replaying.world import Ask, World

DIGEST_S = 1.0
PROGRESS_S = replica_progress.PROGRESS_S
HELP = frozenset({"work", "progress", "share"})
"""What choosers may do beyond the reference's events: tell their peers of own work (the core always
does), and how far their prefills are; and prefer the ranks of their share."""


class Link(NamedTuple):
    """How selectors reach each other.  loss: share of the events that never arrive

    sticky: requests of one session come to one selector
    help:   of HELP
    """

    selectors: int
    delay_s: float
    loss: float = 0.0
    sticky: bool = False
    help: frozenset[str] = HELP


class Member:
    """One selector, and what it does for agreeing with its peers."""

    def __init__(self, group: "Replicated", number: int, chooser: CoreChooser) -> None:
        self.chooser = chooser
        self.replicas = chooser.selector.replicas
        self._group, self._number = group, number
        self._encode = replica_events.EventEncoder().encode
        self._agreements: dict[int, Agreement] = {}
        self._repairing: set[int] = set()
        self._sent = self._digests = 0
        self.replicas.tell(self._say)

    def _say(self, event: LoadEvent) -> None:
        self._sent += 1
        self._group.broadcast(self._number, "hear", bytes(self._encode(event)))

    def hear(self, sender: int, payload: bytes, now: float) -> None:
        """An event of a peer arrives."""
        event = replica_events.decode(payload)
        self._agreement(sender).event_came(event.router_id)
        self.replicas.apply(event, now)

    def tick(self, now: float) -> None:
        """Once a second: say what is held, look for what a peer holds otherwise, share ranks."""
        while self._group.shares and self.replicas.shares.tick(now):
            pass
        self._digests += 1
        digest = self.replicas.digest(self._digests, self._sent, 1, None)
        self._group.broadcast(self._number, "compare", replica_digest.encode(digest))
        for peer, agreement in self._agreements.items():
            if agreement.repair_due(now) and peer not in self._repairing:
                self._repair(peer, agreement, now)

    def compare(self, sender: int, payload: bytes, now: float) -> None:
        """A digest of a peer arrives."""
        self.replicas.compare(replica_digest.decode(payload), self._agreement(sender), now)

    def tell_progress(self) -> None:
        """Every PROGRESS_S: say how far prefills are."""
        say = partial(self._group.broadcast, self._number, "hear_progress")
        while self.replicas.progress.step(self._group.now, say):
            pass

    def hear_progress(self, sender: int, payload: bytes, now: float) -> None:
        """A peer says how far its prefills are."""
        self.replicas.progress.hear(replica_progress.decode(payload))

    def _agreement(self, peer: int) -> Agreement:
        return self._agreements.setdefault(peer, Agreement())

    def _repair(self, peer: int, agreement: Agreement, now: float) -> None:
        self._repairing.add(peer)
        assert agreement.router_id is not None
        repair = Repair(self.replicas, agreement.router_id, now)
        walk = repair.walk()
        first = next(walk)
        assert first is not None
        self._ask(peer, first, partial(self._page_came, peer, agreement, repair, walk))

    def _ask(
        self, peer: int, wanted: ReservationFilter, then: Callable[[PageAnswer], None]
    ) -> None:
        """Pages are asked for over HTTP and are not lost."""
        asked_at = self._group.now

        def read() -> None:
            page = self._group.members[peer].chooser.selector.reservations(wanted, self._group.now)
            self._group.carry(lambda: then(PageAnswer(page, asked_at, self._group.now)))

        self._group.carry(read)

    def _page_came(
        self, peer: int, agreement: Agreement, repair: Repair, walk: Any, answer: PageAnswer
    ) -> None:
        try:
            wanted = walk.send(answer)
            while wanted is None:
                wanted = walk.send(None)
        except StopIteration:
            self._repairing.discard(peer)
            agreement.repair_ended(repair.done.progress, self._group.now)
        except AnotherProcess:
            self._repairing.discard(peer)
            agreement.repair_failed(self._group.now)
        else:
            self._ask(peer, wanted, partial(self._page_came, peer, agreement, repair, walk))


def share_of(rank: int, selectors: int) -> int:
    """The selector to whose share a rank belongs: rendezvous hashing."""
    return max(range(selectors), key=lambda number: Random(f"{rank} {number}").random())


class Replicated:
    """A chooser made of several."""

    def __init__(
        self, choosers: Sequence[CoreChooser], link: Link, world: World, seed: int
    ) -> None:
        self._world, self._link = world, link
        self._rng = Random(f"clients and losses {seed}")
        self._owner: dict[int, CoreChooser] = {}
        self.shares = "share" in link.help
        self.members = [Member(self, number, chooser) for number, chooser in enumerate(choosers)]
        for number, member in enumerate(self.members):
            world.every(DIGEST_S, self._tick, member, first=number / len(self.members))
            if "progress" in link.help:
                world.every(PROGRESS_S, member.tell_progress)
        workers = [chooser for chooser in choosers if isinstance(chooser, WorkChooser)]
        for chooser in workers:
            self._help(chooser, workers)

    # --- the network

    @property
    def now(self) -> float:
        return self._world.time

    def broadcast(self, sender: int, verb: str, payload: bytes) -> None:
        for number, member in enumerate(self.members):
            if number != sender and self._rng.random() >= self._link.loss:
                self.carry(partial(self._arrive, getattr(member, verb), sender, payload))

    def carry(self, action: Callable[[], None]) -> None:
        self._world.at(self.now + self._link.delay_s, action)

    def _arrive(self, verb: Callable[..., None], sender: int, payload: bytes) -> None:
        verb(sender, payload, self.now)

    def _tick(self, member: Member) -> None:
        member.tick(self.now)

    # --- what policies in Python tell each other; those of the core do so by themselves

    def _help(self, chooser: WorkChooser, choosers: Sequence[WorkChooser]) -> None:
        """Own work comes along with the event of an admission, and with the rows of a repair."""
        given = self._link.help
        if "work" in given:
            chooser.account.peers_work = choosers[0].account.peers_work
        if "share" in given:
            for rank in range(len(chooser.outside)):
                owner = choosers[share_of(rank, len(choosers))]
                chooser.outside[rank] = chooser is not owner
        if "progress" in given:
            others = [other for other in choosers if other is not chooser]
            self._world.every(PROGRESS_S, self._tell_progress, chooser, others)

    def _tell_progress(self, chooser: WorkChooser, others: Sequence[WorkChooser]) -> None:
        for name, done in chooser.account.progress():
            for other in others:
                if self._rng.random() >= self._link.loss:
                    self.carry(partial(other.account.told, name, done))

    # --- a chooser

    def choose(self, ask: Ask, now: float) -> int | None:
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
