"""An experiment in virtual time, next to runs of either policy alone."""

from scripts.bench.quality.switchback import Plan, found
from select_service.core.decide.policies import choice_named


def test_an_experiment_finds_the_better_policy():
    policies = choice_named("work"), choice_named("reference")
    seen = found(Plan("agents", policies, requests=2000, seed=1, slot_s=40.0))
    assert seen.result.pairs >= 2
    assert seen.alone[0] < seen.alone[1]
    assert seen.result.means_s[0] < seen.result.means_s[1]
