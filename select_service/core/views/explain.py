"""A decision in numbers, for the decision log."""

from typing import TypeAlias

import numpy as np

from select_service.core.fleet.partition import Partition, Placement
from select_service.core.load import kernels

Candidate: TypeAlias = dict[str, float | int | bool]


def explained(partition: Partition, placement: Placement) -> list[Candidate]:
    """Every candidate with the terms of its cost, cheapest first."""
    numbers, terms = placement.numbers, placement.terms
    slots = np.flatnonzero(numbers.eligible)
    slots = slots[np.argsort(terms[slots, kernels.COST], kind="stable")]
    rows: list[Candidate] = []
    for slot in slots.tolist():
        rank = partition.table.row(slot).rank
        rows.append(
            {
                "worker_id": rank.worker_id,
                "dp_rank": rank.dp_rank,
                "chosen": slot == placement.slot,
                "gpu_blocks": int(numbers.matched[slot, 0]),
                "cpu_blocks": int(numbers.matched[slot, 1]),
                "disk_blocks": int(numbers.matched[slot, 2]),
                "external_blocks": int(numbers.matched[slot, 3]),
                "prefill_tokens": int(numbers.totals[slot, kernels.PREFILL_TOKENS]),
                "active_blocks": int(numbers.active_blocks[slot]),
                "leading_run": int(numbers.leading_run[slot]),
                "active_requests": int(numbers.totals[slot, kernels.REQUESTS]),
                "cached_tokens": int(terms[slot, kernels.CACHED_TOKENS]),
                "effective_prefill_tokens": int(terms[slot, kernels.EFFECTIVE_PREFILL_TOKENS]),
                "raw": round(float(terms[slot, kernels.RAW]), 3),
                "credit": round(float(terms[slot, kernels.CREDIT]), 3),
                "prefill": round(float(terms[slot, kernels.PREFILL]), 3),
                "decode": round(float(terms[slot, kernels.DECODE]), 3),
                "cost": round(float(terms[slot, kernels.COST]), 3),
            }
        )
    return rows
