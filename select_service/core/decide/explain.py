"""A decision in numbers, for the decision log."""

from typing import TypeAlias

import numpy as np

from select_service.core.arrays import Mask
from select_service.core.decide.placement_kernels import (
    CACHED_TOKENS,
    COST,
    DECODE,
    EFFECTIVE_PREFILL_TOKENS,
    N_COMMON_TERMS,
)
from select_service.core.decide.placing import Placing
from select_service.core.load import load_layout as layout

Candidate: TypeAlias = dict[str, float | int | bool]


def explained(placing: Placing, eligible: Mask, chosen: int) -> list[Candidate]:
    """Every candidate of the last placement with the terms of its cost, cheapest first.

    To be called before anything is booked.
    """
    costs = placing.last.terms[COST]
    slots = np.flatnonzero(eligible)
    slots = slots[np.argsort(costs[slots], kind="stable")]
    return [_candidate(placing, slot, slot == chosen) for slot in slots.tolist()]


def _candidate(placing: Placing, slot: int, chosen: bool) -> Candidate:
    matched, blocks, terms, _ = placing.last
    totals, rank = placing.load.totals[slot], placing.table.row(slot).rank
    row: Candidate = {
        "worker_id": rank.worker_id,
        "dp_rank": rank.dp_rank,
        "chosen": chosen,
        "gpu_blocks": int(matched[slot, 0]),
        "cpu_blocks": int(matched[slot, 1]),
        "disk_blocks": int(matched[slot, 2]),
        "external_blocks": int(matched[slot, 3]),
        "prefill_tokens": int(totals[layout.PREFILL_TOKENS]),
        "active_blocks": int(blocks[0, slot]),
        "leading_run": int(blocks[1, slot]),
        "active_requests": int(totals[layout.REQUESTS]),
        "cached_tokens": int(terms[CACHED_TOKENS, slot]),
        "effective_prefill_tokens": int(terms[EFFECTIVE_PREFILL_TOKENS, slot]),
    }
    own = zip(placing.policy.own_terms, terms[N_COMMON_TERMS:, slot].tolist(), strict=True)
    common = (("decode", float(terms[DECODE, slot])), ("cost", float(terms[COST, slot])))
    return row | {name: round(value, 3) for name, value in (*own, *common)}
