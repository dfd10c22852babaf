"""Decisions that were kept, as the bodies that clients read."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from select_service.bodies.decisions import (
    CandidateView,
    DecisionFacts,
    DecisionRow,
    DecisionView,
    WaitView,
)
from select_service.core.arrays import Floats
from select_service.core.decide import decision_layout as layout
from select_service.core.decide.decision_ring import Decided, DecisionRing, Words, id_in
from select_service.core.decide.placement_kernels import COST
from select_service.core.decide.plan_layout import P_TEMPERATURE
from select_service.core.decide.recorded import (
    Recorded,
    number_in,
    parameters_in,
    recorded,
    terms_of,
)
from select_service.core.identity import PartitionKey, Rank

_Choice = Literal["cheapest", "tie", "drawn", "pinned", "only"]


class DecisionFilter(NamedTuple):
    """Which decisions are listed; None admits every one.  tenants: whose may be seen at all"""

    model_name: str | None = None
    tenant_id: str | None = None
    worker_id: int | None = None
    limit: int = 100
    tenants: frozenset[str] | None = None

    def admits(self, key: PartitionKey) -> bool:
        if self.tenants is not None and key.tenant_id not in self.tenants:
            return False
        return key.within(self.model_name, self.tenant_id)


def rows_of(ring: DecisionRing, wanted: DecisionFilter, now: float) -> Iterator[DecisionRow | None]:
    """The newest first; None for every other that is passed over."""
    left = wanted.limit
    for row in ring.rows():
        decided = ring.partition(int(row[layout.PARTITION]))
        made = None
        if decided is not None and wanted.admits(decided.key):
            chosen = _rank_of(decided, int(row[layout.ROW_WORDS + layout.WHO]))
            if wanted.worker_id in (None, None if chosen is None else chosen.worker_id):
                made = _row_of(ring, row, decided, chosen, now)
        yield made
        left -= made is not None
        if not left:
            break


def _row_of(
    ring: DecisionRing, row: Words, decided: Decided, chosen: Rank | None, now: float
) -> DecisionRow:
    numbers = recorded(row)
    others = numbers.costs[1:]
    return DecisionRow(
        **asdict(_facts(ring, row, decided, numbers, now)),
        worker_id=None if chosen is None else chosen.worker_id,
        dp_rank=None if chosen is None else chosen.dp_rank,
        cost=round(float(numbers.costs[0]), 3),
        runner_up_cost=round(float(others.min()), 3) if len(others) else None,
    )


def view_of(ring: DecisionRing, row: Words, decided: Decided, now: float | None) -> DecisionView:
    """A decision with its candidates.  now: None: it is none, somebody only asks

    O(candidates of the row)
    """
    numbers = recorded(row)
    terms = terms_of(row, numbers, decided.block_size)
    order = np.argsort(numbers.costs, kind="stable").tolist()
    usual = number_in(row, layout.USUAL_SPEED)
    return DecisionView(
        **asdict(_facts(ring, row, decided, numbers, now)),
        block_size=decided.block_size,
        temperature=float(parameters_in(row)[P_TEMPERATURE]),
        draw=round(number_in(row, layout.DRAW), 6),
        reported_share=round(number_in(row, layout.REPORTED), 3),
        candidates=[_candidate(decided, numbers, terms, at, usual) for at in order],
    )


def _facts(
    ring: DecisionRing, row: Words, decided: Decided, numbers: Recorded, now: float | None
) -> DecisionFacts:
    n_blocks, last = int(row[layout.N_BLOCKS]), int(row[layout.PROMPT]) % 2**64
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
        choice=_choice(row, numbers),
        candidate_count=int(row[layout.N_ELIGIBLE]),
    )
    if now is not None:
        _add_what_was_kept(facts, ring, row, now)
    return facts


def _add_what_was_kept(facts: DecisionFacts, ring: DecisionRing, row: Words, now: float) -> None:
    facts.decision = int(row[layout.NUMBER])
    facts.seconds_ago = round(max(0.0, now - number_in(row, layout.DECIDED_AT)), 3)
    facts.reserved = bool(row[layout.FLAGS] & layout.RESERVED)
    selection_id = id_in(row, layout.SELECTION_ID)
    reservation_id = id_in(row, layout.RESERVATION_ID)
    facts.selection_id = UNSET if selection_id is None else selection_id
    facts.reservation_id = UNSET if reservation_id is None else reservation_id
    facts.waited = _waited(ring, row)


def _waited(ring: DecisionRing, row: Words) -> WaitView | UnsetType:
    number = int(row[layout.POLICY_CLASS])
    if number == layout.NONE:
        return UNSET
    return WaitView(
        policy_class=ring.policy_class(number),
        position=int(row[layout.POSITION]),
        seconds=round(number_in(row, layout.WAITED_S), 6),
    )


def _choice(row: Words, numbers: Recorded) -> _Choice:
    if row[layout.FLAGS] & layout.PINNED:
        return "pinned"
    if row[layout.N_ELIGIBLE] == 1:
        return "only"
    if parameters_in(row)[P_TEMPERATURE] > 0.0:
        return "drawn"
    return "tie" if (numbers.costs[1:] == numbers.costs[0]).any() else "cheapest"


def _rank_of(decided: Decided, who: int) -> Rank | None:
    slot, version = who & ((1 << layout.SLOT_BITS) - 1), who >> layout.SLOT_BITS
    return decided.table.rank_at(slot, version)


def _candidate(
    decided: Decided, numbers: Recorded, terms: Floats, at: int, usual_speed: float
) -> CandidateView:
    rank = decided.table.rank_at(int(numbers.slots[at]), int(numbers.versions[at]))
    gpu, cpu, disk, external = numbers.matched[at].tolist()
    own = terms[numbers.policy.own_work_row]
    named = dict(zip(numbers.policy.terms, terms[:, at].tolist(), strict=True))
    cost, speed = named.pop(numbers.policy.terms[COST]), float(numbers.speeds[at])
    return CandidateView(
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
        booked_work_tokens=int(numbers.booked[at]),
        left_work_tokens=int(numbers.left[at]),
        extra_wait_tokens=int(numbers.left[at] - numbers.left.min()),
        extra_prefill_tokens=int(own[at] - own.min()),
        weight=float(numbers.weights[at]),
        speed=round(speed / usual_speed, 6) if speed and usual_speed else 1.0,
        factor=round(float(numbers.factors[at]), 6) if len(numbers.factors) else 1.0,
        terms={name: round(value, 3) for name, value in named.items()} | {"cost": round(cost, 3)},
    )
