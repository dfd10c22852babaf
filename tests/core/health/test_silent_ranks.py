"""Tests of silent ranks: the ejection limit keeps no silent rank, and kept ranks lose weight."""

import pytest

from select_service.core.health.health_effects import EjectionWithheld
from select_service.core.health.health_kinds import CheckKind, RankHealthState
from select_service.core.health.health_rules import HealthRules
from select_service.core.health.rank_state.partition_health import PartitionHealth
from select_service.core.identity import Rank
from tests.builders.fleet_scene import FleetScene

RANKS = [Rank(worker_id, 0) for worker_id in range(6)]
OUT, REST = RANKS[:3], RANKS[3:]
SICK = REST[0]


class Partition:
    """Partition of six ranks, three of which are ejected for other reasons."""

    def __init__(self):
        self.effects = []
        self.health = PartitionHealth(HealthRules(), self.effects)
        for rank in RANKS:
            self.health.add_rank(rank, False, 0.0)
        for rank in OUT:
            self.fail(rank, CheckKind.TOKEN_MISMATCH, 3)

    def fail(self, rank, kind, times=1, **fields):
        for _ in range(times):
            self.health.apply_check(rank, kind, 0.0, **fields)
        self.health.check_invariants()

    def state(self, rank):
        return self.health.registry[rank].state

    def weight(self, rank):
        return self.health.registry[rank].published_weight

    @property
    def withheld(self):
        return sum(isinstance(effect, EjectionWithheld) for effect in self.effects)


@pytest.mark.parametrize("n_out", [1, 3])
def test_a_hanging_rank_is_ejected_for_any_cause_of_the_others(n_out):
    scene = FleetScene(6)
    scene.run(200)
    for rank in OUT[:n_out]:
        scene.break_ranks("wrong", rank)
    scene.run(60)
    assert set(OUT[:n_out]) == scene.out_at.keys()
    scene.break_ranks("hang", SICK)
    broken_at = scene.now
    scene.run(100)
    # An interval, then a check of three attempts and two of one attempt each.
    assert scene.out_at[SICK] - broken_at <= 30 + 16 + 2 * 5 + 1
    assert scene.monitor.counters.withheld == 0
    assert all(scene.state(rank) is RankHealthState.HEALTHY for rank in REST[1:])


def test_a_rank_that_answers_with_errors_stays_within_the_limit():
    partition = Partition()
    partition.fail(SICK, CheckKind.HTTP_5XX, 5)
    assert partition.state(SICK) is RankHealthState.SUSPICIOUS
    partition.fail(SICK, CheckKind.TIMEOUT, 5, was_answered=True)
    assert partition.state(SICK) is RankHealthState.SUSPICIOUS
    partition.fail(SICK, CheckKind.TIMEOUT)
    assert partition.state(SICK) is RankHealthState.SUSPICIOUS, "one silent check is not enough"
    partition.fail(SICK, CheckKind.TIMEOUT)
    assert partition.state(SICK) is RankHealthState.UNHEALTHY


def test_a_passed_check_ends_the_silence():
    partition = Partition()
    partition.fail(SICK, CheckKind.TIMEOUT, 2)
    partition.health.apply_check(SICK, CheckKind.PASS, 0.0)
    partition.fail(SICK, CheckKind.HTTP_5XX, 3)
    partition.fail(SICK, CheckKind.TIMEOUT)
    assert partition.state(SICK) is RankHealthState.SUSPICIOUS


def test_the_last_quarter_of_the_ranks_stays():
    partition = Partition()
    partition.fail(REST[0], CheckKind.TIMEOUT, 3)
    assert partition.state(REST[0]) is RankHealthState.UNHEALTHY, "two of six answer"
    partition.fail(REST[1], CheckKind.TIMEOUT, 9)
    assert partition.state(REST[1]) is RankHealthState.SUSPICIOUS, "one of six is too few"


def test_no_rank_is_ejected_without_another_that_answers():
    partition = Partition()
    for rank in REST:
        partition.fail(rank, CheckKind.TIMEOUT, 2)
    for rank in REST:
        partition.fail(rank, CheckKind.TIMEOUT, 3)
    assert {partition.state(rank) for rank in REST} == {RankHealthState.SUSPICIOUS}


@pytest.mark.parametrize(("per_rank", "goes"), [(0.05, False), (0.2, True)])
def test_a_known_capacity_decides_instead_of_the_number(per_rank, goes):
    partition = Partition()
    partition.health.registry.capacity_per_rank = per_rank
    partition.fail(SICK, CheckKind.TIMEOUT, 3)
    assert (partition.state(SICK) is RankHealthState.UNHEALTHY) == goes


def test_a_withheld_rank_loses_half_of_its_weight_with_each_failure():
    partition, weights = Partition(), []
    for _ in range(9):
        partition.fail(SICK, CheckKind.HTTP_5XX)
        weights.append(partition.weight(SICK))
    assert weights == [0.5, 0.5, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.015625]
    assert partition.withheld == 7
    partition.health.apply_check(SICK, CheckKind.PASS, 0.0)
    assert partition.weight(SICK) == 1.0


def test_a_slow_rank_keeps_its_weight():
    partition = Partition()
    partition.fail(SICK, CheckKind.LATENCY_SPIKE, 9)
    assert (partition.weight(SICK), partition.withheld) == (0.5, 7)
