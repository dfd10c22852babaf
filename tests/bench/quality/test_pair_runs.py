"""Tests of rules for separate prefill and decode: all requests run, and the joint choice wins."""

import pytest

from scripts.bench.quality import pair_runs
from scripts.bench.quality.knowledge_workloads import make_session_workload
from scripts.bench.quality.quality_runs import make_cases

CASES = make_cases(None, None, 300)


@pytest.mark.parametrize("rule", pair_runs.RULES)
def test_every_rule_serves_all_requests(rule):
    found = pair_runs.run_rule(rule, CASES["agentic"], 1, 20.0)
    assert 0.0 < found.ttft_mean < found.ttft_p99
    assert found.objective_share > 0.5


def test_a_joint_choice_is_better_than_legs_apart():
    joint, first, apart = (
        pair_runs.run_rule(rule, CASES["agentic"], 1, 20.0)
        for rule in (pair_runs.BASE, "prefill first", "work apart")
    )
    assert joint.ttft_mean < apart.ttft_mean
    assert joint.ttft_mean < first.ttft_mean


def test_unknown_rules_are_refused():
    with pytest.raises(KeyError):
        pair_runs.run_rule("nobody", CASES["agentic"], 1, 20.0)


def test_siblings_begin_within_a_second():
    workload = make_session_workload("siblings", 1, 60)
    starts = workload.timed(workload.units, 10.0)
    for group in range(len(starts) // 12):
        members = starts[12 * group : 12 * group + 12]
        assert 0.0 < members.max() - members.min() <= 1.0
