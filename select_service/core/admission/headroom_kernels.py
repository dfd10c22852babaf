"""Kernels of the room by remaining work: ranks able to start another prompt soon."""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would
# prove nothing.

import numpy as np

from indexer.index.header_kernels import HEADER, MUTEX, f64_view, i64_view
from indexer.jit.decorators import compiled
from indexer.jit.mutex_kernels import lock_mutex, unlock_mutex
from select_service.core.load.compiled.float_bits_kernels import float_from_bits
from select_service.core.load.compiled.load_layout import REPORTED_SHARE, WORK_LEFT
from select_service.core.load.compiled.progress_kernels import update_progress
from select_service.core.placement.plan_layout import (
    BLOCK_SIZE,
    FOLLOWS_PREFILLS,
    INDEX,
    LOAD,
    RANKS,
)
from select_service.core.placement.policies.work_price_kernels import REPORTED_MIN
from select_service.core.workers.rank_table_layout import BATCH_TOKENS


@compiled()
def _is_work_known(plan, load):
    """Return whether the remaining work is known: progress and ends of prefills must be
    available.
    """
    return plan[FOLLOWS_PREFILLS] != 0 and float_from_bits(load[REPORTED_SHARE]) >= REPORTED_MIN


@compiled()
def _work_left_limit(batch_tokens, tokens_max, batches_max):
    """Return the limit of the remaining work of a rank, in tokens.

    batch_tokens: batch budget of the rank; infinite means unknown
    """
    # An unknown budget is infinite and must not make every rank roomy.
    budget = batches_max * batch_tokens if batch_tokens < np.inf else 0.0
    return max(tokens_max, budget)


@compiled()
def _fill_headroom(plan, load, candidates, tokens_max, batches_max, out):
    left = i64_view(load, WORK_LEFT)
    batch_tokens = f64_view(i64_view(plan, RANKS), BATCH_TOKENS)
    n_ranks = 0
    for slot in range(candidates.shape[0]):
        most = _work_left_limit(batch_tokens[slot], tokens_max, batches_max)
        out[slot] = candidates[slot] & (left[slot] <= most)
        n_ranks += out[slot]
    return n_ranks


@compiled(f"int64({HEADER}, boolean[::1], float64, float64, boolean[::1])")
def fill_headroom(plan, candidates, tokens_max, batches_max, out):
    """Write whether each candidate's remaining work is within the limit; return their number.

    plan:        header of a `Placer` (plan_layout); the call locks its index
    tokens_max:  limit in prefill tokens
    batches_max: limit as a multiple of the batch budget; the larger limit applies
    out:         bool[n_slots]
    All candidates have room while the remaining work is unknown.  O(slots) besides the progress.
    """
    index, load = i64_view(plan, INDEX), i64_view(plan, LOAD)
    # Progress reads the index while other threads apply KV events.
    thread = lock_mutex(index[MUTEX])
    if _is_work_known(plan, load):
        update_progress(index, load, plan[BLOCK_SIZE])
    else:
        # Without reports, work left never shrinks in time, and a hold could last for ever.
        tokens_max = np.inf
    n_ranks = _fill_headroom(plan, load, candidates, tokens_max, batches_max, out)
    unlock_mutex(index[MUTEX], thread)
    return n_ranks
