"""Tests that workers of any number of ranks join, leave, drain and are shown in bounded turns."""

from select_service.core.health.fleet_health.batched_updates import (
    BatchedWorkerUpdates,
    PendingWorkerChange,
)
from select_service.core.health.fleet_health.health_service import RANKS_PER_TURN_MAX
from select_service.core.health.health_effects import StateChanged
from select_service.core.health.health_kinds import RankHealthState, RequestOutcome
from select_service.core.identity import Rank
from tests.builders import a_patch, a_worker
from tests.builders.steps import lines_of, longest_step
from tests.core.health.fleet_health.test_fitness import Scene

WIDE, RANKS = 2, 1024
LINES_MAX = 60_000
"""Limit on the lines of one turn: some milliseconds. All ranks at once take several times more."""


def a_wide_scene(**fields):
    scene = Scene(a_worker(1))
    scene.selector.register_worker(a_worker(WIDE, data_parallel_size=RANKS, **fields))
    return scene


def settle(scene):
    """Run turns until no work is left; return the lines of each turn."""
    lines = []
    while scene.health.is_behind or not lines:
        lines.append(lines_of(lambda: scene.selector.run_pending(scene.now)))
    scene.selector.check_invariants()
    return lines


def is_in_turns(lines):
    return len(lines) >= RANKS / (2 * RANKS_PER_TURN_MAX) and max(lines) < LINES_MAX


def weights(scene):
    return {scene.weight(WIDE, dp_rank) for dp_rank in range(RANKS)}


def test_a_wide_worker_joins_drains_serves_again_and_leaves_in_turns():
    scene = a_wide_scene()
    assert is_in_turns(settle(scene))
    assert len(list(scene.health.monitor.iterate_ranks())) == RANKS + 1
    scene.health.drain_worker(WIDE, False, scene.now)
    assert is_in_turns(settle(scene))
    assert weights(scene) == {0.0}
    scene.health.undrain_worker(WIDE, scene.now)
    assert is_in_turns(settle(scene))
    assert weights(scene) == {0.25}
    scene.selector.delete_worker(WIDE, scene.now)
    assert is_in_turns(settle(scene))
    assert list(scene.health.monitor.iterate_ranks()) == [Rank(1, 0)]


def test_a_new_registration_resets_a_wide_worker_in_turns():
    scene = a_wide_scene()
    settle(scene)
    scene.health.drain_worker(WIDE, False, scene.now)
    settle(scene)
    scene.selector.register_worker(a_worker(WIDE, data_parallel_size=RANKS // 2))
    assert is_in_turns(settle(scene))
    assert {scene.state(WIDE, dp) for dp in range(RANKS // 2)} == {RankHealthState.HEALTHY}
    assert len(list(scene.health.monitor.iterate_ranks())) == RANKS // 2 + 1


def test_requests_about_a_worker_that_is_still_joining_follow_its_ranks():
    scene = a_wide_scene()
    scene.selector.run_pending(scene.now)
    assert 0 < len(list(scene.health.monitor.iterate_ranks())) < RANKS
    scene.health.drain_worker(WIDE, False, scene.now)
    assert scene.health.check_worker(WIDE, scene.now).worker_id == WIDE
    settle(scene)
    assert weights(scene) == {0.0}
    drained = [effect.rank.dp_rank for effect in scene.noting.of(StateChanged)]
    assert drained == list(range(RANKS)), "in their order"


def test_a_worker_that_is_deleted_while_its_ranks_are_coming_leaves_none():
    scene = a_wide_scene()
    scene.selector.run_pending(scene.now)
    scene.selector.delete_worker(WIDE, scene.now)
    scene.selector.run_pending(scene.now)
    settle(scene)
    assert list(scene.health.monitor.iterate_ranks()) == [Rank(1, 0)]


def test_a_worker_that_moves_while_its_ranks_join_ends_at_the_new_endpoint():
    scene = a_wide_scene()
    scene.selector.run_pending(scene.now)
    scene.selector.patch_worker(WIDE, a_patch(endpoint="http://elsewhere:8000"))
    settle(scene)
    assert (
        scene.health.monitor.check_state_of(Rank(WIDE, RANKS - 1)).endpoint
        == "http://elsewhere:8000"
    )


def test_a_wide_spare_gets_no_requests_from_its_registration_on():
    scene = a_wide_scene(spare=True)
    assert weights(scene) == {0.0}
    settle(scene)
    assert weights(scene) == {0.0}


def test_a_fatal_report_spares_a_worker_that_is_still_joining():
    scene = a_wide_scene()
    scene.report(RequestOutcome.FATAL, worker_id=1, is_trusted=True)
    settle(scene)
    assert scene.state(1) is RankHealthState.UNHEALTHY
    assert scene.state(WIDE, RANKS - 1) is RankHealthState.HEALTHY


def test_a_fleet_is_shown_and_counted_in_steps():
    scene = a_wide_scene()
    settle(scene)
    views = scene.health.fleet_health(None, None, scene.now)
    assert longest_step(views) < LINES_MAX
    assert longest_step(scene.health.build_report()) < LINES_MAX
    assert (
        longest_step(scene.health.worker_health(scene.selector.get_worker(WIDE), 0.0)) < LINES_MAX
    )


def test_time_passes_for_ranks_that_are_out_in_turns():
    scene = a_wide_scene()
    settle(scene)
    scene.health.drain_worker(WIDE, False, scene.now)
    settle(scene)
    scene.now += 1.0
    lines, more = [], True

    def tick():
        nonlocal more
        more = scene.health.advance_timers(scene.now)

    while more:
        lines.append(lines_of(tick))
    assert len(lines) > 2
    assert max(lines) < LINES_MAX


def test_requests_are_merged_per_worker_in_the_order_of_the_first():
    done = []

    def carried_out(worker_id, wish):
        done.append((worker_id, wish))
        yield 3

    turns = BatchedWorkerUpdates(carried_out)
    turns.add_change(1, True)
    turns.set_drain(2, True)
    turns.add_change(1, False)
    turns.set_drain(1, True)
    turns.add_change(2, False)
    assert (len(turns), turns.is_behind(2), turns.is_behind(3)) == (2, True, False)
    turns.process_ranks(1)
    assert done == [(1, PendingWorkerChange(True, True, True))]
    assert turns.is_behind(1), "it is not at its end"
    turns.set_drain(2, False)
    turns.process_ranks(10)
    assert done[1:] == [(2, PendingWorkerChange(True, False, False))]
    assert not turns
    turns.set_drain(1, True)
    turns.add_change(1, True)
    turns.process_ranks(10)
    assert done[2:] == [(1, PendingWorkerChange(True, True, None))], (
        "as it is registered now it does not drain"
    )
