"""Explanation of a decision in numbers, for the decision log."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from select_service.core.array_types import Mask
from select_service.core.load.compiled import load_layout as layout
from select_service.core.placement.placement_kernels import (
    CACHED_TOKENS,
    COST,
    DECODE,
    EFFECTIVE_PREFILL_TOKENS,
    N_COMMON_TERMS,
)
from select_service.core.placement.placer import Placer

CandidateTerms: TypeAlias = dict[str, float | int | bool]


def explain_candidates(
    placing: Placer, terms: npt.NDArray[np.float64], eligible: Mask, chosen: int
) -> list[CandidateTerms]:
    """Return every candidate of the last placement with its cost terms, cheapest first.

    terms: cost terms of the placement
    Call this before anything is booked.
    """
    slots = np.flatnonzero(eligible)
    slots = slots[np.argsort(terms[COST, slots], kind="stable")]
    active = placing.load.compute_active_blocks()
    return [
        _explain_candidate(placing, terms[:, slot], int(active[slot]), slot, slot == chosen)
        for slot in slots.tolist()
    ]


def _explain_candidate(
    placing: Placer, terms: npt.NDArray[np.float64], active_blocks: int, slot: int, chosen: bool
) -> CandidateTerms:
    """Return the numbers of a slot.

    terms: float64[n], cost terms of the slot
    """
    gpu, cpu, disk, external = placing.scratch.matched[slot].tolist()
    totals, rank = placing.load.totals[slot], placing.table.row_at(slot).rank
    weight = float(placing.table.columns.weight[slot])
    assumed = int(placing.scratch.assumed_blocks[slot]) * placing.block_size
    row: CandidateTerms = {
        "worker_id": rank.worker_id,
        "dp_rank": rank.dp_rank,
        "chosen": chosen,
        "gpu_blocks": gpu,
        "cpu_blocks": cpu,
        "disk_blocks": disk,
        "external_blocks": external,
        "prefill_tokens": int(totals[layout.PREFILL_TOKENS]),
        "active_blocks": active_blocks,
        "leading_run": int(placing.scratch.leading[slot]),
        "active_requests": int(totals[layout.REQUESTS]),
        "cached_tokens": int(terms[CACHED_TOKENS]),
        "effective_prefill_tokens": int(terms[EFFECTIVE_PREFILL_TOKENS]),
    }
    if assumed:
        row["assumed_tokens"] = assumed
    own = zip(placing.policy.own_term_names, terms[N_COMMON_TERMS:].tolist(), strict=True)
    weighed = () if weight == 1.0 else (("weight", weight),)
    common = (("decode", float(terms[DECODE])), *weighed, ("cost", float(terms[COST])))
    return row | {name: round(value, 3) for name, value in (*own, *common)}
