"""What is learnt from bookings: wishes, kept in bounds, and pace."""

import pytest

from select_service.core.health.capacity import LoadMeans
from select_service.core.identity import Rank
from select_service.core.load import move_wishes
from select_service.core.load.booking import MoveWishes
from select_service.core.moving import pace as moving_pace
from tests.core.moving.scenes import Scene


def test_wishes_live_as_long_as_their_reservation():
    scene = Scene()
    scene.reserve("a", tokens=16, migratable=False)
    wishes = scene.learnt.wishes
    assert not wishes.of("a").migratable
    assert len(wishes.of("a").block_hashes) == 4
    scene.drain()
    assert not wishes.of("a").migratable
    scene.selector.free("a", 1.0)
    assert wishes.of("a").migratable
    wishes.check_invariants([])


def test_wishes_and_prompt_travel_with_the_booking(monkeypatch):
    scene, told = Scene(), []
    monkeypatch.setattr(
        scene.learnt.wishes, "booked", lambda booking, cause, now: told.append(booking.wishes)
    )
    scene.reserve("a", tokens=16, migratable=False)
    scene.reserve("b", tokens=16)
    assert [each.migratable for each in told] == [False, True]
    assert [len(each.block_hashes) for each in told] == [4, 4]


def test_prompts_beyond_the_bound_are_not_kept(monkeypatch):
    monkeypatch.setattr(move_wishes, "BLOCKS_MAX", 5)
    scene = Scene()
    scene.reserve("a", tokens=16)
    scene.reserve("b", tokens=16)
    assert len(scene.learnt.wishes.of("a").block_hashes) == 4
    assert len(scene.learnt.wishes.of("b").block_hashes) == 0
    scene.selector.free("a", 1.0)
    scene.reserve("c", tokens=16)
    assert len(scene.learnt.wishes.of("c").block_hashes) == 4
    scene.check()


def test_a_reservation_whose_constraints_find_no_room_stays_where_it_is(monkeypatch):
    monkeypatch.setattr(move_wishes, "NAMES_MAX", 1)
    wishes = move_wishes.KeptWishes()
    bound = MoveWishes(allowed=frozenset([1, 2]), priority=3)
    wishes.said("a", bound)
    assert wishes.of("a") == MoveWishes(priority=3, migratable=False)


def test_the_rate_of_a_rank_is_learnt_from_requests_that_found_it_idle():
    scene = Scene()
    pace = scene.learnt.pace
    assert pace.learnt(Rank(1, 0)) is None
    assert pace.rate_of(Rank(1, 0)) == 5000.0
    scene.reserve("alone", tokens=1000, now=0.0)
    scene.reserve("second", tokens=1000, now=0.0)
    scene.selector.prefill_complete("second", 0.1)
    assert pace.learnt(Rank(1, 0)) is None
    scene.selector.prefill_complete("alone", 0.5)
    assert pace.learnt(Rank(1, 0)) == 2000.0
    scene.selector.prefill_complete("alone", 9.0)  # repeated
    assert pace.rate_of(Rank(1, 0)) == 2000.0
    pace.forget(Rank(1, 0))
    assert pace.learnt(Rank(1, 0)) is None


def test_a_prefill_that_was_moved_says_nothing_of_its_rank():
    scene = Scene()
    scene.reserve("a", tokens=1000)
    scene.drain()
    scene.selector.prefill_complete("a", 2.0)
    assert scene.learnt.pace.learnt(Rank(1, 0)) is None
    assert scene.learnt.pace.learnt(scene.rank_of("a")) is None


def test_the_speeds_of_so_many_ranks_are_known(monkeypatch):
    monkeypatch.setattr(moving_pace, "RATES_MAX", 1)
    scene = Scene()
    for worker_id in (1, 2):
        scene.reserve(str(worker_id), worker_id=worker_id, tokens=1000)
        scene.selector.prefill_complete(str(worker_id), 0.5)
    assert scene.learnt.pace.learnt(Rank(1, 0)) is None
    assert scene.learnt.pace.learnt(Rank(2, 0)) == 2000.0


def test_means_of_requests_are_those_of_the_last_ten_minutes():
    scene = Scene()
    pace = scene.learnt.pace
    assert pace.means("m", 0.0) == LoadMeans()
    scene.reserve("a", tokens=100, effective_prefill_tokens=25)
    scene.selector.output_block("a", None, 0.0)
    scene.drain()  # a move is neither the end of a request nor another one
    scene.selector.free("a", 1.0)
    assert pace.means("m", 1.0) == pytest.approx((100.0, 4.0, 0.75))
    assert pace.means("m", 700.0) == pace.means("m", 1.0)  # as long as nothing newer comes
