"""Decisions about pairs as response bodies."""

from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec import UNSET
from msgspec.structs import asdict

from select_service.core.identity import PartitionKey
from select_service.core.pairs.pair_log import PairDecision
from select_service.core.views.decision_views import DatedRow, DecisionFilter
from select_service.schemas.decisions import (
    DecisionFacts,
    DecisionRow,
    DecisionView,
    ListedPair,
    WaitView,
)


def make_pair_view(decision: PairDecision, now: float | None) -> DecisionView:
    """Return a decision about a pair, without candidates: the answer has the costs of both paths.

    now: None for a hypothetical decision
    """
    return DecisionView(
        **asdict(_facts_of(decision, now)),
        block_size=decision.answer.block_size,
        temperature=0.0,
        draw=0.0,
        reported_share=1.0,
        candidates=[],
        pair=decision.answer,
    )


def list_pair_rows(
    decisions: Iterable[PairDecision], decision_filter: DecisionFilter, now: float
) -> Iterator[DatedRow | None]:
    """Yield matching decisions in the given order; None for each decision passed over."""
    for decision in decisions:
        answer = decision.answer
        key = PartitionKey(answer.model_name, answer.tenant_id)
        workers = {leg.worker_id for leg in answer.legs}
        is_match = decision_filter.admits_key(key) and (
            decision_filter.worker_id is None or decision_filter.worker_id in workers
        )
        yield (decision.at, _row_of(decision, now)) if is_match else None


def _row_of(decision: PairDecision, now: float) -> DecisionRow:
    answer = decision.answer
    prefill, decode = answer.legs
    costs = [answer.remote_cost, answer.local_cost]
    cost, other = costs if answer.path == "remote" else reversed(costs)
    return DecisionRow(
        **asdict(_facts_of(decision, now)),
        worker_id=decode.worker_id,
        dp_rank=decode.dp_rank,
        cost=None if cost is None else round(cost, 3),
        runner_up_cost=None if other is None else round(other, 3),
        pair=ListedPair(
            number=decision.number,
            path=answer.path,
            reason=answer.reason,
            prefill_worker_id=prefill.worker_id,
            prefill_dp_rank=prefill.dp_rank,
            move_tokens=answer.move_tokens,
        ),
    )


def _facts_of(decision: PairDecision, now: float | None) -> DecisionFacts:
    answer, waited = decision.answer, decision.waited
    choice: Literal["cheapest", "only"] = "only" if answer.reason == "only_choice" else "cheapest"
    last = decision.prompt_hash
    return DecisionFacts(
        decision=None,
        seconds_ago=None if now is None else round(max(0.0, now - decision.at), 3),
        selection_id=answer.selection_id,
        reservation_id=answer.reservation_id,
        model_name=answer.model_name,
        tenant_id=answer.tenant_id,
        policy=decision.policy,
        isl_tokens=decision.isl_tokens,
        prompt_blocks=decision.prompt_blocks,
        prompt_hash=None if last is None else f"{last:016x}",
        reserved=now is not None and answer.reservation_id is not UNSET,
        choice=choice,
        candidate_count=decision.n_ranks,
        waited=UNSET
        if waited is None
        else WaitView(
            policy_class=waited.policy_class,
            position=waited.position,
            seconds=round(waited.seconds, 6),
        ),
    )
