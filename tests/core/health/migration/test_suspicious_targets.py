"""Tests that reservations never move to a rank with failing checks, however empty."""

import pytest

from select_service.core.health.migration.move_cost import LINKS, MoveMethod, MoveTerms
from select_service.core.identity import Rank
from tests.builders import a_worker
from tests.builders.migration_plans import GivenReservation, GivenTarget, plan_moves
from tests.core.health.migration.scenes import Scene

TERMS = MoveTerms(block_size=4, block_bytes=None, readable=False)


def load(scene, worker_id, count):
    for number in range(count):
        scene.reserve(f"other-{worker_id}-{number}", worker_id, tokens=16)


def test_one_rank_for_all_is_not_the_one_that_fails_its_checks():
    scene = Scene(workers=3)
    load(scene, 3, 4)
    for number in range(4):
        scene.reserve(f"r{number}")
    scene.suspect(2)
    scene.drain()
    assert {scene.rank_of(f"r{number}").worker_id for number in range(4)} == {3}
    assert all(event.lockstep for event in scene.events())
    scene.check()


def test_scattered_moves_avoid_the_rank_that_fails_its_checks():
    scene = Scene(workers=4)
    for worker_id in (3, 4):  # each has room for half of the reservations
        scene.selector.register_worker(a_worker(worker_id, total_kv_blocks=5))
    for number in range(4):
        scene.reserve(f"r{number}")
    scene.suspect(2)
    scene.drain()
    assert [scene.rank_of(f"r{number}").worker_id for number in range(4)].count(2) == 0
    assert not any(event.lockstep for event in scene.events())


def test_with_suspicious_ranks_alone_nothing_moves():
    scene = Scene(workers=3)
    scene.reserve("r")
    scene.suspect(2)
    scene.suspect(3)
    scene.drain()
    (event,) = scene.events()
    assert (event.target, event.method) == (None, MoveMethod.ABORT)


def test_a_rank_that_begins_to_fail_after_the_plan_gets_no_more():
    scene = Scene(workers=3)
    load(scene, 3, 4)
    for number in range(60):
        scene.reserve(f"r{number}")
    scene.leave()
    while not scene.events():
        scene.touched.begin_turn()
        scene.mover.run_turn(1.0)
    moved = len(scene.events())
    assert 0 < moved < 60
    scene.suspect(2)
    scene.is_woken = True
    scene.turns()
    events = scene.events()
    assert len(events) == 60
    assert {event.target.worker_id for event in events[:moved]} == {2}
    assert {event.target.worker_id for event in events[moved:]} == {3}
    scene.check()


@pytest.mark.parametrize("active", [0, 10])
def test_a_rank_in_slow_start_counts_as_fuller(active):
    targets = [
        GivenTarget(Rank(1, 0), 0.25, None, active, 0.0, LINKS["unknown"]),
        GivenTarget(Rank(2, 0), 1.0, None, active + 1, 0.0, LINKS["unknown"]),
    ]
    (move,) = plan_moves([GivenReservation("r", 0, 0.0, 8)], targets, TERMS)
    assert move.target == Rank(2, 0)
