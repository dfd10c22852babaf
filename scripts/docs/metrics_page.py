# ruff: noqa: E501 -- long lines are lines of the page
"""Page of all metric families, from families that were exposed with every feature switched on.

`tests/metrics/test_metrics.py` exposes them, compares the page and writes it with
`UPDATE_PAGES=1`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import Metric

from scripts.docs.markdown import code, marked, table

INTRODUCTION = """\
# Metrics

`GET /metrics` answers in the Prometheus text format; values are read at the moment of the scrape. Names begin with
`select_service_`, except for names of Dynamo (`dynamo_`), whose queries and alerts work here, and the usual `process_*`
metrics of Prometheus' Python client. Families of a feature exist only while it is switched on. Example queries, alerts
and a dashboard: [monitoring](../guides/monitoring.md).

* Partitions, workers and ranks beyond the first 512 share one series with the label value `other`.
* Columns: `c` counter (sample names end with `_total`), `g` gauge, `h` histogram (`_bucket`, `_sum`, `_count`).
* Labels with a fixed set of values list it, those of several families below; values can be added in any version.
* Counters count since the start of the process, so read them by `rate` or `increase`; gauges are values of the moment.

| label | meaning |
|---|---|
| `model_name`, `tenant_id` | scope of the requests |
| `worker_id`, `dp_rank` | registered worker, and its data-parallel rank |
| `tp_group` | equal to `worker_id`, for queries of Dynamo |
| `source_group`, `target_group` | worker from which and to which a reservation moved |
| `peer` | another replica, by its name or address |
| `key`, `scope` | name of an API key; whether its own share or that of its tenants was used up |
| `route`, `method`, `status` | declared path of the API, HTTP method and status |
| `policy_class`, `tier` | class of the queue; priority tier, or storage of a block |
| `source`, `file` | discovery source; followed file |
| `experiment`, `policy` | id of an experiment; placement policy |
| `deployment`, `role`, `slo` | deployment in the planner file, prefill or decode, promised latency |
| `plugin`, `stage` | plugin of the planner file, and its stage |
"""
SECTIONS: Sequence[tuple[str, tuple[str, ...]]] = (
    ("Planner (`GET /metrics` of `select-planner`)", ("planner_",)),
    ("Admission", ("admission_", "tasks_", "queue", "queued_", "busy_", "engine_")),
    (
        "Health",
        (
            "health_",
            "worker_status",
            "circuit_",
            "degradation_",
            "migration_",
            "canary_",
            "spares",
            "capacity_",
            "reservations_given_up",
        ),
    ),
    (
        "Decisions and predictions",
        (
            "decision",
            "policy",
            "prompt_",
            "matched_",
            "best_",
            "chosen_",
            "claimed_",
            "reported_",
            "shared_cache_",
            "kv_sources",
            "rank_",
            "ranks_suspect",
            "prediction_",
            "shadow_",
            "experiment_",
        ),
    ),
    (
        "Load and workers",
        ("prefill_tokens", "active_", "kv_blocks", "reservation", "reserved_", "workers", "ranks"),
    ),
    ("Index, recovery and snapshots", ("index_", "recovery_", "snapshot_", "dumps")),
    ("KV events", ("kv_event", "kv_cache")),
    ("Replicas", ("replica_",)),
    ("Requests, tasks and access", ("",)),
)
OPEN_LABELS = frozenset(
    [
        "model_name",
        "tenant_id",
        "worker_id",
        "dp_rank",
        "peer",
        "key",
        "route",
        "source",
        "experiment",
        "file",
        "method",
        "status",
        "policy_class",
        "source_group",
        "target_group",
        "tp_group",
        "deployment",
        "version",
        "python",
        "numba",
        "loop",
        "policy",
    ]
)
"""Labels with values of one fleet, not listed."""
RANK = "`model_name`; `tenant_id`; `worker_id`; `dp_rank`"
SAMPLELESS: Mapping[str, str] = {
    "dynamo_circuit_breaker_state": "`worker_id`",
    "dynamo_degradation_level": "`model_name`",
    "dynamo_health_check_duration_seconds": "`worker_id`; `check_type`: canary, probe",
    "dynamo_migration_duration_seconds": "`method`",
    "dynamo_migration_total": "`source_group`; `target_group`; `method`: abort, reprefill, transfer",
    "dynamo_planner_plugin_call_seconds": "`deployment`; `plugin`",
    "dynamo_planner_plugin_calls_total": "`deployment`; `plugin`; `stage`; `outcome`: answered, busy, failed, invalid, paused, repeated, timed_out",
    "dynamo_planner_plugin_up": "`deployment`; `plugin`",
    "dynamo_worker_status": "`worker_id`; `tp_group`",
    "select_service_busy_ranks": "`model_name`; `tenant_id`",
    "select_service_busy_threshold_decode_blocks": "`model_name`",
    "select_service_busy_threshold_prefill_tokens": "`model_name`",
    "select_service_busy_workers": "`model_name`; `tenant_id`",
    "select_service_capacity_ratio": "`model_name`",
    "select_service_connections_refused_total": "`purpose`: canary, discovery, doctor, events, metrics, "
    "other, recovery, replay, replica, replica_list, shared_cache",
    "select_service_engine_kv_usage": RANK,
    "select_service_engine_requests_running": RANK,
    "select_service_engine_requests_waiting": RANK,
    "select_service_health_failures_total": "`worker_id`; `reason`: check results, fatal, passive",
    "select_service_health_transitions_total": "`from`; `to`",
    "select_service_kv_blocks_max": RANK,
    "select_service_kv_sources_total": "`model_name`; `tenant_id`; `outcome`: given, none",
    "select_service_limit_used_by_key": "`limit`; `key`",
    "select_service_queue_isl_tokens": "`policy_class`",
    "select_service_queue_requests": "`policy_class`",
    "select_service_queue_wait_seconds": "`policy_class`",
    "select_service_rank_trust": "`worker_id`; `dp_rank`",
    "select_service_rank_wait_error": "`worker_id`; `dp_rank`",
    "select_service_request_warnings_total": "`route`; `kind`: unknown_field, unknown_parameter, "
    "unknown_policy_class, unused_field",
    "select_service_share_refusals_total": "`limit`; `key`; `scope`: key, tenant",
    "select_service_task_longest_step_seconds": "`task`",
    "select_service_task_overruns_total": "`task`",
    "select_service_task_seconds_total": "`task`",
    "select_service_task_steps_total": "`task`",
}
"""Labels of families that have no sample before their first event."""
VALUES: Mapping[tuple[str, str], str] = {
    ("dynamo_planner_decisions_total", "reason"): "[codes](planner-file.md#reason-codes)",
    (
        "dynamo_planner_load_scaling_decision",
        "dynamo_planner_load_scaling_decision",
    ): "[codes](planner-file.md#reason-codes)",
    (
        "dynamo_planner_throughput_scaling_decision",
        "dynamo_planner_throughput_scaling_decision",
    ): "[codes](planner-file.md#reason-codes)",
    (
        "select_service_access_refusals_total",
        "code",
    ): "forbidden, quota_exceeded, unauthenticated",
    (
        "select_service_callback_failures_total",
        "callback",
    ): "adoption, http_connection, replica_message, replica_publisher, replica_subscriber, waker",
    (
        "select_service_engine_scrapes_total",
        "result",
    ): "ok, or as in [engine metrics](engine-metrics.md)",
    (
        "select_service_kv_event_dropped_total",
        "reason",
    ): "ambiguous_hashes, attention_group, block_size, frames, medium, other_size, partial_block, "
    "rank, replay_frames, replay_of_other_rank, salts, tier_identity",
    (
        "select_service_kv_event_listeners",
        "state",
    ): "[states](api-workers.md#kv-events-of-a-rank)",
    (
        "select_service_limit_total",
        "limit",
    ): "[limits](../guides/security.md#quotas-and-shares)",
    (
        "select_service_limit_used",
        "limit",
    ): "[limits](../guides/security.md#quotas-and-shares)",
    ("select_service_replica_dropped_total", "reason"): "[reasons](replica-status.md)",
    ("select_service_tls_certificate_expires_timestamp_seconds", "side"): "client, server",
    ("select_service_tls_readings_total", "side"): "client, server",
    ("select_service_tls_stale", "side"): "client, server",
}
"""Values of labels of which one scene shows some, or very many."""
KINDS = {"counter": "c", "gauge": "g", "histogram": "h", "info": "g"}


def metrics_page(families: Iterable[Metric]) -> str:
    """Return the page of the given families; equal names are merged."""
    merged: dict[str, list[Metric]] = {}
    for family in families:
        merged.setdefault(family.name, []).append(family)
    return marked(__name__, "\n\n".join(_sections(merged)))


def _sections(merged: dict[str, list[Metric]]) -> Iterator[str]:
    values = {name: _label_values(families) for name, families in merged.items()}
    common = _values_of_several_families(values)
    yield INTRODUCTION.strip() + "".join(f"\n| {code(key)} | {texts} |" for key, texts in common)
    listed_above = frozenset(label for label, _ in common)
    found: dict[str, list[tuple[str, str, str, str]]] = {title: [] for title, _ in SECTIONS}
    for name in sorted(merged):
        short = name.removeprefix("select_service_").removeprefix("dynamo_")
        title = next(title for title, begins in SECTIONS if short.startswith(begins))
        found[title].append(_row(merged[name][0], values[name], listed_above))
    for title, _ in reversed(SECTIONS):
        if found[title]:
            yield f"## {title}"
            yield table(("family", "", "labels", "meaning"), found[title])


def _label_values(families: Sequence[Metric]) -> dict[str, str]:
    """Return the values of each label as a text, empty for those of a fleet."""
    labels: dict[str, set[str]] = {}
    for family in families:
        for sample in family.samples:
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    labels.pop("le", None)
    name = _name_of(families[0])
    return {
        label: ""
        if label in OPEN_LABELS
        else VALUES.get((name, label)) or ", ".join(sorted(values))
        for label, values in labels.items()
    }


def _values_of_several_families(values: Mapping[str, Mapping[str, str]]) -> list[tuple[str, str]]:
    """Return the labels that have the same three or more values in all of their families."""
    texts: dict[str, list[str]] = {}
    for labels in values.values():
        for label, text in labels.items():
            texts.setdefault(label, []).append(text)
    return sorted(
        (label, found[0])
        for label, found in texts.items()
        if len(found) > 1 and len(set(found)) == 1 and found[0].count(",") > 1
    )


def _row(
    family: Metric, values: Mapping[str, str], listed_above: frozenset[str]
) -> tuple[str, str, str, str]:
    texts = [
        f"{code(label)}: {text}" if text and label not in listed_above else code(label)
        for label, text in values.items()
    ]
    name = _name_of(family)
    shown = "; ".join(texts) or SAMPLELESS.get(name, "")
    return code(name), KINDS[family.type], shown, family.documentation


def _name_of(family: Metric) -> str:
    return family.name + ("_total" if family.type == "counter" else "")
