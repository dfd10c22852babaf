"""Tests of the text that Prometheus reads: true, bounded, and with counters that never fall."""

import os
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
import pytest
from prometheus_client import ProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from indexer.hashing.block_hashing import compute_block_hashes
from indexer.index.cache_group_status import CacheGroupStatus
from indexer.sockets.listener_status import ListenerStatus
from indexer.tiers import Tier
from scripts.docs.metrics_page import metrics_page
from select_service.core.identity import PartitionKey, Rank
from select_service.core.placement import plan_layout
from select_service.core.placement.policies.policy_registry import PolicyChoice
from select_service.core.registry.fleet.scoped_policies import PolicyScope
from select_service.core.shared_caches.cache_status import SharedCacheStatus
from select_service.metrics import service_metrics as metrics_module
from select_service.metrics.access import AccessReport, AuditCounts
from select_service.metrics.decision_log import DecisionLogCounts
from select_service.metrics.discovery import SourceReport
from select_service.metrics.series import GrowingSums, SeriesChooser
from select_service.metrics.service_metrics import (
    SELECTION_BUCKETS_S,
    ComponentFigures,
    ServiceMetrics,
)
from select_service.metrics.tls import TlsFigures
from select_service.metrics.tracing import TracingCounts
from select_service.net.tls.current_tls import TlsReport
from select_service.net.tls.server_handshakes import HandshakeCounts
from select_service.schemas.replicas import ReplicaStatus
from select_service.schemas.shared_caches import SharedOutcome
from tests.builders import a_reservation, a_select, a_select_and_reserve, a_selector, a_worker
from tests.builders.in_process import Api
from tests.builders.routes import BY_ID
from tests.builders.steps import result_of
from tests.builders.ticks import ticked
from tests.core.analysis.test_checks import Scene, serve_request
from tests.planner.runtime.test_metrics import scraped as planner_scraped
from tests.planner.runtime.test_metrics import statuses_of as planner_statuses

NOW = 1000.0
OUTCOMES = get_args(SharedOutcome)
DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


class Listeners:
    """Fake listeners with a status that a test sets."""

    def __init__(self):
        self.statuses = {}


def a_status(**fields):
    values = {
        "state": "connected",
        "endpoint": "tcp://w:5557",
        "replay_endpoint": None,
        "last_sequence": 9,
        "batches": 0,
        "gaps": 0,
        "replayed": 0,
        "lost": 0,
        "stale": 0,
        "restarts": 0,
        "decode_errors": 0,
        "last_error": None,
        "is_size_wrong": False,
        "last_event_monotonic": None,
        "connected": True,
        "is_counted": True,
        "inflations": 0,
        "degraded": None,
        "degraded_monotonic": None,
        "connect_error": None,
        "unconnected_monotonic": None,
        "doubt": None,
        "doubted_monotonic": None,
        "stored_blocks": 0,
        "removed_blocks": 0,
        "dropped": {},
    }
    return ListenerStatus(**{**values, **fields})


class Scraped:
    """Scrape, read with Prometheus' own parser."""

    def __init__(self, text):
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = {
            (sample.name.removeprefix("select_service_"), frozenset(sample.labels.items())): (
                sample.value
            )
            for family in self.families.values()
            for sample in family.samples
        }
        assert len(self.samples) == sum(len(f.samples) for f in self.families.values())

    def value(self, name, **labels):
        return self.samples.get((name, frozenset((k, str(v)) for k, v in labels.items())))

    def series(self, name):
        return [dict(labels) for found, labels in self.samples if found == name]


@pytest.fixture
def selector():
    selector = a_selector(ttl_s=10.0)
    selector.register_worker(a_worker(1, data_parallel_size=2))
    return selector


@pytest.fixture
def listeners():
    return Listeners()


@pytest.fixture
def metrics():
    return ServiceMetrics("1.2.3", clock=lambda: NOW)


def scraped(metrics, selector, listeners):
    seen = result_of(metrics.copy_state(selector, ComponentFigures(listeners.statuses)))
    return Scraped(metrics.render_text(seen).decode())


@pytest.fixture
def scrape(metrics, selector, listeners):
    return lambda: scraped(metrics, selector, listeners)


SCOPE = {"model_name": "m", "tenant_id": "default"}


def test_requests_are_counted_by_route_method_and_status(metrics, scrape):
    for status in (200, 200, 503):
        metrics.count_request("/select", "POST", status)
    seen = scrape()
    assert seen.value("requests_total", route="/select", method="POST", status=200) == 2
    assert seen.value("requests_total", route="/select", method="POST", status=503) == 1


def test_invented_methods_share_one_series(metrics, scrape):
    for method in ("BREW", "WHEN", "PROPFIND"):
        metrics.count_request("/select", method, 405)
    seen = scrape()
    assert seen.value("requests_total", route="/select", method="other", status=405) == 3
    assert len(seen.series("requests_total")) == 1


def test_the_latency_histogram_is_cumulative_and_includes_its_bounds(metrics, scrape):
    for seconds in (1e-6, SELECTION_BUCKETS_S[0], SELECTION_BUCKETS_S[1], 2.0):
        metrics.record_selection("/select", seconds)
    seen = scrape()
    first, second = SELECTION_BUCKETS_S[:2]
    bucket = "selection_duration_seconds_bucket"
    assert seen.value(bucket, route="/select", le=first) == 2
    assert seen.value(bucket, route="/select", le=second) == 3
    assert seen.value(bucket, route="/select", le="1.0") == 3
    assert seen.value(bucket, route="/select", le="+Inf") == 4
    assert seen.value("selection_duration_seconds_count", route="/select") == 4
    assert seen.value("selection_duration_seconds_sum", route="/select") == pytest.approx(
        2.0 + 1e-6 + first + second
    )


def test_version_is_shown(scrape):
    assert scrape().value("build_info", version="1.2.3") == 1


def test_the_process_is_shown_under_the_names_of_all_processes(scrape):
    seen = scrape()
    for family in ProcessCollector(registry=None).collect():  # empty except on Linux
        (sample,) = family.samples
        assert seen.value(sample.name) > 0
    assert not any(name.startswith("select_service_process_") for name in seen.families)


def test_selector_state_is_read_at_scrape_time(selector, scrape):
    selector.reserve(a_reservation("a", 1, tokens=8), 0.0)
    selector.reserve(a_reservation("b", 1, tokens=8), 0.0)
    selector.complete_prefill("b", 0.0)
    seen = scrape()
    rank = {**SCOPE, "worker_id": 1, "dp_rank": 0}
    assert seen.value("reservations", state="prefill") == 1
    assert seen.value("reservations", state="decode") == 1
    assert seen.value("reserved_blocks") == 4
    assert seen.value("prefill_tokens", **rank) == 8
    assert seen.value("active_blocks", **rank) == 2
    assert seen.value("active_requests", **rank) == 2
    assert seen.value("active_requests", **{**rank, "dp_rank": 1}) == 0
    ticked(selector, 11.0)
    seen = scrape()
    assert seen.value("reservations", state="prefill") == 0
    assert seen.value("reservations_expired_total") == 2
    assert seen.value("active_requests", **rank) == 0


def test_kv_blocks_are_shown_by_rank_with_a_known_total(selector, scrape):
    selector.register_worker(a_worker(2, total_kv_blocks=100))
    selector.reserve(a_reservation("a", 2, tokens=8), 0.0)
    seen = scrape()
    assert seen.value("kv_blocks_active", **SCOPE, worker_id=2, dp_rank=0) == 2
    assert seen.value("kv_blocks_max", **SCOPE, worker_id=2, dp_rank=0) == 100
    assert len(seen.series("kv_blocks_active")) == 3
    assert len(seen.series("kv_blocks_max")) == 1


def test_workers_are_shown_by_lifecycle(selector, scrape):
    selector.register_worker(a_worker(2, endpoint=None))
    seen = scrape()
    assert seen.value("workers", lifecycle="schedulable") == 1
    assert seen.value("workers", lifecycle="incomplete") == 1
    assert seen.value("workers", lifecycle="unschedulable") == 0


def test_the_policy_of_a_partition_is_a_label(selector, scrape):
    selector.register_worker(a_worker(2, tenant_id="t"))
    policies = selector.fleet.policies
    policies.put_rule(PolicyScope("m", "t"), PolicyChoice("least_work"))
    for _ in policies.apply_to_partitions():
        pass
    assert scrape().series("policy") == [
        {**SCOPE, "policy": "work"},
        {**SCOPE, "tenant_id": "t", "policy": "least_work"},
    ]


def test_decisions_and_overlap_are_counters_of_blocks(selector, scrape):
    partition = selector.fleet.partitions[PartitionKey("m", "default")]
    blocks = compute_block_hashes(np.arange(8, dtype=np.uint32), 4)
    partition.table.writer_of(Rank(1, 1)).store(Tier.GPU, None, blocks, blocks)
    selector.select(a_select(20), 0.0)
    selector.select_and_reserve(a_select_and_reserve(20), 0.0)
    seen = scrape()
    assert seen.value("decisions_total", **SCOPE, kind="select") == 1
    assert seen.value("decisions_total", **SCOPE, kind="reserve") == 1
    assert seen.value("prompt_blocks_total", **SCOPE) == 10
    assert seen.value("matched_blocks_total", **SCOPE, tier="gpu") == 4
    assert seen.value("matched_blocks_total", **SCOPE, tier="disk") == 0
    assert seen.value("best_reachable_overlap_blocks_total", **SCOPE) == 4
    assert seen.value("chosen_overlap_blocks_total", **SCOPE) == 4
    assert seen.value("index_blocks", **SCOPE) == 2
    assert seen.value("index_memberships", **SCOPE) == 2
    assert seen.value("index_bytes", **SCOPE) > 0


def test_claimed_tokens_are_counted_by_certainty(selector, scrape):
    tally = selector.fleet.partitions[PartitionKey("m", "default")].placer.tally_words
    before = tally[: plan_layout.N_TALLY].tolist()
    tally[plan_layout.T_EXACT_TOKENS] += 30
    tally[plan_layout.T_BOUND_TOKENS] += 12
    tally[plan_layout.T_LEAST_TOKENS] += 5
    tally[plan_layout.T_UNCERTAIN_TOKENS] += 3
    tally[plan_layout.T_ASSUMED_TOKENS] += 7
    seen = scrape()
    exact, at_most = before[plan_layout.T_EXACT_TOKENS], before[plan_layout.T_BOUND_TOKENS]
    assert seen.value("claimed_tokens_total", **SCOPE, certainty="exact") == exact + 30
    assert seen.value("claimed_tokens_total", **SCOPE, certainty="at_most") == at_most + 12
    assert seen.value("claimed_tokens_total", **SCOPE, certainty="at_least") == 5
    assert seen.value("claimed_tokens_total", **SCOPE, certainty="unknown") == 3
    assert seen.value("claimed_tokens_total", **SCOPE, certainty="assumed") == 7


def test_ranks_are_counted_by_certainty(listeners, scrape):
    groups = CacheGroupStatus(groups=(), unit=16, reasons=("one",))
    listeners.statuses = {
        (1, 0): a_status(),
        (1, 1): a_status(cache_groups=groups),
        (1, 2): a_status(cache_groups=groups._replace(reasons=())),
    }
    seen = scrape()
    assert seen.value("kv_cache_ranks", certainty="exact") == 2
    assert seen.value("kv_cache_ranks", certainty="at_most") == 1


def test_listener_counters_and_lag_are_per_rank(listeners, scrape):
    listeners.statuses = {
        (1, 0): a_status(batches=5, gaps=1, lost=2, last_event_monotonic=NOW - 2.5),
        (1, 1): a_status(state="no_events_yet", decode_errors=3),
        (1, 2): a_status(state="unconnected", connected=False),
    }
    seen = scrape()
    assert seen.value("kv_event_batches_total", worker_id=1, dp_rank=0) == 5
    assert seen.value("kv_event_lost_batches_total", worker_id=1, dp_rank=0) == 2
    assert seen.value("kv_event_lag_seconds", worker_id=1, dp_rank=0) == 2.5
    assert seen.value("kv_event_decode_errors_total", worker_id=1, dp_rank=1) == 3
    assert seen.value("kv_event_lag_seconds", worker_id=1, dp_rank=1) is None
    assert seen.value("kv_event_listeners", state="connected") == 1
    assert seen.value("kv_event_listeners", state="no_events_yet") == 1
    assert seen.value("kv_event_listeners", state="unconnected") == 1


def test_dropped_events_stay_counted_when_their_rank_leaves(listeners, scrape):
    listeners.statuses = {(1, 0): a_status(dropped={"medium": 3})}
    assert scrape().value("kv_event_dropped_total", reason="medium") == 3
    listeners.statuses = {(2, 0): a_status(dropped={"medium": 1})}
    assert scrape().value("kv_event_dropped_total", reason="medium") == 4
    listeners.statuses = {}
    assert scrape().value("kv_event_dropped_total", reason="medium") == 4


def test_labels_of_any_text_are_escaped_and_read_back(selector, scrape):
    evil = 'a"b\\c\nd{}é'
    selector.register_worker(a_worker(7, model_name=evil, tenant_id=""))
    seen = scrape()
    assert seen.value("ranks", model_name=evil, tenant_id="") == 1


def test_ranks_beyond_the_bound_are_summed(monkeypatch, selector, scrape):
    monkeypatch.setattr(metrics_module, "RANK_SERIES_MAX", 1)
    selector.reserve(a_reservation("a", 1, tokens=8), 0.0)
    selector.reserve(a_reservation("b", 1, tokens=12, dp_rank=1), 0.0)
    seen = scrape()
    assert seen.value("prefill_tokens", **SCOPE, worker_id=1, dp_rank=0) == 8
    assert seen.value("prefill_tokens", **SCOPE, worker_id="other", dp_rank="other") == 12
    assert len(seen.series("prefill_tokens")) == 2
    assert seen.value("rank_series_truncated") == 1


def test_partitions_beyond_the_bound_are_summed(monkeypatch, selector, listeners):
    monkeypatch.setattr(metrics_module, "PARTITION_SERIES_MAX", 1)
    metrics = ServiceMetrics("1")
    for worker_id in (2, 3):
        selector.register_worker(a_worker(worker_id, model_name=f"m{worker_id}"))
        selector.select(a_select(8, model_name=f"m{worker_id}"), 0.0)
        selector.reserve(
            a_reservation(f"r{worker_id}", worker_id, tokens=8, model_name=f"m{worker_id}"), 0.0
        )
    seen = scraped(metrics, selector, listeners)
    other = {"model_name": "other", "tenant_id": "other"}
    assert seen.value("prompt_blocks_total", **SCOPE) == 0
    assert seen.value("prompt_blocks_total", **other) == 4
    assert seen.value("ranks", **other) == 2
    assert seen.value("prefill_tokens", **other, worker_id="other", dp_rank="other") == 16
    assert seen.value("partition_series_truncated") == 2
    assert len(seen.series("ranks")) == 2


def test_a_partition_that_is_really_called_other_makes_no_second_series(selector, scrape):
    selector.register_worker(a_worker(5, model_name="other", tenant_id="other"))
    seen = scrape()  # raises on equal series
    assert seen.value("ranks", model_name="other", tenant_id="other") == 1


def test_listeners_beyond_the_bound_are_summed_and_the_sum_never_falls(
    monkeypatch, selector, listeners
):
    monkeypatch.setattr(metrics_module, "RANK_SERIES_MAX", 1)
    metrics = ServiceMetrics("1")

    def others():
        seen = scraped(metrics, selector, listeners)
        return seen.value("kv_event_batches_total", worker_id="other", dp_rank="other")

    listeners.statuses = {(1, 0): a_status(batches=100), (2, 0): a_status(batches=5)}
    assert others() == 5
    listeners.statuses[3, 0] = a_status(batches=10)
    assert others() == 15
    del listeners.statuses[2, 0]
    listeners.statuses[3, 0] = a_status(batches=11)
    assert others() == 16


def test_a_place_that_becomes_free_goes_to_a_newcomer():
    chosen = SeriesChooser(2)
    assert chosen.choose_keys("abc") == {"a", "b"}
    assert chosen.choose_keys("cab") == {"a", "b"}
    assert chosen.choose_keys("bc") == {"b"}
    assert chosen.choose_keys("bcd") == {"b", "d"}
    assert chosen.choose_keys("") == set()


def test_a_counter_that_started_anew_counts_from_zero():
    sums = GrowingSums()
    assert sums.add_growth("x", {"a": 10}) == 10
    assert sums.add_growth("x", {"a": 4}) == 14
    assert sums.add_growth("x", {}) == 14
    assert sums.add_growth("x", {"b": 1}) == 15


def test_ranks_are_shown_with_the_accuracy_of_predictions(metrics, listeners, monkeypatch):
    scene = Scene()
    for number in range(8):
        serve_request(scene, 1, 2 * number, 10.0 * number, announced=10)
        serve_request(scene, 2, 2 * number + 500, 10.0 * number + 5, announced=0)
    scene.reserve(1, [5] * 40, 100.0)
    scene.checks.run_turn(100.0)
    seen = scraped(metrics, scene.selector, listeners)
    assert seen.value("rank_trust", worker_id=1, dp_rank=0) == 1
    assert seen.value("rank_trust", worker_id=2, dp_rank=0) == 0
    assert seen.value("rank_wait_error", worker_id=2, dp_rank=0) == pytest.approx(0)
    assert seen.value("ranks_suspect") == 1
    assert seen.value("prediction_checks_pending") == 1
    assert seen.value("prediction_proved_ratio_bucket", le="0.0") == 8
    assert seen.value("prediction_proved_ratio_count") == 16
    assert seen.value("prediction_wait_ratio_count") == 14
    monkeypatch.setattr(metrics_module, "RANK_SERIES_MAX", 1)
    fewer = scraped(metrics, scene.selector, listeners)
    assert len(fewer.series("rank_trust")) == 1


def test_the_page_of_all_families_is_current(metrics, listeners):
    selector = a_selector(use_kv_events=True, decisions_kept=1, shadow=PolicyChoice("reference"))
    selector.register_worker(a_worker(1, kv_events_endpoint="ipc:///nowhere/a"))
    selector.select(a_select(), NOW)
    selector.followers.evaluation.shadow.run_turn(NOW)
    policies = PolicyChoice("work"), PolicyChoice("reference")
    selector.followers.evaluation.experiments.begin_experiment(
        policies, 120.0, PolicyScope("m"), NOW
    )
    listeners.statuses = {(1, 0): a_status(last_event_monotonic=NOW, dropped={"medium": 1})}
    metrics.count_request("/select", "POST", 200)
    metrics.record_selection("/select", 1e-4)
    replicas = msgspec.convert(BY_ID["replica_status"].answers[200].example, ReplicaStatus)
    edges = ComponentFigures(
        listeners.statuses,
        replicas,
        engine_scrapes={"ok": 1},
        decision_log=DecisionLogCounts(),
        access=AccessReport({("/select", "web", "forbidden"): 1}, 1, 1, 0, False),
        audit=AuditCounts(),
        discovery=[SourceReport("a", 1, 0, False, 1, 1, 0, 0, 0, 0)],
        tls=TlsFigures(HandshakeCounts(1, 1, 1, 1, 1), {"server": TlsReport(1.0, 1, 1, False)}),
        tracing=TracingCounts(),
        followed={"api_keys_file": 0.5},
        shared_caches=[
            SharedCacheStatus(
                "m", "mooncake", "u", dict.fromkeys(OUTCOMES, 1), 1, 0.1, 1, False, "x"
            )
        ],
    )
    seen = Scraped(metrics.render_text(result_of(metrics.copy_state(selector, edges))).decode())
    with Api("--health-checks=on") as api:
        healthy = Scraped(api.get("/metrics").body)
    families = [*seen.families.values(), *healthy.families.values()]
    families += planner_scraped(planner_statuses("a")).values()
    page = metrics_page(each for each in families if not each.name.startswith("process_"))
    if os.environ.get("UPDATE_PAGES"):
        DOCUMENT.write_text(page)
    assert page == DOCUMENT.read_text(), "write the page: UPDATE_PAGES=1 pytest " + __file__


def test_every_family_has_a_help_text(metrics, scrape):
    metrics.record_selection("/select", 1e-4)
    assert all(family.documentation.strip() for family in scrape().families.values())
