"""Metrics of policy comparison: the shadow policy and experiments."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

from select_service.core.analysis.comparison.experiments import ExperimentReport
from select_service.core.analysis.comparison.shadow_policy import ShadowReport, ShadowSums
from select_service.core.duration_histogram import DurationHistogram
from select_service.metrics.series import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    SCOPE_LABELS,
    FamilyRow,
    make_series,
    record_itself,
)

SHADOW: Sequence[FamilyRow[ShadowReport]] = (
    FamilyRow(
        COUNTER,
        "shadow_skipped",
        "Decisions skipped by the shadow policy.",
        lambda s: s.skipped,
    ),
    FamilyRow(
        GAUGE, "shadow_backlog", "Decisions waiting for the shadow policy.", lambda s: s.backlog
    ),
)

_DECISIONS = "Decisions evaluated by the shadow policy, by outcome."
TALLIES: Sequence[FamilyRow[ShadowSums]] = (
    FamilyRow(
        COUNTER,
        "shadow_decisions",
        _DECISIONS,
        lambda t: t.decisions - t.others,
        (("outcome", "same"),),
    ),
    FamilyRow(COUNTER, "shadow_decisions", _DECISIONS, lambda t: t.others, (("outcome", "other"),)),
    FamilyRow(
        COUNTER, "shadow_decisions", _DECISIONS, lambda t: t.no_choice, (("outcome", "no_choice"),)
    ),
    FamilyRow(
        COUNTER,
        "shadow_partial",
        "Decisions for which only the cheapest candidates were available to the shadow policy.",
        lambda t: t.partial,
    ),
    FamilyRow(
        COUNTER,
        "shadow_regret",
        "Shadow cost of the chosen rank above the lowest shadow cost, in cost units.",
        lambda t: t.regret,
    ),
    FamilyRow(
        COUNTER,
        "shadow_lowest_cost",
        "Lowest shadow cost, in cost units.",
        lambda t: t.lowest_cost,
    ),
)


class ShadowExtra(NamedTuple):
    """Tokens above the minimum over the candidates: before the prompt, and of the prompt itself."""

    wait: float
    prefill: float


EXTRA: Sequence[FamilyRow[ShadowExtra]] = (
    FamilyRow(
        COUNTER,
        "shadow_extra_wait_tokens",
        "Work ahead of the prompt above the minimum of the candidates.",
        lambda e: e.wait,
    ),
    FamilyRow(
        COUNTER,
        "shadow_extra_prefill_tokens",
        "Prefill work of the prompt above the minimum of the candidates.",
        lambda e: e.prefill,
    ),
)


def shadow_metrics(seen: ShadowReport) -> Iterator[Metric]:
    """Yield the series of the shadow comparison, by the deciding policy."""
    yield from make_series(SHADOW, (), {(): seen})
    tallies = {(name,): tally for name, tally in seen.tallies.items()}
    yield from make_series(TALLIES, ("policy",), tallies)
    extra = {}
    for name, tally in seen.tallies.items():
        extra[name, "made"] = ShadowExtra(tally.wait_made, tally.prefill_made)
        extra[name, "shadow"] = ShadowExtra(tally.wait_shadow, tally.prefill_shadow)
    yield from make_series(EXTRA, ("policy", "choice"), extra)


MEASURED: Sequence[FamilyRow[bool]] = (
    FamilyRow(
        GAUGE,
        "experiment_measured",
        "1 for the policy measured now, after the warm-up of its time slot; else 0.",
        record_itself,
    ),
)

TTFT: Sequence[FamilyRow[DurationHistogram]] = (
    FamilyRow(
        HISTOGRAM,
        "experiment_ttft_seconds",
        "Time from a measured booking to prefill_complete.",
        record_itself,
    ),
)


def experiment_metrics(seen: Iterable[ExperimentReport]) -> Iterator[Metric]:
    """Yield the series of experiments; none without experiments."""
    measured, ttft = {}, {}
    for each in seen:
        scope = each.scope.model_name or "", each.scope.tenant_id or ""
        for policy, is_measured, times in each.arms:
            labels = (each.id, *scope, policy)
            measured[labels] = is_measured
            ttft[labels] = times
    labels = ("experiment", *SCOPE_LABELS, "policy")
    yield from make_series(MEASURED, labels, measured)
    yield from make_series(TTFT, labels, ttft)
