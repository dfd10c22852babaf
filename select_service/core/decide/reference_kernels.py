"""The `reference` policy: what a prompt costs on each rank, and the choice, in one call.

All sizes are in blocks of B tokens (isl = prompt length in tokens):

    D, H, K    matched blocks on GPU; further ones on CPU; further ones on disk and external storage
    P, A, N    active prefill tokens; active blocks; prompt blocks not yet live on the rank
    cached     = round((D + host_weight*H + disk_weight*K) * B)                          in tokens
    effective  = max(0, isl - cached)                                                    in tokens
    raw        = (P + effective + cached) / B          0 when prefill tokens are not tracked
    decay      = 1 / (1 + decay_rate * x),   x = ((P - min P) / B) / ceil(isl / B)
    credit     = credit_weight*decay*D + host_weight*H + disk_weight*K
    prefill    = scale * max(0, raw - credit)
    decode     = A + N                                 0 when active blocks are not tracked
    cost       = prefill + decode, times exp(-tanh(sum of matching preferred taint weights)),
                 divided by the weight of the rank

`min P` is over the eligible ranks; decay is 1 for a pinned request.

Source: the reference selection service 1.3.1, measured; it prints the same terms per candidate at
debug level.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import compiled
from indexer.index.kernels import match
from indexer.index.state_kernels import i64_view
from select_service.core.decide.pick_kernels import pick
from select_service.core.decide.placement_kernels import (
    CACHED_TOKENS,
    COST,
    DECODE,
    EFFECTIVE_PREFILL_TOKENS,
    N_COMMON_TERMS,
    PLACE,
    summarise,
)
from select_service.core.load.kernels import active_blocks, leading_runs
from select_service.core.load.load_layout import N_TOTALS, PREFILL_TOKENS, TOTALS

I64 = np.int64

# Rows of the terms float64[N_TERMS, n_slots] behind the common ones.
RAW, CREDIT, PREFILL = range(N_COMMON_TERMS, N_COMMON_TERMS + 3)
N_TERMS = N_COMMON_TERMS + 3

# Entries of the parameters float64[N_PARAMETERS].
(
    P_CREDIT,
    P_CREDIT_DECAY,
    P_SCALE,
    P_HOST,
    P_DISK,
    P_TRACK_PREFILL,
    P_TRACK_ACTIVE,
    P_KV_REUSE,
    P_TEMPERATURE,
    P_BLOCK_SIZE,
) = range(10)
N_PARAMETERS = 10


@compiled()
def _lowest_prefill(totals, eligible):
    lowest = I64(-1)
    for slot in range(eligible.shape[0]):
        if eligible[slot]:
            load = totals[slot * N_TOTALS + PREFILL_TOKENS]
            if lowest < 0 or load < lowest:
                lowest = load
    return lowest


@compiled(error_model="numpy")
def _in_blocks(tokens, block_size, per_block):
    """tokens / block_size; per_block: its inverse where that is exact, else 0."""
    return tokens * per_block if per_block != 0.0 else tokens / block_size


@compiled(error_model="numpy")
def _per_block(block_size):
    """1 / block_size for a power of two, where multiplying comes to the same; else 0."""
    size = I64(block_size)
    return 1.0 / block_size if size & (size - 1) == 0 else 0.0


@compiled(error_model="numpy")
def fill_terms(matched, totals, blocks, eligible, parameters, isl_tokens, n_blocks, pinned, out):
    """Fill every row of the terms but the cost; arguments as for `place`."""
    active, leading = blocks[0], blocks[1]
    lowest = float(_lowest_prefill(totals, eligible))
    decays = parameters[P_TRACK_PREFILL] != 0.0 and not pinned and isl_tokens > 0.0
    decay = parameters[P_CREDIT_DECAY] if decays else 0.0
    block_size = parameters[P_BLOCK_SIZE]
    per_block = _per_block(block_size)
    host_weight, disk_weight = parameters[P_HOST], parameters[P_DISK]
    credit_weight, scale = parameters[P_CREDIT], parameters[P_SCALE]
    tracks_prefill = parameters[P_TRACK_PREFILL] != 0.0
    tracks_active = parameters[P_TRACK_ACTIVE] != 0.0
    isl_blocks = np.ceil(_in_blocks(isl_tokens, block_size, per_block))
    for slot in range(out.shape[1]):
        device = float(matched[slot, 0])
        host = float(matched[slot, 1]) - device
        disk = float(matched[slot, 3]) - float(matched[slot, 1])
        load = float(totals[slot * N_TOTALS + PREFILL_TOKENS])
        lower = host_weight * host + disk_weight * disk
        cached = np.floor((device + lower) * block_size + 0.5)
        effective = max(0.0, isl_tokens - cached)
        raw = 0.0
        if tracks_prefill:
            raw = _in_blocks(load + effective + cached, block_size, per_block)
        fading = 1.0
        if decay != 0.0:
            excess = _in_blocks(load - lowest, block_size, per_block) / isl_blocks
            fading = 1.0 / (1.0 + decay * max(0.0, excess))
        credit = credit_weight * fading * device + lower
        out[CACHED_TOKENS, slot] = cached
        out[EFFECTIVE_PREFILL_TOKENS, slot] = effective
        out[RAW, slot] = raw
        out[CREDIT, slot] = credit
        out[PREFILL, slot] = scale * max(0.0, raw - credit)
        out[DECODE, slot] = 0.0
        if tracks_active:
            out[DECODE, slot] = float(active[slot]) + n_blocks - float(leading[slot])


@compiled(error_model="numpy")
def fill_costs(weight, factors, terms):
    """The costs, of the other rows; never NaN.  factors: float64[n_slots], or empty: all 1"""
    for slot in range(terms.shape[1]):
        cost = terms[PREFILL, slot] + terms[DECODE, slot]
        if factors.shape[0] != 0:
            cost *= factors[slot]
        if weight[slot] != 1.0:
            cost /= weight[slot]
        terms[COST, slot] = cost if cost < np.inf else np.inf


@compiled(PLACE, error_model="numpy")
def place(
    index,
    path,
    sequence,
    load,
    eligible,
    weight,
    factors,
    parameters,
    isl_tokens,
    pinned,
    draw,
    matched,
    blocks,
    terms,
    summary,
):
    """The slot for a prompt, NOBODY when none is eligible; see `placement_kernels`."""
    match(index, path, matched)
    active_blocks(load, blocks[0])
    if parameters[P_KV_REUSE] != 0.0:
        leading_runs(load, sequence, blocks[1])
    else:
        blocks[1, :] = 0
    n_blocks = float(sequence.shape[0])
    totals = i64_view(load, TOTALS)
    fill_terms(matched, totals, blocks, eligible, parameters, isl_tokens, n_blocks, pinned, terms)
    fill_costs(weight, factors, terms)
    chosen = pick(terms[COST], eligible, parameters[P_TEMPERATURE], draw)
    summarise(matched, eligible, terms, chosen, summary)
    return chosen
