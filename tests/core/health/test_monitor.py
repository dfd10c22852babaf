"""Tests of fleets with faults: ejected ranks, the time to ejection, and kept ranks."""

from itertools import pairwise

import pytest

from select_service.core.health.health_effects import (
    ChecksAccepted,
    ChecksRefused,
    EjectionWithheld,
    SparePromoted,
    StateChanged,
    WeightChanged,
)
from select_service.core.health.health_kinds import WRONG_ANSWERS, CheckKind, RankHealthState
from select_service.core.health.health_rules import HealthRules
from select_service.core.identity import Rank
from tests.builders.fleet_scene import KEY, Engine, FleetScene

FAULTS = ["connect", "hang", "500", "truncated", "wrong", "drift", "nan", "slow"]
CAUSES = dict(
    zip(
        FAULTS,
        [
            CheckKind.CONNECT,
            CheckKind.TIMEOUT,
            CheckKind.HTTP_5XX,
            CheckKind.MALFORMED,
            CheckKind.TOKEN_MISMATCH,
            CheckKind.LOGIT_DRIFT,
            CheckKind.LOGIT_DRIFT,
            CheckKind.LATENCY_SPIKE,
        ],
        strict=True,
    )
)
CHECK_S = {"hang": 3 * 5.0 + 1.0, "slow": 1.05}
"""Duration of a check, seconds; checks of other faults have three attempts of 0.05 s."""
BASELINE_S = 5 * 30.0


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("phase", [0.0, 3.0, 11.0, 19.0, 27.0])
def test_a_faulty_rank_is_out_in_time_and_the_others_stay(fault, phase):
    scene = FleetScene(4)
    scene.run(BASELINE_S + 30 + phase)
    sick = Rank(2, 0)
    scene.break_ranks(fault, sick)
    broken_at = scene.now
    scene.run(100)
    latency_s = CHECK_S.get(fault, 1.15)
    assert scene.out_at.keys() == {sick}
    assert scene.out_at[sick] - broken_at <= 30 + 2 * (2 + latency_s)
    assert scene.monitor.record_of(sick).cause is CAUSES[fault]


def test_a_rank_that_is_wrong_from_the_start_is_outvoted():
    scene = FleetScene(4)
    scene.break_ranks("wrong", Rank(0, 0))
    scene.run(40)
    assert scene.out_at.keys() == {Rank(0, 0)}


def test_a_rank_comes_back_after_three_probes_with_different_prompts():
    scene = FleetScene(4)
    scene.run(60)
    sick = Rank(1, 0)
    scene.break_ranks("wrong", sick)
    scene.run(40)
    scene.break_ranks("", sick)
    asked = len(scene.engines[sick].asked)
    scene.run(60)
    assert scene.state(sick) is RankHealthState.HEALTHY
    first, second, third = scene.engines[sick].asked[asked : asked + 3]
    assert second - first == pytest.approx(1.05, abs=0.1)
    assert third - second == pytest.approx(1.05, abs=0.1)
    weights = [
        e.weight for e in scene.current_effects if isinstance(e, WeightChanged) and e.rank == sick
    ]
    assert weights[:3] == [0.5, 0.0, 0.25]
    scene.run(40)
    assert scene.monitor.record_of(sick).published_weight == 1.0


class OneAnswerEngine(Engine):
    """Engine that is busy or unreachable for a second request within a second."""

    def attempt(self, prompt, now, seed):
        again = bool(self.asked) and now - self.asked[-1] < 1.0
        self.fault = self.then if again else ""
        return super().attempt(prompt, now, seed)


@pytest.mark.parametrize("then", ["connect", "busy"])
def test_a_wrong_answer_is_compared_without_a_later_answer(then):
    scene = FleetScene(5)
    scene.run(100)
    odd = scene.engines[Rank(1, 0)] = OneAnswerEngine(scene.rng, model=2)
    odd.then = then
    for engine in scene.engines.values():  # the model changes
        engine.model = 2
    scene.run(100)
    assert scene.monitor.counters.reference_changes
    assert not WRONG_ANSWERS & {kind for _, kind in scene.monitor.counters.failures}
    odd.model = 3
    scene.run(100)
    assert scene.out_at.keys() == {Rank(1, 0)}
    assert scene.monitor.record_of(Rank(1, 0)).cause in WRONG_ANSWERS


def test_noise_ejects_no_rank_in_ten_thousand_checks():
    scene = FleetScene(40, seed=3, rules=HealthRules(interval_s=5.0))
    for engine in scene.engines.values():
        engine.noise = 0.01
    scene.run(1300)
    assert sum(scene.monitor.counters.checks.values()) >= 10_000
    assert not scene.out_at


NOISY = [slice(0, 1), slice(0, 6), slice(0, 20), slice(0, 40)]


@pytest.mark.parametrize("repeats", [False, True], ids=["anew", "by_seed"])
@pytest.mark.parametrize("noisy", NOISY, ids=["one", "some", "half", "all"])
def test_noise_after_the_right_answers_are_learnt_ejects_no_rank(noisy, repeats):
    """Check the smallest learnt tolerance, which every other answer exceeds."""
    scene = FleetScene(40, seed=5, rules=HealthRules(interval_s=5.0))
    for engine in scene.engines.values():
        engine.noise, engine.repeats = 0.0, repeats
    scene.run(20)
    for engine in list(scene.engines.values())[noisy]:
        engine.noise = 0.01
    scene.run(1300)
    assert sum(scene.monitor.counters.checks.values()) >= 10_000
    assert not scene.out_at


def test_noise_that_ends_on_one_rank_ejects_no_rank():
    """Check references learnt under the noise of one seed, slightly wrong for all others."""
    scene = FleetScene(4)
    for engine in scene.engines.values():
        engine.noise, engine.repeats = 0.01, True
    scene.run(100)
    scene.engines[Rank(2, 0)].noise = 0.0
    scene.run(3000)
    assert not scene.out_at


@pytest.mark.parametrize("off", [0.03, -0.03, 0.1])
def test_a_constant_deviation_is_no_noise(off):
    scene = FleetScene(4)
    for engine in scene.engines.values():
        engine.noise, engine.repeats = 0.0, True
    scene.run(100)
    sick = scene.engines[Rank(2, 0)]
    sick.fault, sick.drift = "drift", off
    scene.run(100)
    assert scene.out_at.keys() == {Rank(2, 0)}
    assert scene.monitor.record_of(Rank(2, 0)).cause is CheckKind.LOGIT_DRIFT


def test_a_model_update_on_all_ranks_ejects_no_rank():
    scene = FleetScene(4)
    scene.run(100)
    for engine in scene.engines.values():
        engine.model = 2
    scene.run(200)
    assert not scene.out_at
    assert scene.monitor.counters.reference_changes == 3, "one for each prompt"
    assert CheckKind.TOKEN_MISMATCH not in scene.monitor.counters.checks, "no failure is counted"


def test_an_update_that_goes_through_a_fleet_in_seconds_ejects_no_rank():
    scene = FleetScene(8)
    scene.run(100)
    for engine in scene.engines.values():
        engine.model = 2
        scene.run(0.4)
    scene.run(200)
    assert not scene.out_at


def test_a_slow_update_of_known_versions_ejects_no_rank():
    scene = FleetScene(6)
    for engine in scene.engines.values():
        engine.weight_version = "1"
    scene.run(100)
    for engine in scene.engines.values():
        engine.model, engine.weight_version = 2, "2"
        scene.run(60)
    assert not scene.out_at


def test_a_network_fault_ejects_at_most_half():
    scene = FleetScene(8)
    scene.run(100)
    scene.break_ranks("hang", *scene.ranks)
    scene.run(300)
    assert len(scene.out_at) <= 4


@pytest.mark.parametrize(("host_ms", "goes"), [(0.0, True), (500.0, True), (1200.0, False)])
def test_a_time_that_a_busy_host_explains_is_not_judged(host_ms, goes):
    scene = FleetScene(4)
    scene.run(BASELINE_S + 60)
    sick = scene.engines[Rank(2, 0)]
    sick.fault, sick.host_ms = "slow", host_ms
    baseline_ms = scene.monitor.record_of(Rank(2, 0)).baseline.value_ms
    scene.run(100)
    assert bool(scene.out_at) is goes
    learnt = scene.monitor.record_of(Rank(2, 0)).baseline.value_ms
    assert learnt == pytest.approx(baseline_ms), "and teaches nothing"


def test_peers_of_a_slow_rank_are_not_checked_all_at_once():
    """Check spread checks behind one endpoint, or their delays would look like the network."""
    scene = FleetScene(6)
    scene.run(BASELINE_S + 30 + 3)
    sick, asked = Rank(2, 0), {}
    scene.break_ranks("slow", sick)
    while scene.state(sick) is not RankHealthState.SUSPICIOUS:
        scene.step()
    begun = scene.now
    scene.run(1.9)
    for rank, engine in scene.engines.items():
        asked |= {rank: engine.asked[-1]} if engine.asked[-1] >= begun and rank != sick else {}
    times = sorted(asked.values())
    assert len(times) == 5
    assert all(b - a >= 0.15 for a, b in pairwise(times))


def test_peers_checked_together_do_not_count_as_slow():
    scene = FleetScene(8)
    scene.run(300)
    crowded, wrong = scene.ranks[1:3], scene.ranks[0]
    scene.crowd(crowded)
    scene.break_ranks("wrong", wrong)
    scene.run(60)
    assert scene.slowed
    assert set(scene.out_at) == {wrong}
    changed = {each.rank for each in scene.current_effects if isinstance(each, StateChanged)}
    assert changed == {wrong}


def test_common_slowness_ejects_no_rank():
    scene = FleetScene(8)
    scene.run(BASELINE_S + 60)
    scene.break_ranks("slow", *scene.ranks)
    scene.run(300)
    assert not scene.out_at
    assert scene.monitor.counters.common_mode > 8
    assert scene.states() == {RankHealthState.HEALTHY: 8}


def test_one_or_two_ranks_are_judged_by_their_first_answer():
    scene = FleetScene(2)
    scene.run(100)
    scene.break_ranks("wrong", Rank(0, 0))
    scene.run(40)
    assert scene.out_at.keys() == {Rank(0, 0)}


def test_two_that_differ_from_the_start_both_stay():
    scene = FleetScene(2)
    scene.break_ranks("wrong", Rank(0, 0))
    scene.run(200)
    assert not scene.out_at
    assert scene.monitor.counters.disagreements > 0


def test_a_busy_rank_is_ejected_only_if_it_is_always_busy():
    scene = FleetScene(4)
    scene.run(100)
    scene.break_ranks("busy", Rank(0, 0))
    scene.run(240)
    assert not scene.out_at
    scene.run(200)
    assert scene.out_at.keys() == {Rank(0, 0)}


def test_a_request_that_is_refused_is_our_fault_and_shown():
    scene = FleetScene(2)
    scene.break_ranks("refuses", Rank(0, 0))
    scene.run(300)
    assert not scene.out_at
    assert scene.monitor.check_state_of(Rank(0, 0)).refusal_reason == "400 no such field"
    assert scene.monitor.counters.misconfigured >= 9
    scene.break_ranks("", Rank(0, 0))
    scene.run(31)
    assert scene.monitor.check_state_of(Rank(0, 0)).refusal_reason == ""
    refusal = ChecksRefused(Rank(0, 0), "http://0", KEY.model_name, "400 no such field")
    assert refusal_effects(scene) == [refusal, ChecksAccepted(Rank(0, 0))]


def refusal_effects(scene):
    return [e for e in scene.current_effects if isinstance(e, ChecksRefused | ChecksAccepted)]


def test_rejected_checks_are_reported_once_per_worker():
    scene = FleetScene(8, dp=4)
    of_worker = [Rank(0, n) for n in range(4)]
    scene.break_ranks("refuses", *of_worker)
    scene.run(100)
    assert len(refusal_effects(scene)) == 1
    assert scene.monitor.refusal_reason(0) == "400 no such field"
    assert scene.monitor.refusal_reason(1) == ""
    scene.break_ranks("", *of_worker[1:])
    scene.run(100)
    scene.break_ranks("connect", of_worker[0])  # a refused connection is no verdict on the request
    scene.run(100)
    assert len(refusal_effects(scene)) == 1
    assert scene.monitor.refusal_reason(0) == "400 no such field"
    scene.break_ranks("", of_worker[0])
    scene.run(600)
    assert refusal_effects(scene)[1:] == [ChecksAccepted(of_worker[0])]
    assert scene.monitor.refusal_reason(0) == ""


def test_a_new_registration_resets_rejected_checks():
    scene = FleetScene(4)
    scene.break_ranks("refuses", Rank(0, 0))
    scene.run(60)
    scene.join(0, "refuses")
    assert scene.monitor.refusal_reason(0) == ""
    scene.run(60)
    assert [type(effect) for effect in refusal_effects(scene)] == [ChecksRefused] * 2
    scene.monitor.remove_worker(0)
    assert scene.monitor.refusal_reason(0) == ""


def test_a_connection_that_fails_is_one_of_all_ranks_behind_the_endpoint():
    scene = FleetScene(8, dp=4)
    scene.run(100)
    scene.break_ranks("connect", *(Rank(0, n) for n in range(4)))
    broken_at = scene.now
    scene.run(40)
    assert scene.out_at.keys() == {Rank(0, n) for n in range(4)}
    assert max(scene.out_at.values()) - broken_at <= 30 / 4 + 2 * (2 + 1.1) + 5


def test_wrong_answers_eject_a_single_rank_of_a_worker():
    scene = FleetScene(8, dp=4)
    scene.run(100)
    scene.break_ranks("wrong", Rank(0, 1))
    scene.run(60)
    assert scene.out_at.keys() == {Rank(0, 1)}


def test_a_spare_replaces_an_ejected_rank():
    scene = FleetScene(4, spares={3})
    scene.run(60)
    scene.break_ranks("wrong", Rank(1, 0))
    scene.run(40)
    assert SparePromoted(Rank(3, 0), Rank(1, 0)) in scene.current_effects
    assert scene.monitor.record_of(Rank(3, 0)).published_weight == 1.0


def test_every_rank_has_exactly_one_turn_per_interval():
    scene = FleetScene(100)
    scene.run(120)
    before = {rank: len(engine.asked) for rank, engine in scene.engines.items()}
    scene.run(300)
    turns = {len(engine.asked) - before[rank] for rank, engine in scene.engines.items()}
    assert turns <= {9, 10, 11}


def test_a_dead_rank_is_checked_every_five_minutes_and_comes_back():
    scene = FleetScene(3)
    scene.run(60)
    rank = Rank(0, 0)
    scene.break_ranks("connect", rank)
    scene.run(700)
    assert scene.state(rank) is RankHealthState.DEAD
    asked = len(scene.engines[rank].asked)
    scene.run(301)
    assert 1 <= len(scene.engines[rank].asked) - asked <= 3
    scene.break_ranks("", rank)
    scene.run(310)
    assert scene.state(rank) is RankHealthState.HEALTHY


def test_the_last_serving_rank_is_kept_for_faults_that_may_be_the_network():
    scene = FleetScene(2)
    scene.run(60)
    scene.break_ranks("500", *scene.ranks)
    scene.run(100)
    assert len(scene.out_at) == 1
    assert any(isinstance(effect, EjectionWithheld) for effect in scene.current_effects)
    assert scene.monitor.counters.withheld > 0
