"""Recorded decisions as response bodies."""

from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from select_service.core.array_types import Floats
from select_service.core.identity import PartitionKey, Rank
from select_service.core.placement import decision_ring_layout as layout
from select_service.core.placement.decision_decoder import (
    RecordedCandidates,
    decode_row,
    read_float,
    recorded_terms,
    row_parameters,
)
from select_service.core.placement.decision_ring import (
    DecisionPartition,
    DecisionRing,
    Words,
    read_id,
)
from select_service.core.placement.placement_kernels import COST
from select_service.core.placement.plan_layout import P_TEMPERATURE
from select_service.schemas.decisions import (
    CandidateView,
    DecisionFacts,
    DecisionRow,
    DecisionView,
    WaitView,
)

_Choice = Literal["cheapest", "tie", "drawn", "pinned", "only"]


class DecisionFilter(NamedTuple):
    """Filter of decisions; None admits all. tenants: tenants visible to the client"""

    model_name: str | None = None
    tenant_id: str | None = None
    worker_id: int | None = None
    limit: int = 100
    tenants: frozenset[str] | None = None

    def admits_key(self, key: PartitionKey) -> bool:
        if self.tenants is not None and key.tenant_id not in self.tenants:
            return False
        return key.matches(self.model_name, self.tenant_id)


DatedRow: TypeAlias = tuple[float, DecisionRow]
"""Decision with its time, which a row has only as an age in milliseconds."""


def list_rows(
    ring: DecisionRing, decision_filter: DecisionFilter, now: float
) -> Iterator[DatedRow | None]:
    """Yield matching decisions, newest first; None for each decision passed over."""
    left = decision_filter.limit
    for row in ring.iterate_rows():
        decided = ring.find_partition(int(row[layout.PARTITION]))
        made = None
        if decided is not None and decision_filter.admits_key(decided.key):
            chosen = _rank_of(decided, int(row[layout.ROW_WORDS + layout.SLOT_AND_VERSION]))
            if decision_filter.worker_id in (None, None if chosen is None else chosen.worker_id):
                at = read_float(row, layout.DECIDED_AT)
                made = at, _row_of(ring, row, decided, chosen, now)
        yield made
        left -= made is not None
        if not left:
            break


def _row_of(
    ring: DecisionRing, row: Words, decided: DecisionPartition, chosen: Rank | None, now: float
) -> DecisionRow:
    numbers = decode_row(row)
    others = numbers.costs[1:]
    return DecisionRow(
        **asdict(_decision_facts(ring, row, decided, numbers, now)),
        worker_id=None if chosen is None else chosen.worker_id,
        dp_rank=None if chosen is None else chosen.dp_rank,
        cost=round(float(numbers.costs[0]), 3),
        runner_up_cost=round(float(others.min()), 3) if len(others) else None,
    )


def make_view(
    ring: DecisionRing, row: Words, decided: DecisionPartition, now: float | None
) -> DecisionView:
    """Return a decision with its candidates. O(candidates of the row)

    now: None for a hypothetical decision
    """
    numbers = decode_row(row)
    terms = recorded_terms(row, numbers, decided.block_size)
    order = np.argsort(numbers.costs, kind="stable").tolist()
    usual = read_float(row, layout.USUAL_SPEED)
    return DecisionView(
        **asdict(_decision_facts(ring, row, decided, numbers, now)),
        block_size=decided.block_size,
        temperature=float(row_parameters(row)[P_TEMPERATURE]),
        draw=round(read_float(row, layout.DRAW), 6),
        reported_share=round(read_float(row, layout.REPORTED_SHARE), 3),
        candidates=[_candidate_view(decided, numbers, terms, at, usual) for at in order],
    )


def _decision_facts(
    ring: DecisionRing,
    row: Words,
    decided: DecisionPartition,
    numbers: RecordedCandidates,
    now: float | None,
) -> DecisionFacts:
    n_blocks, last = int(row[layout.N_BLOCKS]), int(row[layout.PROMPT_HASH]) % 2**64
    facts = DecisionFacts(
        decision=None,
        seconds_ago=None,
        model_name=decided.key.model_name,
        tenant_id=decided.key.tenant_id,
        policy=numbers.policy.name,
        isl_tokens=int(row[layout.ISL_TOKENS]),
        prompt_blocks=n_blocks,
        prompt_hash=f"{last:016x}" if n_blocks else None,
        reserved=False,
        choice=_choice_kind(row, numbers),
        candidate_count=int(row[layout.N_ELIGIBLE]),
    )
    if now is not None:
        _add_recorded_fields(facts, ring, row, now)
    return facts


def _add_recorded_fields(facts: DecisionFacts, ring: DecisionRing, row: Words, now: float) -> None:
    facts.decision = int(row[layout.NUMBER])
    facts.seconds_ago = round(max(0.0, now - read_float(row, layout.DECIDED_AT)), 3)
    facts.reserved = bool(row[layout.FLAGS] & layout.IS_RESERVED)
    selection_id = read_id(row, layout.SELECTION_ID)
    reservation_id = read_id(row, layout.RESERVATION_ID)
    facts.selection_id = UNSET if selection_id is None else selection_id
    facts.reservation_id = UNSET if reservation_id is None else reservation_id
    facts.waited = _wait_view(ring, row)


def _wait_view(ring: DecisionRing, row: Words) -> WaitView | UnsetType:
    number = int(row[layout.POLICY_CLASS])
    if number == layout.NO_VALUE:
        return UNSET
    return WaitView(
        policy_class=ring.policy_class_name(number),
        position=int(row[layout.QUEUE_POSITION]),
        seconds=round(read_float(row, layout.WAITED_S), 6),
    )


def _choice_kind(row: Words, numbers: RecordedCandidates) -> _Choice:
    if row[layout.FLAGS] & layout.IS_PINNED:
        return "pinned"
    if row[layout.N_ELIGIBLE] == 1:
        return "only"
    if row_parameters(row)[P_TEMPERATURE] > 0.0:
        return "drawn"
    return "tie" if (numbers.costs[1:] == numbers.costs[0]).any() else "cheapest"


def _rank_of(decided: DecisionPartition, packed: int) -> Rank | None:
    slot, version = packed & ((1 << layout.SLOT_BITS) - 1), packed >> layout.SLOT_BITS
    return decided.table.rank_at(slot, version)


def _candidate_view(
    decided: DecisionPartition,
    numbers: RecordedCandidates,
    terms: Floats,
    at: int,
    usual_speed: float,
) -> CandidateView:
    # The slot may have another rank by now; slot and table version identify the old rank.
    rank = decided.table.rank_at(int(numbers.slots[at]), int(numbers.versions[at]))
    gpu, cpu, disk, external = numbers.matched[at].tolist()
    own = terms[numbers.policy.own_work_row]
    named = dict(zip(numbers.policy.term_names, terms[:, at].tolist(), strict=True))
    cost, speed = named.pop(numbers.policy.term_names[COST]), float(numbers.speeds[at])
    view = CandidateView(
        worker_id=None if rank is None else rank.worker_id,
        dp_rank=None if rank is None else rank.dp_rank,
        chosen=at == 0,
        gpu_blocks=gpu,
        cpu_blocks=cpu,
        disk_blocks=disk,
        external_blocks=external,
        leading_run=int(numbers.leading[at]),
        prefill_tokens=int(numbers.prefill_tokens[at]),
        active_blocks=int(numbers.active_blocks[at]),
        active_requests=int(numbers.requests[at]),
        booked_work_tokens=int(numbers.work_booked[at]),
        left_work_tokens=int(numbers.work_left[at]),
        extra_wait_tokens=int(numbers.work_left[at] - numbers.work_left.min()),
        extra_prefill_tokens=int(own[at] - own.min()),
        weight=float(numbers.weights[at]),
        speed=round(speed / usual_speed, 6) if speed and usual_speed else 1.0,
        factor=round(float(numbers.factors[at]), 6) if len(numbers.factors) else 1.0,
        terms={name: round(value, 3) for name, value in named.items()} | {"cost": round(cost, 3)},
    )
    if numbers.inside[at]:
        view.inside_tokens = int(numbers.inside[at])
    if numbers.credits[at]:
        view.shared_credit_tokens = int(numbers.credits[at])
    if numbers.assumed[at]:
        view.assumed_tokens = int(numbers.assumed[at]) * decided.block_size
    return view
