"""Kernels of the `reference` policy: the cost of a prompt on each rank.

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
    requests   = request_weight * live reservations of the rank
    cost       = prefill + decode + requests,
                 times exp(-tanh(sum of matching preferred taint weights)),
                 then (cost + 1) / weight - 1 by the weight of the rank

`min P` is over the eligible ranks; decay is 1 for a pinned request.

Source: the reference selection service (Dynamo) 1.3.1 and 1.6.1, measured; Dynamo prints the same
terms for each candidate at debug level.
"""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would prove nothing.

from typing import NamedTuple

import numpy as np

from indexer.index.header_kernels import (
    N_TIERS,
    I,
    f64_part,
    f64_view,
    i32_part,
    i64_part,
    i64_view,
)
from indexer.jit.decorators import compiled
from indexer.jit.function_pointers import function_address
from select_service.core.load.compiled.active_load_kernels import active_blocks_of
from select_service.core.load.compiled.load_layout import (
    FRACTIONAL_BLOCKS,
    FRACTIONS,
    N_TOTALS,
    PREFILL_TOKENS,
    REQUESTS,
    TOTALS,
    WHOLE_BLOCKS,
)
from select_service.core.placement.placement_kernels import (
    CACHED_TOKENS,
    COST,
    DECODE,
    EFFECTIVE_PREFILL_TOKENS,
    N_COMMON_TERMS,
    NO_SLOT,
    PLACE_SIGNATURE,
    TERMS_SIGNATURE,
    blocks_inside,
    choose_slot,
    find_run_end,
    has_inside_rows,
    inside_rows,
    match_prompt,
    own_work_tokens,
    write_token_summary,
)
from select_service.core.placement.plan_layout import (
    BLOCK_SIZE,
    COSTS,
    LEADING,
    LOAD,
    MATCHED,
    N_COMMON_PARAMETERS,
    PARAMETERS,
    RANKS,
    REQUEST_BLOCKS,
    REQUEST_IS_PINNED,
    REQUEST_ISL_TOKENS,
)
from select_service.core.placement.policies.weight_kernels import apply_weight
from select_service.core.workers.rank_table_layout import WEIGHT

# Policy's own rows of the terms, float64[N_TERMS, n_slots], behind the common rows.
RAW, CREDIT, PREFILL, REQUEST_COST = range(N_COMMON_TERMS, N_COMMON_TERMS + 4)
N_TERMS = N_COMMON_TERMS + 4

# Policy's own parameters, behind the common parameters.
(
    P_CREDIT,
    P_CREDIT_DECAY,
    P_SCALE,
    P_HOST,
    P_DISK,
    P_TRACK_PREFILL,
    P_TRACK_ACTIVE,
    P_REQUEST_WEIGHT,
) = range(N_COMMON_PARAMETERS, N_COMMON_PARAMETERS + 8)
N_PARAMETERS = N_COMMON_PARAMETERS + 8


class ReferenceQuery(NamedTuple):
    """Numbers of a prompt and a policy that are equal for all slots.

    per_block: inverse of the block size where multiplication gives the same result, else 0
    decay: 0 when the credit does not fade
    """

    credit_weight: float
    decay: float
    scale: float
    host_weight: float
    disk_weight: float
    tracks_prefill: bool
    tracks_active: bool
    request_weight: float
    block_size: float
    per_block: float
    isl_tokens: float
    isl_blocks: float
    n_blocks: float
    lowest_prefill: float


class ReferenceSlot(NamedTuple):
    """Numbers of a slot.

    device, cpu, external: matched blocks, cumulative
    """

    prefill_tokens: float
    active_blocks: float
    requests: float
    device: float
    cpu: float
    external: float
    leading: float


class ReferenceRows(NamedTuple):
    """Numbers of a range of slots, as arrays."""

    totals: np.ndarray
    fractions: np.ndarray
    matched: np.ndarray
    leading: np.ndarray
    weight: np.ndarray
    inside: np.ndarray


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
def _make_query(plan, eligible):
    isl_tokens, is_pinned = float(plan[REQUEST_ISL_TOKENS]), plan[REQUEST_IS_PINNED] != 0
    parameters, size = f64_view(plan, PARAMETERS), plan[BLOCK_SIZE]
    block_size = float(size)
    # For powers of two the inverse is exact, and a multiplication is cheaper than a division.
    per_block = 1.0 / block_size if size & (size - 1) == 0 else 0.0
    tracks_prefill = parameters[P_TRACK_PREFILL] != 0.0
    decays = tracks_prefill and not is_pinned and isl_tokens > 0.0
    decay = parameters[P_CREDIT_DECAY] if decays else 0.0
    lowest = 0.0
    if decay != 0.0:
        lowest = float(_lowest_prefill(i64_view(i64_view(plan, LOAD), TOTALS), eligible))
    return ReferenceQuery(
        credit_weight=parameters[P_CREDIT],
        decay=decay,
        scale=parameters[P_SCALE],
        host_weight=parameters[P_HOST],
        disk_weight=parameters[P_DISK],
        tracks_prefill=tracks_prefill,
        tracks_active=parameters[P_TRACK_ACTIVE] != 0.0,
        request_weight=parameters[P_REQUEST_WEIGHT],
        block_size=block_size,
        per_block=per_block,
        isl_tokens=isl_tokens,
        isl_blocks=np.ceil(_in_blocks(isl_tokens, block_size, per_block)),
        n_blocks=float(plan[REQUEST_BLOCKS]),
        lowest_prefill=lowest,
    )


@compiled(error_model="numpy")
def slot_terms(slot, query):
    """Return (cached tokens, effective prefill tokens, decode, raw, credit, prefill, requests) of a
    slot.
    """
    host = slot.cpu - slot.device
    disk = slot.external - slot.cpu
    lower = query.host_weight * host + query.disk_weight * disk
    cached = np.floor((slot.device + lower) * query.block_size + 0.5)
    effective = max(0.0, query.isl_tokens - cached)
    load, size, per_block = slot.prefill_tokens, query.block_size, query.per_block
    raw = _in_blocks(load + effective + cached, size, per_block) if query.tracks_prefill else 0.0
    fading = 1.0
    if query.decay != 0.0:
        # Ineligible slots may be below the lowest eligible load, hence the maximum below.
        excess = _in_blocks(load - query.lowest_prefill, size, per_block) / query.isl_blocks
        fading = 1.0 / (1.0 + query.decay * max(0.0, excess))
    credit = query.credit_weight * fading * slot.device + lower
    prefill = query.scale * max(0.0, raw - credit)
    decode = slot.active_blocks + query.n_blocks - slot.leading if query.tracks_active else 0.0
    requests = query.request_weight * slot.requests
    return cached, effective, decode, raw, credit, prefill, requests


@compiled(error_model="numpy")
def _weighted_cost(terms, factor, weight):
    """Return the cost of a slot, never NaN."""
    _, _, decode, _, _, prefill, requests = terms
    return apply_weight((prefill + decode + requests) * factor, weight, 1.0)


@compiled()
def _slice_rows(plan, first, end):
    """Return the arrays of the slots from `first` to `end`."""
    load = i64_view(plan, LOAD)
    return ReferenceRows(
        i64_part(load, TOTALS, first * N_TOTALS, end * N_TOTALS),
        f64_part(load, FRACTIONS, first, end),
        i32_part(plan, MATCHED, first * N_TIERS, end * N_TIERS),
        i64_part(plan, LEADING, first, end),
        f64_part(i64_view(plan, RANKS), WEIGHT, first, end),
        inside_rows(plan, first, end),
    )


@compiled()
def _slot_at(rows, query, at, has_blocks, has_inside):
    """Return the numbers of a slot.

    has_blocks: False when the slot certainly has no block of the prompt
    """
    row = at * N_TOTALS
    blocks = active_blocks_of(
        rows.totals[row + WHOLE_BLOCKS],
        rows.totals[row + FRACTIONAL_BLOCKS],
        rows.fractions[at],
    )
    tokens, requests = float(rows.totals[row + PREFILL_TOKENS]), float(rows.totals[row + REQUESTS])
    if not has_blocks:
        return ReferenceSlot(tokens, blocks, requests, 0.0, 0.0, 0.0, 0.0)
    tiers = at * N_TIERS
    device, cpu = float(rows.matched[tiers]), float(rows.matched[tiers + 1])
    external = float(rows.matched[tiers + 3])
    if has_inside:
        more = blocks_inside(rows.inside, at, query.block_size)
        device, cpu, external = device + more, cpu + more, external + more
    leading = float(rows.leading[at])
    return ReferenceSlot(tokens, blocks, requests, device, cpu, external, leading)


@compiled(error_model="numpy", forceinline=True)
def _costs_between(plan, query, factors, bounds, has_blocks, has_inside):
    """Fill the costs of the slots from `first` to `end`.

    Inlined, so the compiler specializes the loop for the constants `has_blocks` and `has_inside`.
    """
    first, end = bounds
    if first == end:
        return
    rows, costs = _slice_rows(plan, first, end), f64_part(plan, COSTS, first, end)
    own = factors[first:end]
    for at in range(end - first):
        terms = slot_terms(_slot_at(rows, query, at, has_blocks, has_inside), query)
        factor = own[at] if own.shape[0] != 0 else 1.0
        costs[at] = _weighted_cost(terms, factor, rows.weight[at])


@compiled(error_model="numpy", forceinline=True)
def _fill_all_costs(plan, query, eligible, factors, has_inside):
    """Fill the costs of all slots, in runs of slots with and without blocks of the prompt.

    Most slots have no block of a prompt, and such a cost takes half the time.
    """
    n_slots = eligible.shape[0]
    words = (n_slots + 63) >> 6
    word = I(0)
    while word < words:
        end = find_run_end(plan, word, words, False)
        bounds = (word << 6, min(end << 6, n_slots))
        _costs_between(plan, query, factors, bounds, False, has_inside)
        word = find_run_end(plan, end, words, True)
        bounds = (end << 6, min(word << 6, n_slots))
        _costs_between(plan, query, factors, bounds, True, has_inside)


@compiled(error_model="numpy")
def _fill_costs(plan, query, eligible, factors):
    """Fill the costs of all slots."""
    if has_inside_rows(plan):
        _fill_all_costs(plan, query, eligible, factors, True)
    else:
        _fill_all_costs(plan, query, eligible, factors, False)


@compiled(error_model="numpy")
def place_by_reference(plan, path, sequence, eligible, factors):
    """Place a prompt in the three steps of `placement_kernels`."""
    match_prompt(plan, path, sequence)
    query = _make_query(plan, eligible)
    _fill_costs(plan, query, eligible, factors)
    chosen = choose_slot(plan, eligible)
    if chosen != NO_SLOT:
        slot = _slot_at(_slice_rows(plan, chosen, chosen + 1), query, 0, True, True)
        terms = slot_terms(slot, query)
        own_work = own_work_tokens(query.isl_tokens, terms[0], slot.leading * query.block_size)
        write_token_summary(plan, terms[1], own_work)
    return chosen


_address_of_place = function_address(PLACE_SIGNATURE, place_by_reference)


@compiled("int64()")
def address_of_place():
    """Return the address of `place_by_reference`, for PLACE_ADDRESS."""
    return _address_of_place()


@compiled(TERMS_SIGNATURE, error_model="numpy")
def fill_terms(plan, eligible, factors, out):
    """Write the cost terms of the last placement, since which nothing was booked.

    out: float64[n_terms, n_slots]; the policy names the rows
    """
    query = _make_query(plan, eligible)
    rows = _slice_rows(plan, 0, out.shape[1])
    for slot in range(out.shape[1]):
        terms = slot_terms(_slot_at(rows, query, slot, True, True), query)
        cached, effective, decode, raw, credit, prefill, requests = terms
        out[CACHED_TOKENS, slot] = cached
        out[EFFECTIVE_PREFILL_TOKENS, slot] = effective
        out[DECODE, slot] = decode
        factor = factors[slot] if factors.shape[0] != 0 else 1.0
        out[COST, slot] = _weighted_cost(terms, factor, rows.weight[slot])
        out[RAW, slot] = raw
        out[CREDIT, slot] = credit
        out[PREFILL, slot] = prefill
        out[REQUEST_COST, slot] = requests
