"""Tests of the reservations of a rank that is left."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.base.errors import NotFound
from select_service.core.health.health_effects import RankReset
from select_service.core.health.health_kinds import CheckKind
from select_service.core.health.migration import migrator as moving
from select_service.core.health.migration import rank_snapshot
from select_service.core.health.migration.move_cost import CacheLayout, MoveMethod
from select_service.core.identity import Rank
from select_service.core.load.new_reservation import NewReservation
from select_service.core.load.reservation_move import MoveTarget
from select_service.core.replication.load_events import ReservationAdmitted
from tests.builders import a_select, a_select_and_reserve, a_worker
from tests.builders.refusals import is_refused
from tests.builders.selector_scenes import KEY, store
from tests.core.health.migration.scenes import Scene

SMALL = CacheLayout(block_size=4, layers=2, kv_heads=2, head_dim=8, dtype_bytes=2)


def test_all_reservations_of_a_rank_move_and_nothing_is_lost():
    scene = Scene()
    for number in range(20):
        scene.reserve(f"r{number}", tokens=8 + number)
    before = scene.totals()
    scene.drain()
    assert {scene.rank_of(f"r{n}").worker_id for n in range(20)} <= {2, 3}
    assert scene.totals() == before
    events = scene.events()
    assert [event.seq for event in events] == list(range(1, 21))
    assert {event.source for event in events} == {Rank(1, 0)}
    assert all(event.target == scene.rank_of(event.reservation_id) for event in events)
    scene.check()


def test_a_second_drain_moves_only_the_remaining_reservations():
    scene = Scene()
    scene.reserve("a")
    scene.drain()
    scene.serve()
    scene.reserve("b")
    scene.drain()
    assert [event.reservation_id for event in scene.events()] == ["a", "b"]
    scene.drain()
    assert len(scene.events()) == 2


def test_the_event_loop_is_given_back_every_200():
    scene = Scene(workers=2)
    for number in range(450):
        scene.reserve(f"r{number}")
    assert scene.drain() == 3 + 11 + 1  # turns to list, to move, and to find that all is done
    assert len(scene.events()) == 450
    scene.check()


def test_more_than_a_plan_holds_is_moved_by_further_plans(monkeypatch):
    monkeypatch.setattr(moving, "PLANNED_MAX", 3)
    scene = Scene()
    for number in range(10):
        scene.reserve(f"r{number}")
    scene.drain()
    assert len(scene.events()) == 10
    scene.check()


def test_reservations_that_must_not_move_are_aborted_and_stay():
    scene = Scene()
    scene.reserve("a", migratable=False)
    scene.drain()
    (event,) = scene.events()
    assert (event.target, event.method) == (None, MoveMethod.ABORT)
    assert scene.rank_of("a") == Rank(1, 0)
    assert scene.mover.find_unconfirmed_move("a") is None


def test_constraints_of_the_request_count_for_its_move():
    scene = Scene(workers=3)
    scene.selector.register_worker(a_worker(3, taints=["h100"]))
    wanted = {
        "pinned": {"pinned_worker": {"worker_id": 1, "dp_rank": 0}},
        "allowed": {"allowed_worker_ids": [1, 3]},
    }
    for name, fields in wanted.items():
        request = a_select_and_reserve(reservation_id=name, **fields)
        scene.selector.select_and_reserve(request, 0.0)
    on_three = scene.rank_of("allowed") == Rank(3, 0)
    scene.drain()
    assert scene.rank_of("pinned") == Rank(1, 0)
    assert scene.rank_of("allowed") == Rank(3, 0)
    assert len(scene.events()) == (1 if on_three else 2)


def test_requests_of_a_higher_priority_are_planned_first():
    scene = Scene(workers=2)
    scene.selector.register_worker(a_worker(2, total_kv_blocks=4))  # room for one of two blocks
    names = {}
    for name, priority in (("low", None), ("high", 3)):
        request = a_select_and_reserve(
            reservation_id=name, strict_priority=priority, allowed_worker_ids=[1, 2]
        )
        names[name] = scene.selector.select_and_reserve(request, 0.0)
    for name in names:
        booking = scene.selector.ledger.reservations.get_reservation(name)
        if booking.rank != Rank(1, 0):  # put both on the rank that is left
            scene.selector.ledger.move(booking, MoveTarget(Rank(1, 0), _slot(scene, 1)), 0.0)
    scene.drain()
    assert [event.reservation_id for event in scene.events()] == ["high", "low"]
    assert scene.rank_of("high") == Rank(2, 0)
    assert scene.events()[1].method is MoveMethod.ABORT


def _slot(scene, worker_id):
    return scene.partition.table.find_slot(Rank(worker_id, 0))


def test_blocks_that_the_target_has_need_not_be_computed():
    scene = Scene(workers=3)
    store(scene.selector, Rank(3, 0), tokens=40)
    scene.reserve("other", worker_id=2)  # so that 3 has the fewest blocks in use
    scene.reserve("a", tokens=40)
    scene.drain(cause=CheckKind.TIMEOUT)
    (event,) = scene.events()
    assert (event.target, event.method, event.estimated_ms) == (
        Rank(3, 0),
        MoveMethod.REPREFILL,
        0.0,
    )
    assert scene.selector.ledger.reservations.get_reservation("a").prefill_tokens == 0


def test_a_readable_cache_is_carried_over_and_its_prefill_state_with_it():
    scene = Scene(kv_layout=SMALL)
    scene.reserve("a", tokens=4000)
    scene.selector.complete_prefill("a", 0.5)
    scene.selector.add_output_block("a", 0.5, 0.5)
    before = scene.totals()
    scene.drain()
    (event,) = scene.events()
    assert event.method is MoveMethod.TRANSFER
    assert scene.totals() == before
    assert not scene.selector.ledger.reservations.get_reservation("a").is_prefilling
    assert scene.selector.ledger.reservations.get_reservation("a").output_blocks == 1


def test_a_prompt_that_is_computed_again_is_load_until_its_move_is_confirmed():
    scene = Scene()
    scene.reserve("a", tokens=40)
    scene.selector.complete_prefill("a", 0.5)
    scene.selector.add_output_block("a", None, 0.5)
    scene.drain(cause=CheckKind.TOKEN_MISMATCH)
    booking = scene.selector.ledger.reservations.get_reservation("a")
    assert (booking.prefill_tokens, booking.is_prefilling) == (44, True)  # with the output so far
    confirmed = scene.mover.confirm_move("a", ok=True, took_ms=20.0, now=2.0)
    assert confirmed.method is MoveMethod.REPREFILL
    booking = scene.selector.ledger.reservations.get_reservation("a")
    assert (booking.prefill_tokens, booking.is_prefilling) == (0, False)
    is_refused(NotFound, scene.mover.confirm_move, "a", True, None, 2.0)
    scene.check()


def test_a_transfer_that_failed_is_computed_again_on_the_same_target():
    scene = Scene(kv_layout=SMALL)
    scene.reserve("a", tokens=4000)
    scene.selector.complete_prefill("a", 0.5)
    scene.drain()
    target = scene.rank_of("a")
    assert (
        scene.mover.confirm_move("a", ok=False, took_ms=None, now=2.0).method
        is MoveMethod.REPREFILL
    )
    booking = scene.selector.ledger.reservations.get_reservation("a")
    assert (booking.rank, booking.prefill_tokens) == (target, 4000)
    scene.mover.confirm_move("a", ok=True, took_ms=None, now=3.0)
    assert scene.selector.ledger.reservations.get_reservation("a").prefill_tokens == 0
    scene.check()


def test_a_peer_moves_its_own_reservations():
    scene = Scene()
    scene.reserve("ours")
    partition, slot = scene.partition, _slot(scene, 1)
    hashes = scene.selector.ledger.reservations.get_reservation("ours").sequence_hashes
    peers = NewReservation(
        "theirs", partition.account, Rank(1, 0), slot, hashes, 8, 8, 0.0, origin=7
    )
    scene.selector.ledger.book(peers, "replica", 0.0)
    scene.drain()
    scene.mover.release_reservations(KEY, Rank(1, 0))
    scene.turns()
    assert [event.reservation_id for event in scene.events()] == ["ours"]
    assert scene.rank_of("theirs") == Rank(1, 0)


def test_giving_up_affects_the_reservations_of_that_moment():
    scene = Scene()
    scene.reserve("old")
    scene.mover.release_reservations(KEY, Rank(1, 0))
    scene.reserve("new")
    scene.turns()
    assert scene.selector.ledger.reservations.find_reservation("old") is None
    assert scene.rank_of("new") == Rank(1, 0)
    assert scene.mover.read_counters().released == 1
    scene.check()


def test_reservations_that_end_during_a_plan_are_left_alone():
    scene = Scene(workers=2)
    for number in range(450):
        scene.reserve(f"r{number}")
    scene.leave()
    for _ in range(4):
        scene.mover.run_turn(1.0)
    scene.selector.free_reservation("r449", 1.0)
    scene.turns()
    assert len(scene.events()) == 449
    scene.check()


def test_remaining_reservations_stay_once_the_rank_serves_again():
    scene = Scene(workers=2)
    for number in range(450):
        scene.reserve(f"r{number}")
    scene.leave()
    for _ in range(5):
        scene.mover.run_turn(1.0)
    moved = len(scene.events())
    assert 0 < moved < 450
    scene.serve()
    scene.turns()
    assert len(scene.events()) == moved
    scene.check()


def test_a_target_that_leaves_during_a_plan_gets_no_moves():
    scene = Scene(workers=2)
    for number in range(450):
        scene.reserve(f"r{number}")
    scene.leave()
    for _ in range(7):
        scene.mover.run_turn(1.0)
    scene.selector.delete_worker(2, 1.0)
    scene.turns()
    methods = [event.method for event in scene.events()]
    assert methods.count(MoveMethod.ABORT) == 290
    scene.selector.drain_removed_ranks(1.0, 10**6)
    scene.check()


def test_speeds_of_many_ranks_are_read_in_turns_and_leavers_get_no_moves(
    monkeypatch,
):
    monkeypatch.setattr(rank_snapshot, "SPEEDS_PER_STEP", 2)
    scene = Scene(workers=7)
    for number in range(40):
        scene.reserve(f"r{number}")
    scene.leave()
    scene.touched.begin_turn()
    scene.mover.run_turn(1.0)
    scene.selector.delete_worker(2, 1.0)
    looked = list(rank_snapshot.look_up_speeds([Rank(n, 0) for n in range(5)], lambda rank: 1.0))
    assert len(looked) == 2
    scene.turns()
    assert {scene.rank_of(f"r{number}").worker_id for number in range(40)} <= set(range(3, 8))
    scene.check()


def test_the_number_of_separately_counted_worker_pairs_is_bounded(monkeypatch):
    monkeypatch.setattr(moving, "PAIRS_MAX", 1)
    scene = Scene(workers=3)
    for worker_id in (1, 2, 1):
        scene.reserve(f"r{worker_id}{len(scene.events())}", worker_id=worker_id)
        scene.drain(worker_id)
        scene.serve(worker_id)
    target = scene.events()[0].target.worker_id
    counts = scene.mover.read_counters().moves
    assert counts.total() == len(scene.events())
    assert set(counts) == {(1, target, MoveMethod.REPREFILL), (None, None, MoveMethod.REPREFILL)}


def test_a_rank_that_is_another_process_now_has_no_speed():
    scene = Scene()
    scene.reserve("a", tokens=1000)
    scene.selector.complete_prefill("a", 0.5)
    assert scene.learnt.speeds.learnt_rate(Rank(1, 0)) == 2000.0
    scene.mover.on_effect(RankReset(Rank(1, 0)), 1.0)
    assert scene.learnt.speeds.learnt_rate(Rank(1, 0)) is None


def test_watchers_are_notified_after_a_turn_with_moves():
    scene, heard = Scene(), []
    scene.mover.add_watcher(tell := lambda: heard.append(scene.mover.move_log.next_number))
    scene.reserve("a")
    scene.drain()
    assert heard == [2]
    scene.mover.remove_watcher(tell)
    scene.serve()
    scene.reserve("b")
    scene.drain()
    assert heard == [2]


RESERVATIONS = st.lists(
    st.tuples(st.integers(4, 60), st.booleans(), st.integers(0, 3), st.booleans()), max_size=12
)


@given(RESERVATIONS, st.sampled_from(list(CheckKind)), st.booleans())
def test_moves_conserve_requests_and_blocks(given_ones, cause, has_layout):
    scene = Scene(kv_layout=SMALL if has_layout else None, blocks_max=64)
    for number, (tokens, is_done, outputs, is_migratable) in enumerate(given_ones):
        name = f"r{number}"
        # different tokens, so that no two requests share blocks
        scene.reserve(name, tokens=tokens, cache_salt=name, migratable=is_migratable)
        if is_done:
            scene.selector.complete_prefill(name, 0.5)
        for _ in range(outputs):
            scene.selector.add_output_block(name, None, 0.5)
    before = scene.totals()
    leases = [
        (b.reservation_id, b.lease_ends_at, b.booked_at) for b in scene.selector.ledger.reservations
    ]
    scene.drain(cause=cause)
    assert scene.totals()[1:] == before[1:]
    after = [
        (b.reservation_id, b.lease_ends_at, b.booked_at) for b in scene.selector.ledger.reservations
    ]
    assert sorted(after) == sorted(leases)
    assert len(scene.events()) == len(given_ones)
    for event in scene.events():
        assert (event.target is None) == (scene.rank_of(event.reservation_id) == Rank(1, 0))
    scene.check()


@pytest.mark.parametrize("is_explicit", [False, True])
@pytest.mark.parametrize("kv_layout", [None, SMALL])
def test_the_target_is_assumed_to_hold_the_prompt(kv_layout, is_explicit):
    scene, sent = Scene(workers=1, kv_layout=kv_layout, index="assumed"), []
    scene.selector.followers.replicas.start_sending(sent.append)
    tokens = list(range(42))
    if is_explicit:
        scene.reserve("a", tokens=42)
    else:
        request = a_select_and_reserve(token_ids=tokens, reservation_id="a")
        scene.selector.select_and_reserve(request, 0.0)
    scene.selector.register_worker(a_worker(2, index="assumed"))
    scene.drain()
    assert scene.rank_of("a") == Rank(2, 0)
    _, rows = scene.selector.inspection.overlap_scores(a_select(token_ids=tokens))
    (there,) = [row for row in rows if row.worker_id == 2]
    assert (there.device_blocks, there.assumed_blocks) == (10, 10)
    admitted = [event for event in sent if isinstance(event, ReservationAdmitted)]
    assert len(admitted[-1].block_hashes) == 10, "replicas assume the same"
    answer = np.arange(42, 48, dtype=np.uint32)
    assert scene.selector.followers.assumptions.add_answer("a", answer, 2.0) == "added"
