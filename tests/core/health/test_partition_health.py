"""Tests of the state machine against its naive twin, and of cases beyond the twin."""

from functools import partial

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from select_service.core.health.health_effects import (
    MigrationRequested,
    ReleaseRequested,
    StateChanged,
    WeightChanged,
)
from select_service.core.health.health_kinds import CheckKind, RankHealthState
from select_service.core.health.health_rules import DESIGN_DOCUMENT_RULES, HealthRules
from select_service.core.health.rank_state.partition_health import PartitionHealth
from select_service.core.identity import Rank
from tests.builders.hypothesis_profiles import explored
from tests.models.health_model import HealthModel
from tests.vectors.health_states import Scene

RESULTS = [
    kind
    for kind in CheckKind
    if kind not in (CheckKind.PASSIVE, CheckKind.FATAL, CheckKind.OPERATOR)
]
NAMES = ("a", "b", "c", "d", "e", "y", "z")
SPARES = ("y", "z")
FEW = st.integers(1, 5)
OUTCOMES = st.sampled_from(["ok", "failure", "failure", "neutral", "fatal"])
WAITS = st.sampled_from([0.0, 0.5, 2.0, 7.0, 15.0, 30.0, 60.0, 61.0, 300.0, 600.0])


class HealthMatchesModel(RuleBasedStateMachine):
    @initialize(
        config=st.sampled_from(["default", "seed"]), n=st.integers(1, 5), spares=st.integers(0, 2)
    )
    def begin(self, config, n, spares):
        self.names = [*NAMES[:n], *SPARES[:spares]]
        case = {"config": config, "ranks": self.names, "spares": SPARES[:spares]}
        self.scene = Scene(case)
        rules = {"default": HealthRules(), "seed": DESIGN_DOCUMENT_RULES}[config]
        self.model = HealthModel(rules, self.names, SPARES[:spares])
        self.now = 0.0

    def happen(self, change, **event):
        """Apply the event to both and compare."""
        found = self.scene.play({"t": self.now, **event})
        self.model.actions = []
        self.model.tick(self.now)
        change()
        assert found == {
            "actions": self.model.actions,
            "after": self.model.describe_ranks(self.now),
        }

    def name(self, number):
        """Return the name of a present rank."""
        names = list(self.model.ranks)
        return names[number % len(names)]

    @property
    def health(self):
        return self.scene._health

    def rank(self, name):
        return self.scene._ranks[name]

    @rule(
        which=st.integers(0, 6),
        result=st.sampled_from([CheckKind.PASS, CheckKind.PASS, *RESULTS]),
        latency_ms=st.sampled_from([10.0, 12.0, 20.0, 60.0, 300.0]),
        counts=st.booleans(),
        times=st.integers(1, 3),
    )
    def check(self, which, result, latency_ms, counts, times):
        name = self.name(which)
        for _ in range(times):
            self.happen(
                partial(self.model.check, name, result, latency_ms, counts, self.now),
                ev="check",
                rank=name,
                result=result,
                latency_ms=latency_ms,
                judge_latency=counts,
            )

    @rule(
        which=st.integers(0, 6),
        outcome=st.sampled_from(["ok", "failure", "failure", "neutral", "fatal"]),
    )
    def report(self, which, outcome):
        name = self.name(which)
        change = partial(self.model.report, name, outcome, self.now)
        self.happen(change, ev="passive", rank=name, outcome=outcome)

    @rule(which=st.integers(0, 6), count=st.integers(0, 3))
    def book(self, which, count):
        name = self.name(which)
        change = partial(self.model.book, name, count)
        self.happen(change, ev="reservations", rank=name, count=count)

    @rule(which=st.integers(0, 6))
    def drain(self, which):
        name = self.name(which)
        self.happen(partial(self.model.drain, name, self.now), ev="drain", rank=name)

    @rule(which=st.integers(0, 6))
    def undrain(self, which):
        name = self.name(which)
        self.happen(partial(self.model.undrain, name, self.now), ev="undrain", rank=name)

    @rule(which=st.integers(0, 6))
    def register(self, which):
        name = self.name(which)
        self.happen(partial(self.model.register, name), ev="register", rank=name)

    @rule(which=st.integers(0, 6))
    def leave(self, which):
        if len(self.model.ranks) > 1:
            name = self.name(which)
            self.health.remove_rank(self.rank(name))
            self.model.leave(name)

    @rule(which=st.integers(0, 6), is_spare=st.booleans())
    def join(self, which, is_spare):
        name = self.names[which % len(self.names)]
        if name not in self.model.ranks:
            self.health.add_rank(self.rank(name), is_spare, self.now)
            self.model.join(name, is_spare)

    @rule(which=st.integers(0, 6))
    def clear_suspicion(self, which):
        name = self.name(which)
        self.health.clear_suspicion(self.rank(name), self.now)
        self.model.clear_suspicion(name)

    @rule(seconds=WAITS)
    def wait(self, seconds):
        self.now += seconds
        self.happen(lambda: None, ev="tick")

    @invariant()
    def sums_agree_with_records(self):
        if hasattr(self, "scene"):
            self.scene.check_invariants()


TestHealthMatchesModel = explored(HealthMatchesModel)

A, B, C = Rank(1, 0), Rank(1, 1), Rank(2, 0)


def a_partition(*ranks, rules=None, spares=()):
    effects = []
    health = PartitionHealth(rules or HealthRules(), effects)
    for rank in ranks:
        health.add_rank(rank, rank in spares, 0.0)
    return health, effects


def fail(health, rank, kind, now=0.0, times=3):
    for _ in range(times):
        health.apply_check(rank, kind, now)


def test_a_weight_is_published_on_change_and_grows_after_a_recovery():
    health, effects = a_partition(A, B)
    assert effects == [], "weight 1 is what ranks have"
    fail(health, A, CheckKind.CONNECT)
    weights = [effect.weight for effect in effects if isinstance(effect, WeightChanged)]
    assert weights == [0.5, 0.0]
    health.advance_timers(60.0)
    health.apply_check(A, CheckKind.PASS, 60.0, 20.0)
    del effects[:]
    for now in range(60, 100, 10):
        health.advance_timers(float(now))
    assert effects == [WeightChanged(A, 0.5), WeightChanged(A, 0.75), WeightChanged(A, 1.0)]
    del effects[:]
    health.advance_timers(200.0)
    assert effects == []


def test_the_last_rank_is_kept_when_slow_and_ejected_for_wrong_answers():
    health, _ = a_partition(A)
    fail(health, A, CheckKind.LATENCY_SPIKE, times=9)
    assert health.registry[A].state is RankHealthState.SUSPICIOUS
    fail(health, A, CheckKind.TOKEN_MISMATCH, times=1)
    assert health.registry[A].state is RankHealthState.UNHEALTHY


@pytest.mark.parametrize("kind", [CheckKind.CONNECT, CheckKind.TOKEN_MISMATCH])
def test_an_unlimited_cause_ejects_all_ranks(kind):
    health, _ = a_partition(A, B, C)
    for rank in (A, B, C):
        fail(health, rank, kind)
    assert {record.state for record in health.registry} == {RankHealthState.UNHEALTHY}


def test_a_rank_that_leaves_makes_room_for_another_to_go():
    health, _ = a_partition(A, B, C)
    fail(health, A, CheckKind.HTTP_5XX)
    fail(health, B, CheckKind.HTTP_5XX)
    assert health.registry[B].state is RankHealthState.SUSPICIOUS, "one of three at most"
    health.remove_rank(A)
    fail(health, B, CheckKind.HTTP_5XX, times=1)
    assert health.registry[B].state is RankHealthState.UNHEALTHY
    health.check_invariants()


def test_forgiven_ranks_are_healthy_and_ejected_ones_stay_out():
    health, effects = a_partition(A, B)
    fail(health, A, CheckKind.TIMEOUT, times=2)
    fail(health, B, CheckKind.TIMEOUT)
    del effects[:]
    for rank in (A, B):
        health.clear_suspicion(rank, 1.0)
    assert [e for e in effects if isinstance(e, StateChanged)] == [
        StateChanged(A, RankHealthState.SUSPICIOUS, RankHealthState.HEALTHY, None)
    ]


def test_a_second_drain_plans_the_remaining_reservations():
    health, effects = a_partition(A, B)
    health.set_reservations(A, 5)
    health.drain_rank(A, 0.0)
    health.set_reservations(A, 2)
    health.drain_rank(A, 100.0)
    moves = [effect for effect in effects if isinstance(effect, MigrationRequested)]
    assert moves == [MigrationRequested(A, 5), MigrationRequested(A, 2)]
    health.advance_timers(399.0)
    assert not any(isinstance(effect, ReleaseRequested) for effect in effects)
    health.advance_timers(400.0)
    assert ReleaseRequested(A, 2) in effects
