"""The morning ramp of docs/planner-quality.md: kept promises for little more than must be paid."""

import pytest

from scripts.bench.planner_quality import configurations, fleet_of, fresh, least_of, scenarios
from select_service.planner.assembling import deployment_of
from select_service.planner.core.settings import roles_of
from select_service.planner.replay.run import Course, Outcome, Run


@pytest.mark.slow
def test_a_morning_ramp_keeps_the_promise_for_little_more_than_the_least() -> None:
    scenario = scenarios(None)["ramp"]
    until_s = scenario.hours * 3600.0
    requests = scenario.requests(until_s)
    least = least_of(requests, "disagg", scenario.ttft_ms)
    known = configurations("disagg", [60.0], scenario.ttft_ms)
    found: dict[str, Outcome] = {}
    for name in ("ours 60s", "document 60s"):
        settings = known[name]
        course = Course(
            fleet=fleet_of("disagg"),
            replicas=dict.fromkeys(roles_of(settings), scenario.begin),
            until_s=until_s,
        )
        found[name] = Run(settings, deployment_of(settings, 0.0), course).go(fresh(requests), least)
    ours = found["ours 60s"]
    assert ours.attainment >= 0.95
    assert ours.gpu_hours <= 1.15 * least
    assert ours.reversals_an_hour <= 2.0
    assert (ours.failed, ours.over_budget_s, ours.unfinished) == (0, 0.0, 0)
    assert ours.attainment > found["document 60s"].attainment
