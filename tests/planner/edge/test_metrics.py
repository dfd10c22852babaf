"""Series of a planner, as Prometheus reads them."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from select_service.planner.core.inputs import ForwardPass, Role
from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import Settings
from select_service.planner.edge import metrics
from select_service.planner.edge.metrics import metrics_text, registry_of
from select_service.planner.status import Statuses
from tests.planner.made_up import a_role, a_tick, effects, statuses_of

DOCUMENT = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()


def scraped(statuses):
    text = metrics_text(registry_of(statuses)).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(families, name, **labels):
    family = families[f"dynamo_planner_{name}"]
    found = [s.value for s in family.samples if labels.items() <= s.labels.items()]
    assert len(found) == 1, found
    return found[0]


def test_every_family_is_documented_and_every_documented_one_exists():
    exposed = {
        name + ("_total" if family.type == "counter" else "")
        for name, family in scraped(statuses_of("a")).items()
        if name.startswith("dynamo_planner_")
    }
    documented = set(re.findall(r"^\| `(dynamo_planner_\w+)`", DOCUMENT, re.MULTILINE))
    assert exposed == documented


def test_every_family_says_what_it_is():
    assert all(family.documentation.strip() for family in scraped(statuses_of("a")).values())


def test_each_deployment_has_its_series():
    families = scraped(statuses_of("a", "b"))
    for name in ("a", "b"):
        assert value(families, "num_prefill_replicas", deployment=name) >= 1
        assert value(families, "sla_target_ttft_ms", deployment=name) == 500.0
        assert 0.5 < value(families, "attainment", deployment=name, slo="ttft") <= 1.0
        assert value(families, "forecast_error", deployment=name) == 0.08


def test_before_the_first_tick_what_is_not_known_has_no_series():
    statuses = Statuses()
    statuses.changed("a", Settings(), 0.0)
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
    statuses = Statuses()
    statuses.changed("a", Settings(mode="agg"), 0.0)
    told = effects(1.0, {Role.DECODE: a_role(1)}, load_reason=reason)
    statuses.ticked("a", a_tick(1.0), told, None)
    state = {"deployment": "a", "dynamo_planner_load_scaling_decision": reason.value}
    assert value(scraped(statuses), "load_scaling_decision", **state) == 1.0


def test_states_of_the_reference_come_first_and_in_its_order():
    assert metrics.LOAD_STATES[:4] == ("unset", "disabled", "no_fpm_data", "scaling_in_progress")
    assert metrics.LOAD_STATES[17] == "gpu_budget_reconcile"
    assert metrics.THROUGHPUT_STATES[13] == "gpu_budget_reconcile"
    assert len(set(metrics.LOAD_STATES)) == len(metrics.LOAD_STATES)
    assert len(set(metrics.THROUGHPUT_STATES)) == len(metrics.THROUGHPUT_STATES)


def test_ranks_beyond_the_bound_have_no_series_and_are_counted():
    statuses = Statuses()
    statuses.changed("a", Settings(mode="agg"), 0.0)
    passes = tuple(ForwardPass(worker=str(i)) for i in range(metrics.ENGINES_MAX + 7))
    told = effects(1.0, {Role.DECODE: a_role(1)})
    statuses.ticked("a", a_tick(1.0, passes={Role.DECODE: passes}), told, None)
    families = scraped(statuses)
    engines = families["dynamo_planner_engine_queued_prefill_tokens"].samples
    assert len(engines) == metrics.ENGINES_MAX
    assert value(families, "engine_series_truncated") == 7.0
