"""Metrics of assumed blocks, and of the cached tokens that callers report."""

from collections.abc import Sequence

from select_service.core.assumption_service import AssumptionReport
from select_service.metrics.series import FamilyRow

ASSUMPTIONS: Sequence[FamilyRow[AssumptionReport]] = (
    FamilyRow(
        "assumed_ranks",
        "Ranks whose bookings are assumed to be in their caches now, by the source of their index: "
        "assumed (no KV events) or events (beside them).",
        lambda a: a.ranks,
        ("source",),
    ),
    FamilyRow(
        "silent_ranks",
        "Ranks that assume their bookings because they have requests and send no KV events.",
        lambda a: a.silent,
    ),
    FamilyRow(
        "assumed_prompts_pending",
        "Prompts assumed beside KV events that the engine has not announced yet.",
        lambda a: a.pending,
    ),
    FamilyRow(
        "assumed_prompts_total",
        "Prompts assumed beside KV events, by their end: confirmed by the engine, withdrawn after "
        "a removal or a clear, or expired.",
        lambda a: a.prompts,
        ("end",),
    ),
    FamilyRow(
        "assumed_answers_total",
        "Answers whose tokens callers reported, by what became of their blocks.",
        lambda a: a.answers,
        ("result",),
    ),
    FamilyRow(
        "cached_token_reports_total",
        "Prompts of which callers reported the cached tokens, where the index had a prediction.",
        lambda a: a.reported.reports,
    ),
    FamilyRow(
        "cached_token_over_claims_total",
        "Reports with at least half a block less in the cache than the index had predicted.",
        lambda a: a.reported.over_claims,
    ),
    FamilyRow(
        "cached_tokens_total",
        "Prompt tokens of these reports: predicted by the index, cached by the report, over "
        "(predicted and not cached) and under (cached and not predicted).",
        lambda a: {
            "predicted": a.reported.predicted,
            "cached": a.reported.cached,
            "over": a.reported.over,
            "under": a.reported.under,
        },
        ("kind",),
    ),
)
