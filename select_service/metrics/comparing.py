"""Policies compared: what another one would have chosen, and which counts in an experiment."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

from select_service.core.comparing.experiments import ExperimentReport
from select_service.core.comparing.shadow import ShadowReport, ShadowTally
from select_service.core.histogram import Histogram
from select_service.metrics.series import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    SCOPE_LABELS,
    Family,
    itself,
    series_of,
)

SHADOW: Sequence[Family[ShadowReport]] = (
    Family(
        COUNTER,
        "shadow_skipped",
        "Decisions that the shadow policy did not look at.",
        lambda s: s.skipped,
    ),
    Family(GAUGE, "shadow_backlog", "Decisions that it is still to look at.", lambda s: s.backlog),
)

_DECISIONS = "Decisions that the shadow policy looked at, by what it would have done."
TALLIES: Sequence[Family[ShadowTally]] = (
    Family(
        COUNTER,
        "shadow_decisions",
        _DECISIONS,
        lambda t: t.decisions - t.others,
        (("outcome", "same"),),
    ),
    Family(COUNTER, "shadow_decisions", _DECISIONS, lambda t: t.others, (("outcome", "other"),)),
    Family(
        COUNTER, "shadow_decisions", _DECISIONS, lambda t: t.no_choice, (("outcome", "no_choice"),)
    ),
    Family(
        COUNTER,
        "shadow_partial",
        "Decisions of which it knew only the cheapest of the candidates.",
        lambda t: t.partial,
    ),
    Family(
        COUNTER,
        "shadow_regret",
        "Its cost of what was chosen above its lowest cost, in the unit of its cost.",
        lambda t: t.regret,
    ),
    Family(
        COUNTER,
        "shadow_lowest_cost",
        "Its lowest cost, in the unit of its cost.",
        lambda t: t.lowest_cost,
    ),
)


class Extra(NamedTuple):
    """Tokens above the least of the candidates: before the prompt, and of the prompt itself."""

    wait: float
    prefill: float


EXTRA: Sequence[Family[Extra]] = (
    Family(
        COUNTER,
        "shadow_extra_wait_tokens",
        "Work before the prompt above the least of the candidates.",
        lambda e: e.wait,
    ),
    Family(
        COUNTER,
        "shadow_extra_prefill_tokens",
        "Own work of the prompt above the least of the candidates.",
        lambda e: e.prefill,
    ),
)


def of_shadow(seen: ShadowReport) -> Iterator[Metric]:
    """Series by the policy that decided."""
    yield from series_of(SHADOW, (), {(): seen})
    tallies = {(name,): tally for name, tally in seen.tallies.items()}
    yield from series_of(TALLIES, ("policy",), tallies)
    extra = {}
    for name, tally in seen.tallies.items():
        extra[name, "made"] = Extra(tally.wait_made, tally.prefill_made)
        extra[name, "shadow"] = Extra(tally.wait_shadow, tally.prefill_shadow)
    yield from series_of(EXTRA, ("policy", "choice"), extra)


MEASURED: Sequence[Family[bool]] = (
    Family(
        GAUGE,
        "experiment_measured",
        "1 for the policy that counts now, behind the dropped beginning of its slot; else 0.",
        itself,
    ),
)

TTFT: Sequence[Family[Histogram]] = (
    Family(
        HISTOGRAM,
        "experiment_ttft_seconds",
        "Time from a measured booking to prefill_complete.",
        itself,
    ),
)


def of_experiments(seen: Iterable[ExperimentReport]) -> Iterator[Metric]:
    """Nothing when there is none."""
    measured, ttft = {}, {}
    for each in seen:
        scope = each.scope.model_name or "", each.scope.tenant_id or ""
        for policy, is_measured, times in each.arms:
            labels = (each.id, *scope, policy)
            measured[labels] = is_measured
            ttft[labels] = times
    labels = ("experiment", *SCOPE_LABELS, "policy")
    yield from series_of(MEASURED, labels, measured)
    yield from series_of(TTFT, labels, ttft)
