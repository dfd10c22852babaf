"""Comparisons, as the bodies that clients read."""

from select_service.bodies.comparing import ExtraTokens, ShadowRow, ShadowState
from select_service.core.comparing.shadow import ShadowReport, ShadowTally


def shadow_state(seen: ShadowReport) -> ShadowState:
    return ShadowState(
        shadow_policy=str(seen.choice),
        skipped=seen.skipped,
        backlog=seen.backlog,
        policies=[_row(name, tally) for name, tally in sorted(seen.tallies.items())],
    )


def _row(name: str, tally: ShadowTally) -> ShadowRow:
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
