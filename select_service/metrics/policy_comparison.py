"""Metrics of policy comparison: the shadow policy and experiments."""

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.metrics_core import Metric

from select_service.core.analysis.comparison.experiments import ArmReport, ExperimentReport
from select_service.core.analysis.comparison.shadow_policy import ShadowReport, ShadowSums
from select_service.metrics.series import (
    HISTOGRAM,
    SCOPE_LABELS,
    FamilyRow,
    make_process_series,
    make_series,
)

SHADOW: Sequence[FamilyRow[ShadowReport]] = (
    FamilyRow(
        "shadow_skipped_total",
        "Decisions not compared with the shadow policy, because too many waited or their "
        "partition was gone.",
        lambda s: s.skipped,
    ),
    FamilyRow(
        "shadow_backlog",
        "Decisions that wait for their comparison with the shadow policy now.",
        lambda s: s.backlog,
    ),
)

TALLIES: Sequence[FamilyRow[ShadowSums]] = (
    FamilyRow(
        "shadow_decisions_total",
        "Decisions compared with the shadow policy; same or other: its rank, no_choice: one "
        "candidate or a pinned rank.",
        lambda t: {"same": t.decisions - t.others, "other": t.others, "no_choice": t.no_choice},
        ("outcome",),
    ),
    FamilyRow(
        "shadow_partial_total",
        "Compared decisions of which only the cheapest candidates were kept; their sums are lower"
        " bounds.",
        lambda t: t.partial,
    ),
    FamilyRow(
        "shadow_regret_total",
        "Sum of the shadow policy's cost of the chosen rank minus its lowest cost, in its cost "
        "units.",
        lambda t: t.regret,
    ),
    FamilyRow(
        "shadow_lowest_cost_total",
        "Sum of the shadow policy's lowest costs, in its cost units; the base of the regret.",
        lambda t: t.lowest_cost,
    ),
    FamilyRow(
        "shadow_extra_wait_tokens_total",
        "Sum of tokens ahead of the prompt above the least of all candidates, for the real and "
        "the shadow choice.",
        lambda t: {"made": t.wait_made, "shadow": t.wait_shadow},
        ("choice",),
    ),
    FamilyRow(
        "shadow_extra_prefill_tokens_total",
        "Sum of uncached prompt tokens above the least of all candidates, for the real and the "
        "shadow choice.",
        lambda t: {"made": t.prefill_made, "shadow": t.prefill_shadow},
        ("choice",),
    ),
)

ARMS: Sequence[FamilyRow[ArmReport]] = (
    FamilyRow(
        "experiment_measured",
        "1 for the policy of an experiment that is measured now, after the warm-up of its time "
        "slot; else 0.",
        lambda arm: arm.is_measured,
    ),
    FamilyRow(
        "experiment_ttft_seconds",
        "Seconds from the booking of a measured request to its prefill_complete, by policy.",
        lambda arm: arm.ttft,
        kind=HISTOGRAM,
    ),
)


def shadow_metrics(seen: ShadowReport) -> Iterator[Metric]:
    """Yield the series of the shadow comparison, by the deciding policy."""
    yield from make_process_series(SHADOW, seen)
    tallies = {(name,): tally for name, tally in seen.tallies.items()}
    yield from make_series(TALLIES, ("policy",), tallies)


def experiment_metrics(seen: Iterable[ExperimentReport]) -> Iterator[Metric]:
    """Yield the series of experiments, by scope and policy."""
    arms = {
        (each.id, each.scope.model_name or "", each.scope.tenant_id or "", arm.policy): arm
        for each in seen
        for arm in each.arms
    }
    yield from make_series(ARMS, ("experiment", *SCOPE_LABELS, "policy"), arms)
