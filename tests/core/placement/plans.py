"""Plans with arrays that a test fills, without the parts of a partition."""

import numpy as np

from indexer.index import header_kernels
from select_service.core.array_types import store_pointer
from select_service.core.load.compiled import load_layout
from select_service.core.placement import plan_layout as layout
from select_service.core.placement.policies.reference_policy import REFERENCE_POLICY
from select_service.core.workers import rank_table_layout


def terms_of(
    ranks, config, *, block_size=4, isl_tokens=34, n_blocks=8, pinned=False, eligible=None, weight=1
):
    """Return the terms of `reference` for these ranks: float64[n_terms, n_ranks].

    ranks: list of RankState
    weight: weight of all ranks, or of each
    """
    arrays = {
        layout.MATCHED: np.array([_matched(rank) for rank in ranks], np.int32),
        layout.LEADING: np.array([rank.leading_run for rank in ranks]),
        layout.PARAMETERS: REFERENCE_POLICY.make_parameters(config),
        layout.INDEX: np.zeros(header_kernels.HEADER_LENGTH, np.int64),
        layout.LOAD: np.zeros(load_layout.HEADER_LENGTH, np.int64),
        layout.RANKS: np.zeros(rank_table_layout.HEADER_LENGTH, np.int64),
    }
    totals = np.zeros((len(ranks), load_layout.N_TOTALS), np.int64)
    totals[:, load_layout.PREFILL_TOKENS] = [rank.prefill_tokens for rank in ranks]
    totals[:, load_layout.REQUESTS] = [rank.requests for rank in ranks]
    totals[:, load_layout.WHOLE_BLOCKS] = [rank.active_blocks for rank in ranks]
    fractions, weights = np.zeros(len(ranks)), np.full(len(ranks), weight, np.float64)
    store_pointer(arrays[layout.LOAD], load_layout.TOTALS, totals)
    store_pointer(arrays[layout.LOAD], load_layout.FRACTIONS, fractions)
    store_pointer(arrays[layout.RANKS], rank_table_layout.WEIGHT, weights)
    plan = np.zeros(layout.HEADER_LENGTH, np.int64)
    for pair, array in arrays.items():
        store_pointer(plan, pair, array)
    plan[layout.BLOCK_SIZE] = block_size
    plan[layout.REQUEST_ISL_TOKENS], plan[layout.REQUEST_BLOCKS] = isl_tokens, n_blocks
    plan[layout.REQUEST_IS_PINNED] = pinned
    terms = np.zeros((len(REFERENCE_POLICY.term_names), len(ranks)))
    everybody = np.ones(len(ranks), np.bool_)
    REFERENCE_POLICY.fill_terms(
        plan,
        everybody if eligible is None else np.array(eligible),
        np.zeros(0),
        terms,
    )
    return terms


def _matched(rank):
    cpu = rank.device + rank.host
    return [rank.device, cpu, cpu, cpu + rank.disk]
