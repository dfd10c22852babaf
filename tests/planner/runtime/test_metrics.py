"""Tests of the planner's series as Prometheus reads them."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import ForwardPass, Role
from select_service.planner.deployment_status import DeploymentStatuses
from select_service.planner.runtime import planner_metrics
from select_service.planner.runtime.planner_metrics import make_registry, render_metrics
from tests.planner.invented_ticks import a_role, a_tick, effects, statuses_of


def scraped(statuses):
    text = render_metrics(make_registry(statuses)).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(families, name, **labels):
    family = families[f"dynamo_planner_{name}"]
    found = [s.value for s in family.samples if labels.items() <= s.labels.items()]
    assert len(found) == 1, found
    return found[0]


def test_every_family_has_documentation():
    assert all(family.documentation.strip() for family in scraped(statuses_of("a")).values())


def test_each_deployment_has_its_series():
    families = scraped(statuses_of("a", "b"))
    for name in ("a", "b"):
        assert value(families, "num_prefill_replicas", deployment=name) >= 1
        assert value(families, "sla_target_ttft_ms", deployment=name) == 500.0
        assert 0.5 < value(families, "attainment", deployment=name, slo="ttft") <= 1.0
        assert value(families, "forecast_error", deployment=name) == 0.08
        assert value(families, "observed_local_share", deployment=name) == 0.25
        assert value(families, "observed_link_use", deployment=name) == 0.25
        assert value(families, "observed_link_backlog_seconds", deployment=name) == 0.5
        assert value(families, "observed_moved_tokens_per_second", deployment=name) > 0.0


def test_unknown_values_have_no_series_before_the_first_tick():
    statuses = DeploymentStatuses()
    statuses.changed("a", DeploymentSettings(), 0.0)
    families = scraped(statuses)
    assert not families["dynamo_planner_num_prefill_replicas"].samples
    assert value(families, "gpu_hours", deployment="a") == 0.0
    state = {"deployment": "a", "dynamo_planner_load_scaling_decision": "unset"}
    assert value(families, "load_scaling_decision", **state) == 1.0


def test_one_state_of_an_enumeration_is_1():
    statuses = statuses_of("a", ticks=3)
    for name in ("load_scaling_decision", "throughput_scaling_decision"):
        family = scraped(statuses)[f"dynamo_planner_{name}"]
        assert sum(sample.value for sample in family.samples) == 1.0


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_can_be_a_state(reason):
    statuses = DeploymentStatuses()
    statuses.changed("a", DeploymentSettings(mode="agg"), 0.0)
    told = effects(1.0, {Role.DECODE: a_role(1)}, load_reason=reason)
    statuses.ticked("a", a_tick(1.0), told, None)
    state = {"deployment": "a", "dynamo_planner_load_scaling_decision": reason.value}
    assert value(scraped(statuses), "load_scaling_decision", **state) == 1.0


def test_states_of_the_reference_come_first_and_in_its_order():
    assert planner_metrics.LOAD_STATES[:4] == (
        "unset",
        "disabled",
        "no_fpm_data",
        "scaling_in_progress",
    )
    assert planner_metrics.LOAD_STATES[17] == "gpu_budget_reconcile"
    assert planner_metrics.THROUGHPUT_STATES[13] == "gpu_budget_reconcile"
    assert len(set(planner_metrics.LOAD_STATES)) == len(planner_metrics.LOAD_STATES)
    assert len(set(planner_metrics.THROUGHPUT_STATES)) == len(planner_metrics.THROUGHPUT_STATES)


def test_ranks_beyond_the_bound_have_no_series_and_are_counted():
    statuses = DeploymentStatuses()
    statuses.changed("a", DeploymentSettings(mode="agg"), 0.0)
    passes = tuple(ForwardPass(worker=str(i)) for i in range(planner_metrics.ENGINES_MAX + 7))
    told = effects(1.0, {Role.DECODE: a_role(1)})
    statuses.ticked("a", a_tick(1.0, passes={Role.DECODE: passes}), told, None)
    families = scraped(statuses)
    engines = families["dynamo_planner_engine_queued_prefill_tokens"].samples
    assert len(engines) == planner_metrics.ENGINES_MAX
    assert value(families, "engine_series_truncated") == 7.0
