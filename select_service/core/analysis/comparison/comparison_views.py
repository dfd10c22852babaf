"""Comparisons of policies as response bodies."""

from msgspec import UNSET

from select_service.core.analysis.comparison.shadow_policy import ShadowReport, ShadowSums
from select_service.core.analysis.comparison.switchback_experiment import (
    UNMEASURED_S,
    ExperimentResult,
    ExperimentSlot,
    SlotPair,
    SwitchbackExperiment,
    result_of_pairs,
)
from select_service.core.analysis.comparison.t_interval import CONFIDENCE
from select_service.schemas.experiments import (
    ArmView,
    DifferenceView,
    ExperimentView,
    ExtraTokens,
    PairView,
    ShadowRow,
    ShadowState,
)


def shadow_state(report: ShadowReport) -> ShadowState:
    return ShadowState(
        shadow_policy=str(report.choice),
        skipped=report.skipped,
        backlog=report.backlog,
        policies=[_shadow_row(name, tally) for name, tally in sorted(report.tallies.items())],
    )


def _shadow_row(name: str, tally: ShadowSums) -> ShadowRow:
    n = max(1, tally.decisions)

    def mean(total: float) -> float:
        return round(total / n, 3)

    return ShadowRow(
        policy=name,
        decisions=tally.decisions,
        other=tally.others,
        no_choice=tally.no_choice,
        partial=tally.partial,
        regret=mean(tally.regret),
        lowest_cost=mean(tally.lowest_cost),
        made=ExtraTokens(wait=mean(tally.wait_made), prefill=mean(tally.prefill_made)),
        shadow=ExtraTokens(wait=mean(tally.wait_shadow), prefill=mean(tally.prefill_shadow)),
    )


def experiment_view(
    experiment: SwitchbackExperiment, now: float, has_pairs: bool
) -> ExperimentView:
    """Return the experiment as a response body. O(slots)"""
    pairs = experiment.completed_pairs()
    result = result_of_pairs(pairs)
    scope, until = experiment.scope, experiment.ended_at
    return ExperimentView(
        experiment_id=experiment.id,
        state="running" if experiment.is_running else "ended",
        ending=experiment.ending,
        model_name=scope.model_name,
        tenant_id=scope.tenant_id,
        policies=[_arm_view(experiment, result, arm) for arm in (0, 1)],
        slot_s=experiment.slot_s,
        dropped_s=UNMEASURED_S,
        seconds=round((now if until is None else until) - experiment.begun_at, 3),
        current=str(experiment.current_policy) if experiment.is_running else None,
        pairs_measured=result.pairs,
        pairs_left_out=result.left_out,
        difference=_difference_view(result),
        unreported=experiment.unreported,
        unfollowed=experiment.unfollowed,
        pairs=[_pair_view(pair) for pair in pairs] if has_pairs else UNSET,
    )


def _arm_view(experiment: SwitchbackExperiment, result: ExperimentResult, arm: int) -> ArmView:
    return ArmView(
        policy=str(experiment.policies[arm]),
        requests=sum(experiment.ttft[arm].counts),
        mean_ttft_s=None if result.means_s is None else round(result.means_s[arm], 6),
    )


def _difference_view(result: ExperimentResult) -> DifferenceView | None:
    found = result.difference
    if found is None or result.means_s is None:
        return None
    first = result.means_s[0]
    return DifferenceView(
        mean_s=round(found.mean, 6),
        low_s=round(found.low, 6),
        high_s=round(found.high, 6),
        confidence=CONFIDENCE,
        relative=round(found.mean / first, 6) if first else 0.0,
    )


def _pair_view(pair: SlotPair) -> PairView:
    slots = pair.of_first, pair.of_second
    return PairView(
        began=pair.began,
        requests=[slot.requests for slot in slots],
        mean_ttft_s=[_mean_or_none(slot) for slot in slots],
    )


def _mean_or_none(slot: ExperimentSlot) -> float | None:
    return round(slot.mean_s, 6) if slot.requests else None
