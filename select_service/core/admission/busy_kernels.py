"""Kernels of the busy check over the slots of a partition.

Missing limits and unknown capacities are infinite.  Infinity times zero is NaN, and no number
exceeds NaN, so such a limit excludes no rank.
"""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would
# prove nothing.

import numpy as np

from indexer.index.header_kernels import HEADER, f64_view, i64_view
from indexer.jit.decorators import compiled
from select_service.core.load.compiled.active_load_kernels import active_blocks_of
from select_service.core.load.compiled.load_layout import (
    FRACTIONAL_BLOCKS,
    FRACTIONS,
    N_TOTALS,
    PREFILL_TOKENS,
    TOTALS,
    WHOLE_BLOCKS,
)
from select_service.core.workers.rank_table_layout import BATCH_TOKENS, KV_BLOCKS, KV_USAGE

I64 = np.int64


DECODE_MAX, PREFILL_MAX, ROOM_MAX, BATCHES_MAX = range(4)
"""Limits, as in `RankLoadLimits`.

DECODE_MAX: used share of the KV cache above which a rank is busy
PREFILL_MAX: active prefill tokens above which a rank is busy
ROOM_MAX: active prefill tokens above which there is no room for another prompt of a class
BATCHES_MAX: the same limit as a multiple of max_num_batched_tokens
"""
BLOCKS_PER_S, TOKENS_PER_S, UNKNOWN_S = range(3)
"""Drain rates of a rank, and the seconds of a drain without a rate."""


@compiled()
def _active_blocks(load, slot):
    totals, row = i64_view(load, TOTALS), slot * N_TOTALS
    fraction = f64_view(load, FRACTIONS)[slot]
    return active_blocks_of(totals[row + WHOLE_BLOCKS], totals[row + FRACTIONAL_BLOCKS], fraction)


@compiled(f"int64(boolean[::1], {HEADER}, {HEADER}, UniTuple(float64, 4), boolean[::1])")
def fill_free_ranks(candidates, load, ranks, limits, out):
    """Write whether each slot is a candidate below all limits to `out`; return their number.

    candidates  bool[n_slots]
    load        header of the load, see load_layout
    ranks       header of the rank table, see rank_table_layout; a NaN in KV_USAGE means that the
                own count applies
    limits      four numbers, see DECODE_MAX
    """
    n_free = I64(0)
    totals, batch_tokens = i64_view(load, TOTALS), f64_view(ranks, BATCH_TOKENS)
    tokens_max, batches_max = min(limits[PREFILL_MAX], limits[ROOM_MAX]), limits[BATCHES_MAX]
    for slot in range(candidates.shape[0]):
        tokens = float(totals[slot * N_TOTALS + PREFILL_TOKENS])
        # Bitwise operators avoid branches, so the compiler can vectorize the loop.
        loaded = (tokens > tokens_max) | (tokens > batches_max * batch_tokens[slot])
        out[slot] = candidates[slot] & (not loaded)
        n_free += out[slot]
    # Most models have no block threshold and skip the second loop.
    decode_max = limits[DECODE_MAX]
    if decode_max == np.inf:
        return n_free
    n_free = I64(0)
    kv_blocks, kv_usage = f64_view(ranks, KV_BLOCKS), f64_view(ranks, KV_USAGE)
    for slot in range(candidates.shape[0]):
        blocks = _active_blocks(load, slot)
        engine_usage = kv_usage[slot]
        # NaN is unequal to itself.
        usage = blocks / kv_blocks[slot] if engine_usage != engine_usage else engine_usage
        # `not >` instead of `<=`: NaN, from an unknown capacity, must not make a rank busy.
        out[slot] &= not usage > decode_max
        n_free += out[slot]
    return n_free


@compiled()
def drain_seconds(work, per_second, unknown_s):
    """Return the seconds until `work` has drained; `unknown_s` without a rate."""
    if work <= 0.0:
        return 0.0
    seconds = work / per_second if per_second > 0.0 else np.inf
    return unknown_s if seconds == np.inf else seconds


@compiled(f"float64(boolean[::1], {HEADER}, {HEADER}, UniTuple(float64, 4), UniTuple(float64, 3))")
def least_wait_seconds(candidates, load, ranks, limits, rates):
    """Return the seconds until the first candidate is below both busy thresholds.

    Assumes that every rank drains at the given rates.  Other arguments: see `fill_free_ranks`.

    rates: three numbers, see BLOCKS_PER_S
    """
    kv_blocks, kv_usage = f64_view(ranks, KV_BLOCKS), f64_view(ranks, KV_USAGE)
    totals, least = i64_view(load, TOTALS), np.inf
    for slot in range(candidates.shape[0]):
        if candidates[slot]:
            used = kv_usage[slot] * kv_blocks[slot]
            if kv_usage[slot] != kv_usage[slot]:
                used = _active_blocks(load, slot)
            blocks = used - limits[DECODE_MAX] * kv_blocks[slot]
            tokens = float(totals[slot * N_TOTALS + PREFILL_TOKENS]) - limits[PREFILL_MAX]
            wait = drain_seconds(tokens, rates[TOKENS_PER_S], rates[UNKNOWN_S])
            if np.isfinite(blocks):  # otherwise without threshold or capacity
                wait = max(wait, drain_seconds(blocks, rates[BLOCKS_PER_S], rates[UNKNOWN_S]))
            least = min(least, wait)
    return least
