"""Compiled loops of admission: which of the candidates are not busy.

Arrays have one row per slot of a partition.  A limit that is not set is infinite, and so is a
capacity that is not known; infinity times zero is no number, and nothing is above that.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import compiled
from select_service.core.load.kernels import active_blocks_of
from select_service.core.load.load_layout import (
    FRACTIONAL_BLOCKS,
    PREFILL_TOKENS,
    WHOLE_BLOCKS,
)

I64 = np.int64


@compiled(
    "int64(boolean[::1], int64[:, ::1], float64[::1], float64[::1], float64[::1], float64[::1],"
    " float64, float64, float64, float64, boolean[::1])",
)
def free_ranks(
    candidates,
    totals,
    fractions,
    kv_blocks,
    kv_usage,
    batch_tokens,
    decode_max,
    prefill_max,
    room_max,
    batches_max,
    out,
):
    """out[slot] = is a candidate and below all limits; returns how many are.

    candidates   bool[n_slots];  totals int64[n_slots, N_TOTALS], fractions float64[n_slots]: load
    kv_blocks    float64[n_slots], blocks of the KV cache
    kv_usage     float64[n_slots], used part of it in the words of the engine; NaN: our own count
    batch_tokens float64[n_slots], max_num_batched_tokens
    decode_max   used part of the KV cache above which a rank is busy;  prefill_max: in tokens
    room_max     active prefill tokens above which it has no room for one more prompt of a class;
    batches_max  the same as a multiple of its batch_tokens
    """
    n_free = I64(0)
    tokens_max = min(prefill_max, room_max)
    for slot in range(candidates.shape[0]):
        tokens = float(totals[slot, PREFILL_TOKENS])
        loaded = (tokens > tokens_max) | (tokens > batches_max * batch_tokens[slot])
        out[slot] = candidates[slot] & (not loaded)
        n_free += out[slot]
    if decode_max == np.inf:
        return n_free
    n_free = I64(0)
    for slot in range(candidates.shape[0]):
        row = totals[slot]
        blocks = active_blocks_of(row[WHOLE_BLOCKS], row[FRACTIONAL_BLOCKS], fractions[slot])
        told = kv_usage[slot]
        usage = blocks / kv_blocks[slot] if told != told else told
        out[slot] &= not usage > decode_max
        n_free += out[slot]
    return n_free


@compiled()
def drain_s(work, per_second, unknown_s):
    """Seconds until `work` has drained."""
    if work <= 0.0:
        return 0.0
    seconds = work / per_second if per_second > 0.0 else np.inf
    return unknown_s if seconds == np.inf else seconds


@compiled(
    "float64(boolean[::1], int64[:, ::1], float64[::1], float64[::1], float64[::1], float64,"
    " float64, float64, float64, float64)",
)
def least_wait_s(
    candidates,
    totals,
    fractions,
    kv_blocks,
    kv_usage,
    decode_max,
    prefill_max,
    blocks_per_s,
    tokens_per_s,
    unknown_s,
):
    """Seconds until the first candidate is below both busy thresholds, if every rank drains at
    these rates; arguments as for `free_ranks`.

    unknown_s: for what has no rate
    """
    least = np.inf
    for slot in range(candidates.shape[0]):
        if candidates[slot]:
            used = kv_usage[slot] * kv_blocks[slot]
            if kv_usage[slot] != kv_usage[slot]:
                row = totals[slot]
                used = active_blocks_of(row[WHOLE_BLOCKS], row[FRACTIONAL_BLOCKS], fractions[slot])
            blocks = used - decode_max * kv_blocks[slot]
            tokens = float(totals[slot, PREFILL_TOKENS]) - prefill_max
            wait = drain_s(tokens, tokens_per_s, unknown_s)
            if np.isfinite(blocks):  # else there is no threshold or no capacity
                wait = max(wait, drain_s(blocks, blocks_per_s, unknown_s))
            least = min(least, wait)
    return least
