"""Workers of many ranks come, go, drain and are shown in turns, whatever their number."""

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
"""Of one turn: some milliseconds.  All ranks at once take several times as many."""


def a_wide_scene(**fields):
    scene = Scene(a_worker(1))
    scene.selector.register_worker(a_worker(WIDE, data_parallel_size=RANKS, **fields))
    return scene


def settled(scene):
    """Lines of each turn until there is nothing left to do."""
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
    assert is_in_turns(settled(scene))
    assert len(list(scene.health.monitor.iterate_ranks())) == RANKS + 1
    scene.health.drain_worker(WIDE, False, scene.now)
    assert is_in_turns(settled(scene))
    assert weights(scene) == {0.0}
    scene.health.undrain_worker(WIDE, scene.now)
    assert is_in_turns(settled(scene))
    assert weights(scene) == {0.25}
    scene.selector.delete_worker(WIDE, scene.now)
    assert is_in_turns(settled(scene))
    assert list(scene.health.monitor.iterate_ranks()) == [Rank(1, 0)]


def test_a_wide_worker_that_is_registered_again_begins_anew_in_turns():
    scene = a_wide_scene()
    settled(scene)
    scene.health.drain_worker(WIDE, False, scene.now)
    settled(scene)
    scene.selector.register_worker(a_worker(WIDE, data_parallel_size=RANKS // 2))
    assert is_in_turns(settled(scene))
    assert {scene.state(WIDE, dp) for dp in range(RANKS // 2)} == {RankHealthState.HEALTHY}
    assert len(list(scene.health.monitor.iterate_ranks())) == RANKS // 2 + 1


def test_wishes_for_a_worker_whose_ranks_are_still_coming_are_carried_out_behind_that():
    scene = a_wide_scene()
    scene.selector.run_pending(scene.now)
    assert 0 < len(list(scene.health.monitor.iterate_ranks())) < RANKS
    scene.health.drain_worker(WIDE, False, scene.now)
    assert scene.health.check_worker(WIDE, scene.now).worker_id == WIDE
    settled(scene)
    assert weights(scene) == {0.0}
    drained = [effect.rank.dp_rank for effect in scene.noting.of(StateChanged)]
    assert drained == list(range(RANKS)), "in their order"


def test_a_worker_that_is_deleted_while_its_ranks_are_coming_leaves_none():
    scene = a_wide_scene()
    scene.selector.run_pending(scene.now)
    scene.selector.delete_worker(WIDE, scene.now)
    scene.selector.run_pending(scene.now)
    settled(scene)
    assert list(scene.health.monitor.iterate_ranks()) == [Rank(1, 0)]


def test_a_worker_that_goes_elsewhere_while_its_ranks_are_coming_is_there_at_the_end():
    scene = a_wide_scene()
    scene.selector.run_pending(scene.now)
    scene.selector.patch_worker(WIDE, a_patch(endpoint="http://elsewhere:8000"))
    settled(scene)
    assert (
        scene.health.monitor.check_state_of(Rank(WIDE, RANKS - 1)).endpoint
        == "http://elsewhere:8000"
    )


def test_a_wide_spare_gets_nothing_from_the_first_moment_on():
    scene = a_wide_scene(spare=True)
    assert weights(scene) == {0.0}
    settled(scene)
    assert weights(scene) == {0.0}


def test_a_report_about_a_rank_that_is_still_to_come_is_of_no_process_that_is_known():
    scene = a_wide_scene()
    scene.report(RequestOutcome.FATAL, worker_id=1, is_trusted=True)
    settled(scene)
    assert scene.state(1) is RankHealthState.UNHEALTHY
    assert scene.state(WIDE, RANKS - 1) is RankHealthState.HEALTHY


def test_a_fleet_is_shown_and_counted_in_steps():
    scene = a_wide_scene()
    settled(scene)
    views = scene.health.fleet_health(None, None, scene.now)
    assert longest_step(views) < LINES_MAX
    assert longest_step(scene.health.build_report()) < LINES_MAX
    assert (
        longest_step(scene.health.worker_health(scene.selector.get_worker(WIDE), 0.0)) < LINES_MAX
    )


def test_time_passes_for_ranks_that_are_out_in_turns():
    scene = a_wide_scene()
    settled(scene)
    scene.health.drain_worker(WIDE, False, scene.now)
    settled(scene)
    scene.now += 1.0
    lines, more = [], True

    def tick():
        nonlocal more
        more = scene.health.advance_timers(scene.now)

    while more:
        lines.append(lines_of(tick))
    assert len(lines) > 2
    assert max(lines) < LINES_MAX


def test_one_wish_for_each_worker_in_the_order_of_the_first():
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
