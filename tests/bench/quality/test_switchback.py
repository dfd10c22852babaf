"""Test of a switchback experiment in virtual time next to runs of either policy alone."""

from scripts.bench.quality.switchback import SwitchbackPlan, run_switchback
from select_service.core.placement.policies.policy_registry import parse_policy_choice


def test_an_experiment_finds_the_better_policy():
    policies = parse_policy_choice("work"), parse_policy_choice("reference")
    seen = run_switchback(SwitchbackPlan("agents", policies, requests=2000, seed=1, slot_s=40.0))
    assert seen.result.pairs >= 2
    assert seen.alone[0] < seen.alone[1]
    assert seen.result.means_s[0] < seen.result.means_s[1]
