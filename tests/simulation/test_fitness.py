"""Tests of health, admission, moves, levels and replicas together: rules that always hold."""

import pytest

from tests.simulation import fit_rules
from tests.simulation.fit_world import TTL_S, FitWorld
from tests.simulation.test_replicas import until_agreed

SEEDS = range(4)
UPDATED_S, WELL_UNTIL_S, BAD_S = 20.0, 120.0, 300.0
"""Times in s of the model update, the end of the good time, and the bad time.

Between the first two, each of three prompts has its round, so that right answers are known.
"""
WELL_S = 260.0
"""Longest time in s until everything serves again.

The time covers the longest pause of a breaker, probes, a slow start, and four levels of
degradation in turn.
"""


def a_bad_time(world, seconds=BAD_S):
    """Run a bad time after a good time without faults, in which the model is updated."""
    for gateway in world.gateways:
        world.run_course(gateway.arriving(1.0, WELL_UNTIL_S + seconds))
    world.at(UPDATED_S, world.update_model)
    world.run(WELL_UNTIL_S)
    world.run_course(world.troubling(WELL_UNTIL_S + seconds))
    world.run(seconds)
    world.calm()


def check_that_all_is_well(world):
    for node in world.nodes:
        states = {record.rank: record for record in node.twin._roster}
        assert len(states) == len(world.engines)
        for record in states.values():
            assert record.state.is_serving, (node.number, record)
            assert record.is_spare or record.published_weight == 1.0
        assert node.levels.level == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_guarantees_hold_under_all_faults(seed):
    world = FitWorld(seed)
    a_bad_time(world)
    until_agreed(world)
    world.run(WELL_S)
    check_that_all_is_well(world)
    world.run(TTL_S + 60.0)
    assert not world.running
    assert world.reservations_by_node() == [{}] * 3
    world.check_invariants()
    world.check_moves_were_received()
    for process in world.processes:
        fit_rules.check_levels(process)
