"""Tests of the legs of pairs on a rank that is left."""

import msgspec
import pytest

from select_service.base.errors import Conflict
from select_service.core.dirty_partitions import DirtyPartitions
from select_service.core.health.checks.canary_prompts import default_prompts
from select_service.core.health.health_kinds import CheckKind
from select_service.core.health.health_monitor import HealthMonitor
from select_service.core.health.health_rules import HealthRules
from select_service.core.health.migration.booking_observer import BookingObserver
from select_service.core.health.migration.migrator import Migrator, MovableBookings
from select_service.core.health.migration.move_cost import MoveMethod
from select_service.core.identity import Rank
from select_service.core.load.move_constraints import MoveConstraintStore
from select_service.core.load.prefill_legs import prefill_leg_of
from select_service.core.placement.router_config import RouterConfig
from select_service.core.replication.load_events import LoadEventEncoder, decode_event
from tests.builders import a_select, a_selector
from tests.builders.selector_scenes import KEY
from tests.core.health.migration.scenes import make_suspicious
from tests.core.pairs.test_pair_life import a_pair, a_pair_worker


class Scene:
    """Scene of workers 1 to 3 that prefill on hosts a, a, b, and 4 and 5 that decode on b and c."""

    def __init__(self, workers=(1, 2, 3, 4, 5), fields=None):
        self.now = 1.0
        self.selector = a_selector(RouterConfig(policy="work"))
        touched = DirtyPartitions(lambda: None)
        observer = BookingObserver(MoveConstraintStore())
        self.selector.decisions.keeps_move_constraints = True
        self.selector.ledger.add_listener(observer, needs_moves=False)
        fleet, ledger = self.selector.fleet, self.selector.ledger
        self.monitor = HealthMonitor(
            HealthRules(), lambda key: default_prompts(), lambda rank: 0, touched
        )
        self.mover = Migrator(
            self.monitor,
            MovableBookings(fleet.partitions, ledger, touched, pairs=self.selector.pairs),
            observer,
            lambda key, worker_id: None,
        )
        for worker_id in workers:
            worker = a_pair_worker(worker_id)
            self.selector.register_worker(msgspec.structs.replace(worker, **(fields or {})))

    def book(self, name="a", **fields):
        request = a_pair(name, list(range(40)), "never")
        request = msgspec.structs.replace(request, **fields)
        self.selector.select_pair(request, 0.0)

    def ranks(self, name="a"):
        """Return the workers of the prefill and the decode leg; None means no leg."""
        held = {b.reservation_id: b.rank.worker_id for b in self.selector.ledger.reservations}
        return held.get(prefill_leg_of(name)), held.get(name)

    def leave(self, worker_id):
        table = self.selector.fleet.partitions[KEY].table
        table.set_weight(table.find_slot(Rank(worker_id, 0)), 0.0, "draining")
        self.mover.start_migration(KEY, Rank(worker_id, 0), CheckKind.OPERATOR)
        self.turns()

    def give_up(self, worker_id):
        table = self.selector.fleet.partitions[KEY].table
        table.set_weight(table.find_slot(Rank(worker_id, 0)), 0.0, "failed")
        self.mover.release_reservations(KEY, Rank(worker_id, 0))
        self.turns()

    def turns(self):
        while self.mover.is_busy:
            self.mover.run_turn(self.now)
        self.selector.run_pending(self.now)
        self.selector.check_invariants()
        self.mover.check_invariants()

    def events(self):
        events = self.mover.move_log.events_after(0, 100).events
        return [(e.reservation_id, e.leg, e.source.worker_id, e.target, e.method) for e in events]


def test_a_prefill_leg_moves_to_a_rank_that_prefills_and_its_link_follows():
    scene = Scene()
    scene.book()
    before, decode = scene.ranks()
    scene.leave(before)
    after, still = scene.ranks()
    assert after in {1, 2, 3} - {before}
    assert still == decode
    assert scene.events() == [("a", "prefill", before, Rank(after, 0), MoveMethod.REPREFILL)]
    event = scene.mover.find_unconfirmed_move("a")
    assert (event.leg, event.target) == ("prefill", Rank(after, 0))
    assert scene.selector.pairs.book.find_pair("a").answer.legs[0].worker_id == after
    assert scene.mover.take_moved_leg("a", "prefill")
    assert not scene.mover.take_moved_leg("a", "prefill")


def test_a_decode_leg_moves_to_a_rank_that_decodes():
    scene = Scene()
    scene.book()
    prefill, before = scene.ranks()
    scene.leave(before)
    after = scene.ranks()[1]
    assert {before, after} == {4, 5}
    assert scene.events() == [("a", "decode", before, Rank(after, 0), MoveMethod.REPREFILL)]
    assert scene.ranks()[0] in (prefill, None)


@pytest.mark.parametrize("leg", [0, 1])
def test_no_leg_moves_to_a_rank_that_fails_its_checks(leg):
    scene = Scene()
    scene.book()
    before = scene.ranks()
    others = ({1, 2, 3}, {4, 5})[leg] - {before[leg]}
    for worker_id in sorted(others)[:2]:
        table = scene.selector.fleet.partitions[KEY].table
        make_suspicious(scene.monitor, table, worker_id)
    scene.leave(before[leg])
    assert scene.ranks() == before
    assert [event[3] for event in scene.events()] == [None]


def test_a_leg_that_stays_may_be_on_a_rank_that_fails_its_checks():
    scene = Scene()
    scene.book()
    prefill, decode = scene.ranks()
    table = scene.selector.fleet.partitions[KEY].table
    make_suspicious(scene.monitor, table, decode)
    scene.leave(prefill)
    assert scene.ranks()[1] == decode
    assert scene.ranks()[0] in {1, 2, 3} - {prefill}


def test_a_leg_without_another_rank_stays_and_its_move_is_aborted():
    scene = Scene(workers=(1, 4))
    scene.book()
    scene.leave(1)
    assert scene.ranks() == (1, 4)
    assert scene.events() == [("a", "prefill", 1, None, MoveMethod.ABORT)]


def test_a_leg_that_may_not_move_stays():
    scene = Scene()
    scene.book(migratable=False)
    before = scene.ranks()
    scene.leave(before[0])
    assert scene.ranks() == before
    assert scene.events()[0][3:] == (None, MoveMethod.ABORT)


@pytest.mark.parametrize("loss", ["given_up", "deleted"])
def test_a_lost_prefill_leg_is_reported_and_replaced_by_one_call(loss):
    scene = Scene()
    scene.book()
    before, decode = scene.ranks()
    if loss == "given_up":
        scene.give_up(before)
        assert scene.events() == [("a", "prefill", before, None, MoveMethod.ABORT)]
    else:
        scene.selector.delete_worker(before, 1.0)
        scene.turns()
    book, links = scene.selector.pairs.book, scene.selector.pairs.links.links_of
    assert scene.ranks() == (None, decode)
    assert "a" in book.lost_legs
    placer = links(scene.selector.fleet.partitions[KEY]).placer
    assert placer.waiting_by_host() == ({}, {})
    answer = scene.selector.pairs.move_leg("a", "prefill", 2.0)
    assert scene.ranks() == (answer.legs[0].worker_id, decode)
    assert answer.legs[0].worker_id != before
    assert "a" not in book.lost_legs
    scene.selector.complete_prefill("a", 3.0)
    scene.turns()
    assert scene.ranks() == (None, decode)
    with pytest.raises(Conflict):
        scene.selector.pairs.move_leg("a", "prefill", 4.0)


def test_reservations_on_one_rank_move_as_before_beside_pairs():
    scene = Scene()
    scene.book()
    body = a_pair("one", list(range(20)), "always")
    scene.selector.select_pair(body, 0.0)
    one = scene.ranks("one")[1]
    scene.leave(one)
    assert scene.ranks("one")[1] != one
    assert {event[1] for event in scene.events()} == {"decode"}


@pytest.mark.parametrize("leg", [0, 1])
def test_the_target_of_a_leg_is_assumed_to_hold_the_prompt(leg):
    scene = Scene(fields={"index": "assumed"})
    scene.book()
    before = scene.ranks()
    scene.leave(before[leg])
    now = scene.ranks()[leg]
    assert now != before[leg]
    _, rows = scene.selector.inspection.overlap_scores(a_select(token_ids=list(range(40))))
    assert {row.worker_id: row.assumed_blocks for row in rows}[now] == 10


@pytest.mark.parametrize("is_successor", [True, False])
@pytest.mark.parametrize("is_dead", [True, False])
@pytest.mark.parametrize("leg", [0, 1])
def test_another_replica_moves_the_legs_of_a_dead_one(leg, is_dead, is_successor):
    first, scene = Scene(), Scene()
    sent, encode = [], LoadEventEncoder().encode_event
    first.selector.followers.replicas.start_sending(lambda event: sent.append(encode(event)))
    state = scene.selector.followers.replicas
    state.router_id = state.liveness._own = 5
    if not is_successor:
        state.liveness.record_digest(4, 100.0)
    first.selector.followers.replicas.router_id = 9
    first.book()
    for payload in sent:
        state.apply_event(decode_event(payload), 0.0)
    before = scene.ranks()
    # The other replica has been silent for long.
    scene.now = 101.0
    (scene.give_up if is_dead else scene.leave)(before[leg])
    after = scene.ranks()
    if not is_successor:
        assert after == before
        assert scene.events() == []
    elif is_dead:
        assert after[leg] is None
        book = scene.selector.pairs.book
        assert list(book.lost_legs) == ([] if leg else ["a"])
    else:
        assert after[leg] not in (None, before[leg])
        assert after[1 - leg] == before[1 - leg]
        assert [event[1] for event in scene.events()] == ["decode" if leg else "prefill"]


def test_a_dead_decode_rank_clears_no_blocks_of_the_prefill_rank():
    scene = Scene(fields={"index": "assumed"})
    scene.book()
    prefill, decode = scene.ranks()
    scene.give_up(decode)
    while scene.selector.fleet.partitions[KEY].assumed.run_step(scene.now):
        pass
    assert scene.ranks() == (None, None)
    _, rows = scene.selector.inspection.overlap_scores(a_select(token_ids=list(range(40))))
    assert {row.worker_id: row.assumed_blocks for row in rows}[prefill] == 10
