"""The `reference` policy: what a prompt costs on each rank.

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
                 then (cost + 1) / weight - 1 by the weight of the rank

`min P` is over the eligible ranks; decay is 1 for a pinned request.

Source: the reference selection service 1.3.1, measured; it prints the same terms per candidate at
debug level.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from typing import NamedTuple

import numpy as np

from indexer.compiled import compiled
from indexer.exported_kernels import address_of
from indexer.index.state_kernels import N_TIERS, I, f64_view, i32_view, i64_view
from select_service.core.decide.placement_kernels import (
    CACHED_TOKENS,
    COST,
    DECODE,
    EFFECTIVE_PREFILL_TOKENS,
    N_COMMON_TERMS,
    NOBODY,
    PLACE,
    TERMS,
    choose,
    end_of_run,
    look,
    own_work_of,
    summarise_tokens,
)
from select_service.core.decide.plan_layout import (
    BLOCK_SIZE,
    COSTS,
    LEADING,
    LOAD,
    MATCHED,
    N_COMMON_PARAMETERS,
    PARAMETERS,
    RANKS,
)
from select_service.core.decide.weight_kernels import weighed
from select_service.core.load.kernels import active_blocks_of
from select_service.core.load.load_layout import (
    FRACTIONAL_BLOCKS,
    FRACTIONS,
    N_TOTALS,
    PREFILL_TOKENS,
    TOTALS,
    WHOLE_BLOCKS,
)
from select_service.core.workers.rank_layout import WEIGHT

# Rows of the terms float64[N_TERMS, n_slots] behind the common ones.
RAW, CREDIT, PREFILL = range(N_COMMON_TERMS, N_COMMON_TERMS + 3)
N_TERMS = N_COMMON_TERMS + 3

# Entries of the parameters behind the common ones.
(
    P_CREDIT,
    P_CREDIT_DECAY,
    P_SCALE,
    P_HOST,
    P_DISK,
    P_TRACK_PREFILL,
    P_TRACK_ACTIVE,
) = range(N_COMMON_PARAMETERS, N_COMMON_PARAMETERS + 7)
N_PARAMETERS = N_COMMON_PARAMETERS + 7


class Query(NamedTuple):
    """What of a prompt is the same for all slots.

    per_block: the inverse of the block size where multiplying comes to the same, else 0
    decay:     0 where nothing fades
    """

    credit_weight: float
    decay: float
    scale: float
    host_weight: float
    disk_weight: float
    tracks_prefill: bool
    tracks_active: bool
    block_size: float
    per_block: float
    isl_tokens: float
    isl_blocks: float
    n_blocks: float
    lowest_prefill: float


class Slot(NamedTuple):
    """What is known of a slot.  device, cpu, external: matched blocks, cumulative"""

    prefill_tokens: float
    active_blocks: float
    device: float
    cpu: float
    external: float
    leading: float


class Rows(NamedTuple):
    """What is known of the slots of a range, as arrays."""

    totals: np.ndarray
    fractions: np.ndarray
    matched: np.ndarray
    leading: np.ndarray
    weight: np.ndarray


@compiled()
def _lowest_prefill(totals, eligible):
    lowest = I(-1)
    for slot in range(eligible.shape[0]):
        if eligible[slot]:
            load = totals[slot * N_TOTALS + PREFILL_TOKENS]
            if lowest < 0 or load < lowest:
                lowest = load
    return lowest


@compiled(error_model="numpy")
def _in_blocks(tokens, block_size, per_block):
    return tokens * per_block if per_block != 0.0 else tokens / block_size


@compiled(error_model="numpy")
def _query(plan, eligible, isl_tokens, n_blocks, pinned):
    parameters, size = f64_view(plan, PARAMETERS), plan[BLOCK_SIZE]
    block_size = float(size)
    per_block = 1.0 / block_size if size & (size - 1) == 0 else 0.0
    tracks_prefill = parameters[P_TRACK_PREFILL] != 0.0
    decays = tracks_prefill and not pinned and isl_tokens > 0.0
    decay = parameters[P_CREDIT_DECAY] if decays else 0.0
    lowest = 0.0
    if decay != 0.0:
        lowest = float(_lowest_prefill(i64_view(i64_view(plan, LOAD), TOTALS), eligible))
    return Query(
        credit_weight=parameters[P_CREDIT],
        decay=decay,
        scale=parameters[P_SCALE],
        host_weight=parameters[P_HOST],
        disk_weight=parameters[P_DISK],
        tracks_prefill=tracks_prefill,
        tracks_active=parameters[P_TRACK_ACTIVE] != 0.0,
        block_size=block_size,
        per_block=per_block,
        isl_tokens=isl_tokens,
        isl_blocks=np.ceil(_in_blocks(isl_tokens, block_size, per_block)),
        n_blocks=n_blocks,
        lowest_prefill=lowest,
    )


@compiled(error_model="numpy")
def terms_of(slot, query):
    """(cached tokens, effective prefill tokens, decode, raw, credit, prefill) of a slot."""
    host = slot.cpu - slot.device
    disk = slot.external - slot.cpu
    lower = query.host_weight * host + query.disk_weight * disk
    cached = np.floor((slot.device + lower) * query.block_size + 0.5)
    effective = max(0.0, query.isl_tokens - cached)
    load, size, per_block = slot.prefill_tokens, query.block_size, query.per_block
    raw = _in_blocks(load + effective + cached, size, per_block) if query.tracks_prefill else 0.0
    fading = 1.0
    if query.decay != 0.0:
        excess = _in_blocks(load - query.lowest_prefill, size, per_block) / query.isl_blocks
        fading = 1.0 / (1.0 + query.decay * max(0.0, excess))
    credit = query.credit_weight * fading * slot.device + lower
    prefill = query.scale * max(0.0, raw - credit)
    decode = slot.active_blocks + query.n_blocks - slot.leading if query.tracks_active else 0.0
    return cached, effective, decode, raw, credit, prefill


@compiled(error_model="numpy")
def _cost(terms, factor, weight):
    """Never NaN."""
    _, _, decode, _, _, prefill = terms
    return weighed((prefill + decode) * factor, weight, 1.0)


@compiled()
def _rows(plan, first, end):
    """Of the slots from `first` to `end`."""
    load = i64_view(plan, LOAD)
    return Rows(
        i64_view(load, TOTALS)[first * N_TOTALS : end * N_TOTALS],
        f64_view(load, FRACTIONS)[first:end],
        i32_view(plan, MATCHED)[first * N_TIERS : end * N_TIERS],
        i64_view(plan, LEADING)[first:end],
        f64_view(i64_view(plan, RANKS), WEIGHT)[first:end],
    )


@compiled()
def _slot_at(rows, at, found):
    """found: may it have anything of the prompt?"""
    row = at * N_TOTALS
    blocks = active_blocks_of(
        rows.totals[row + WHOLE_BLOCKS],
        rows.totals[row + FRACTIONAL_BLOCKS],
        rows.fractions[at],
    )
    tokens = float(rows.totals[row + PREFILL_TOKENS])
    if not found:
        return Slot(tokens, blocks, 0.0, 0.0, 0.0, 0.0)
    device, cpu, external = matched_of(rows.matched, at)
    return Slot(tokens, blocks, device, cpu, external, float(rows.leading[at]))


@compiled()
def matched_of(matched, at):
    row = at * N_TIERS
    return float(matched[row]), float(matched[row + 1]), float(matched[row + 3])


@compiled(error_model="numpy", forceinline=True)
def _costs_between(plan, query, factors, first, end, found):
    """Costs of the slots from `first` to `end`.  Inlined, and so optimized for its `found`."""
    rows, costs = _rows(plan, first, end), f64_view(plan, COSTS)[first:end]
    own = factors[first:end]
    for at in range(end - first):
        terms = terms_of(_slot_at(rows, at, found), query)
        factor = own[at] if own.shape[0] != 0 else 1.0
        costs[at] = _cost(terms, factor, rows.weight[at])


@compiled(error_model="numpy")
def _fill_costs(plan, query, eligible, factors):
    """Most slots have nothing of a prompt: theirs cost half as much to compute."""
    n_slots = eligible.shape[0]
    words = (n_slots + 63) >> 6
    word = I(0)
    while word < words:
        end = end_of_run(plan, word, words, False)
        _costs_between(plan, query, factors, word << 6, min(end << 6, n_slots), False)
        word = end_of_run(plan, end, words, True)
        _costs_between(plan, query, factors, end << 6, min(word << 6, n_slots), True)


@compiled(error_model="numpy")
def place(plan, path, sequence, eligible, factors, isl_tokens, pinned, draw):
    """See `placement_kernels.place`."""
    look(plan, path, sequence)
    query = _query(plan, eligible, isl_tokens, float(sequence.shape[0]), pinned)
    _fill_costs(plan, query, eligible, factors)
    chosen = choose(plan, eligible, draw)
    if chosen != NOBODY:
        slot = _slot_at(_rows(plan, chosen, chosen + 1), 0, True)
        terms = terms_of(slot, query)
        own_work = own_work_of(isl_tokens, terms[0], slot.leading * query.block_size)
        summarise_tokens(plan, terms[1], own_work)
    return chosen


_address_of_place = address_of(PLACE, place)


@compiled("int64()")
def address_of_place():
    """For PLACE_AT."""
    return _address_of_place()


@compiled(TERMS, error_model="numpy")
def fill_terms(plan, eligible, factors, isl_tokens, n_blocks, pinned, out):
    """What the costs of the last placement were made of; nothing was booked since.

    n_blocks: of the prompt;  out: float64[n_terms, n_slots], rows as the policy names them
    """
    query = _query(plan, eligible, isl_tokens, n_blocks, pinned)
    rows = _rows(plan, 0, out.shape[1])
    for slot in range(out.shape[1]):
        terms = terms_of(_slot_at(rows, slot, True), query)
        cached, effective, decode, raw, credit, prefill = terms
        out[CACHED_TOKENS, slot] = cached
        out[EFFECTIVE_PREFILL_TOKENS, slot] = effective
        out[DECODE, slot] = decode
        factor = factors[slot] if factors.shape[0] != 0 else 1.0
        out[COST, slot] = _cost(terms, factor, rows.weight[slot])
        out[RAW, slot] = raw
        out[CREDIT, slot] = credit
        out[PREFILL, slot] = prefill
