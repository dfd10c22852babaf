"""Tests of facts learnt from bookings: bounded move constraints, and the pace of ranks."""

import pytest

from select_service.core.health.capacity_estimate import RequestMeanValues
from select_service.core.health.migration import speed_estimates as moving_pace
from select_service.core.identity import Rank
from select_service.core.load import move_constraints
from select_service.core.load.new_reservation import MoveConstraints
from tests.core.health.migration.scenes import Scene


def test_constraints_are_kept_as_long_as_their_reservation():
    scene = Scene()
    scene.reserve("a", tokens=16, migratable=False)
    wishes = scene.learnt.constraints
    assert not wishes.constraints_of("a").migratable
    assert len(wishes.constraints_of("a").block_hashes) == 4
    scene.drain()
    assert not wishes.constraints_of("a").migratable
    scene.selector.free_reservation("a", 1.0)
    assert wishes.constraints_of("a").migratable
    wishes.check_invariants([])


def test_constraints_and_prompt_follow_the_booking(monkeypatch):
    scene, told = Scene(), []
    monkeypatch.setattr(
        scene.learnt.constraints,
        "on_booked",
        lambda booking, cause, now: told.append(booking.move_constraints),
    )
    scene.reserve("a", tokens=16, migratable=False)
    scene.reserve("b", tokens=16)
    assert [each.migratable for each in told] == [False, True]
    assert [len(each.block_hashes) for each in told] == [4, 4]


def test_prompts_beyond_the_bound_are_not_kept(monkeypatch):
    monkeypatch.setattr(move_constraints, "BLOCKS_MAX", 5)
    scene = Scene()
    scene.reserve("a", tokens=16)
    scene.reserve("b", tokens=16)
    assert len(scene.learnt.constraints.constraints_of("a").block_hashes) == 4
    assert len(scene.learnt.constraints.constraints_of("b").block_hashes) == 0
    scene.selector.free_reservation("a", 1.0)
    scene.reserve("c", tokens=16)
    assert len(scene.learnt.constraints.constraints_of("c").block_hashes) == 4
    scene.check()


def test_a_reservation_without_room_for_its_constraints_does_not_move(monkeypatch):
    monkeypatch.setattr(move_constraints, "NAMES_MAX", 1)
    wishes = move_constraints.MoveConstraintStore()
    bound = MoveConstraints(allowed=frozenset([1, 2]), priority=3)
    wishes.store_constraints("a", bound)
    assert wishes.constraints_of("a") == MoveConstraints(priority=3, migratable=False)


def test_the_rate_of_a_rank_is_learnt_from_requests_that_found_it_idle():
    scene = Scene()
    pace = scene.learnt.speeds
    assert pace.learnt_rate(Rank(1, 0)) is None
    assert pace.rate_of(Rank(1, 0)) == 5000.0
    scene.reserve("alone", tokens=1000, now=0.0)
    scene.reserve("second", tokens=1000, now=0.0)
    scene.selector.complete_prefill("second", 0.1)
    assert pace.learnt_rate(Rank(1, 0)) is None
    scene.selector.complete_prefill("alone", 0.5)
    assert pace.learnt_rate(Rank(1, 0)) == 2000.0
    scene.selector.complete_prefill("alone", 9.0)  # repeated
    assert pace.rate_of(Rank(1, 0)) == 2000.0
    pace.forget_rank(Rank(1, 0))
    assert pace.learnt_rate(Rank(1, 0)) is None


def test_a_moved_prefill_teaches_no_rate():
    scene = Scene()
    scene.reserve("a", tokens=1000)
    scene.drain()
    scene.selector.complete_prefill("a", 2.0)
    assert scene.learnt.speeds.learnt_rate(Rank(1, 0)) is None
    assert scene.learnt.speeds.learnt_rate(scene.rank_of("a")) is None


def test_the_number_of_learnt_speeds_is_bounded(monkeypatch):
    monkeypatch.setattr(moving_pace, "RATES_MAX", 1)
    scene = Scene()
    for worker_id in (1, 2):
        scene.reserve(str(worker_id), worker_id=worker_id, tokens=1000)
        scene.selector.complete_prefill(str(worker_id), 0.5)
    assert scene.learnt.speeds.learnt_rate(Rank(1, 0)) is None
    assert scene.learnt.speeds.learnt_rate(Rank(2, 0)) == 2000.0


def test_means_of_requests_cover_the_last_ten_minutes():
    scene = Scene()
    pace = scene.learnt.speeds
    assert pace.mean_request("m", 0.0) == RequestMeanValues()
    scene.reserve("a", tokens=100, effective_prefill_tokens=25)
    scene.selector.add_output_block("a", None, 0.0)
    scene.drain()  # a move is neither the end of a request nor a new request
    scene.selector.free_reservation("a", 1.0)
    assert pace.mean_request("m", 1.0) == pytest.approx((100.0, 4.0, 0.75))
    assert pace.mean_request("m", 700.0) == pace.mean_request("m", 1.0)  # without newer requests
