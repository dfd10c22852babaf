"""Kernels of the work policies: the cost of a prompt on each rank, in tokens of prefill.

B is the block size, isl the length of the prompt, both in tokens:

    cached     = round((D + host_weight*H + disk_weight*K) * B)          as in `reference_kernels`
                 + credit for tokens in a shared cache                   see `shared_credit_kernels`
    u          = max(1, isl - max(cached, B * leading run))          own work of the prompt there
    P          = sum of u of the unfinished prefills of the rank
    left       = P, less the estimated progress of the oldest        see `progress_kernels`
    R          = live requests of the rank
    live       = B * (A + N)         tokens that would be active there;  A, N: `reference_kernels`
    J          = left_price * left + u
               + min(R * request_share, share_max) * min(u, own_work_max)
               + request_price * R
               + live_price * live
               + memory_price * max(0, live - full * B * blocks of its KV cache)
               + outside_price * u / (u + OUTSIDE_HALF)     if it is of another replica's share
               + copy_price * (u - least u)                 if its cache is full
    speed      = declared prefill speed / the median of declared speeds; 1 when undeclared
    cost       = J / speed, times the factor of its taints, then (cost + B) / weight - B

A cache is full when the blocks that the rank holds, R and left / B reach FILLED_SHARE of it; the
least u is that of all eligible ranks.  Both terms of the cache are 0 for ranks without a declared
`total_kv_blocks`.  When callers do not report the ends of prefills (REPORTED_SHARE of the load is
below REPORTED_MIN), P is unreliable: P then costs UNREPORTED_PRICE a token, no progress is
subtracted, and the share of own work is 0.
"""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would prove nothing.

from typing import NamedTuple

import numpy as np

from indexer.index.header_kernels import (
    N_TIERS,
    I,
    U,
    f64_part,
    f64_view,
    i32_part,
    i64_part,
    i64_view,
    lowest_bit,
    u64_view,
)
from indexer.jit.decorators import compiled
from indexer.jit.function_pointers import function_address
from select_service.core.load.compiled.active_load_kernels import active_blocks_of
from select_service.core.load.compiled.float_bits_kernels import float_from_bits
from select_service.core.load.compiled.load_layout import (
    FRACTIONAL_BLOCKS,
    FRACTIONS,
    N_TOTALS,
    REPORTED_SHARE,
    REQUESTS,
    TOTALS,
    WHOLE_BLOCKS,
    WORK_BOOKED,
    WORK_LEFT,
)
from select_service.core.load.compiled.progress_kernels import update_progress
from select_service.core.placement.assumption_kernels import held_blocks, held_columns
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
    HOLDING,
    INDEX,
    LEADING,
    LEAST_WORK,
    LOAD,
    MATCHED,
    N_COMMON_PARAMETERS,
    PARAMETERS,
    RANKS,
    REQUEST_BLOCKS,
    REQUEST_ISL_TOKENS,
    RUNNING,
    SHARED,
)
from select_service.core.placement.policies.weight_kernels import apply_weight
from select_service.core.placement.shared_credit_kernels import shared_credit
from select_service.core.workers.rank_table_layout import (
    KV_BLOCKS,
    MEDIAN_SPEED,
    OUTSIDE,
    SPEED,
    WEIGHT,
)

# Policy's own rows of the terms, float64[N_TERMS, n_slots], behind the common rows: tokens, then
# prices.
(
    OWN_WORK,
    BOOKED_WORK,
    PROGRESS,
    LEFT_PRICE,
    SHARE_PRICE,
    REQUEST_PRICE,
    LIVE_PRICE,
    MEMORY_PRICE,
    OUTSIDE_PRICE,
    COPY_PRICE,
) = range(N_COMMON_TERMS, N_COMMON_TERMS + 10)
N_TERMS = N_COMMON_TERMS + 10

# Policy's own parameters, behind the common parameters.
(
    P_LEFT,
    P_REQUEST_SHARE,
    P_SHARE_MAX,
    P_OWN_WORK_MAX,
    P_REQUEST,
    P_LIVE,
    P_MEMORY,
    P_FULL,
    P_HOST,
    P_DISK,
    P_TRACK_ACTIVE,
    P_OUTSIDE,
    P_COPY,
) = range(N_COMMON_PARAMETERS, N_COMMON_PARAMETERS + 13)
N_PARAMETERS = N_COMMON_PARAMETERS + 13

REPORTED_MIN = 0.5
UNREPORTED_PRICE = 0.3
OUTSIDE_HALF = 2048.0
"""Tokens of own work that cost half the price of ranks outside the share."""
NO_CREDIT = -0.0
"""Neutral number of a sum: the compiler drops it, which it may not do with +0.0."""
FILLED_SHARE = 0.9
"""Share of the KV cache that a full rank holds."""


class WorkQuery(NamedTuple):
    """Numbers of a prompt and a policy that are equal for all slots.

    left_at: pair of the load with the remaining work
    usual_speed: speed at which the cost is J, tokens per second; 0 means no rank declared a
    speed
    """

    left_at: int
    left_price: float
    request_share: float
    share_max: float
    own_work_max: float
    request_price: float
    live_price: float
    memory_price: float
    full: float
    outside_price: float
    copy_price: float
    usual_speed: float
    host_weight: float
    disk_weight: float
    tracks_active: bool
    block_size: float
    isl_tokens: float
    n_blocks: float


class WorkSlot(NamedTuple):
    """Numbers of one slot.

    outside: 1 for another replica's share, else 0
    pace: factor of J for a rank slower or faster than usual
    device, cpu, external: matched blocks, cumulative
    credit: for tokens in a shared cache
    """

    work_left: float
    requests: float
    active_blocks: float
    kv_blocks: float
    outside: float
    pace: float
    device: float
    cpu: float
    external: float
    leading: float
    credit: float


class WorkRows(NamedTuple):
    """Numbers of a range of slots, as arrays."""

    work_left: np.ndarray
    totals: np.ndarray
    fractions: np.ndarray
    matched: np.ndarray
    leading: np.ndarray
    kv_blocks: np.ndarray
    weight: np.ndarray
    outside: np.ndarray
    speed: np.ndarray
    inside: np.ndarray
    shared: np.ndarray


@compiled()
def are_ends_reported(load):
    return float_from_bits(load[REPORTED_SHARE]) >= REPORTED_MIN


@compiled()
def make_work_query(plan):
    parameters = f64_view(plan, PARAMETERS)
    left_at, left_price, share_max = WORK_LEFT, parameters[P_LEFT], parameters[P_SHARE_MAX]
    if not are_ends_reported(i64_view(plan, LOAD)):
        # Without reported ends, prefills look unfinished until the request ends.
        left_at, left_price, share_max = WORK_BOOKED, min(left_price, UNREPORTED_PRICE), 0.0
    return WorkQuery(
        left_at=left_at,
        left_price=left_price,
        request_share=parameters[P_REQUEST_SHARE],
        share_max=share_max,
        own_work_max=parameters[P_OWN_WORK_MAX],
        request_price=parameters[P_REQUEST],
        live_price=parameters[P_LIVE],
        memory_price=parameters[P_MEMORY],
        full=parameters[P_FULL],
        outside_price=parameters[P_OUTSIDE],
        copy_price=parameters[P_COPY],
        usual_speed=float_from_bits(i64_view(plan, RANKS)[MEDIAN_SPEED]),
        host_weight=parameters[P_HOST],
        disk_weight=parameters[P_DISK],
        tracks_active=parameters[P_TRACK_ACTIVE] != 0.0,
        block_size=float(plan[BLOCK_SIZE]),
        isl_tokens=float(plan[REQUEST_ISL_TOKENS]),
        n_blocks=float(plan[REQUEST_BLOCKS]),
    )


@compiled(error_model="numpy")
def slot_prices(slot, query):
    """Return the cost terms of a slot.

    Result: (cached tokens, own work, live blocks, price of the work left, of the share of own work,
    of requests, of live tokens, of memory, of other replicas' shares).
    """
    lower = query.host_weight * (slot.cpu - slot.device)
    lower += query.disk_weight * (slot.external - slot.cpu)
    cached = np.floor((slot.device + lower) * query.block_size + 0.5) + slot.credit
    own = own_work_tokens(query.isl_tokens, cached, slot.leading * query.block_size)
    share = min(slot.requests * query.request_share, query.share_max)
    live = slot.active_blocks + query.n_blocks - slot.leading if query.tracks_active else 0.0
    over = max(0.0, live - query.full * slot.kv_blocks)
    return (
        cached,
        own,
        live,
        query.left_price * slot.work_left,
        share * min(own, query.own_work_max),
        query.request_price * slot.requests,
        query.live_price * (query.block_size * live),
        query.memory_price * (query.block_size * over),
        query.outside_price * slot.outside * (own / (own + OUTSIDE_HALF)),
    )


@compiled(error_model="numpy")
def _weighted_cost(prices, pace, factor, weight, block_size):
    """Return the cost of a slot, never NaN."""
    _, own, _, left, share, requests, live, memory, outside = prices
    cost = (left + own + share + requests + live + memory + outside) * pace * factor
    return apply_weight(cost, weight, block_size)


@compiled(error_model="numpy")
def _add_copy(cost, copy, pace, factor, weight):
    """Return the cost of a slot with its price of a copy, never NaN."""
    # The weight divides a copy as it divides the other terms, see `apply_weight`.
    return cost + copy * pace * factor / weight if copy > 0.0 and cost < np.inf else cost


@compiled()
def slice_rows(plan, query, first, end):
    """Return the arrays of the slots from `first` to `end`."""
    load, ranks = i64_view(plan, LOAD), i64_view(plan, RANKS)
    return WorkRows(
        i64_part(load, query.left_at, first, end),
        i64_part(load, TOTALS, first * N_TOTALS, end * N_TOTALS),
        f64_part(load, FRACTIONS, first, end),
        i32_part(plan, MATCHED, first * N_TIERS, end * N_TIERS),
        i64_part(plan, LEADING, first, end),
        f64_part(ranks, KV_BLOCKS, first, end),
        f64_part(ranks, WEIGHT, first, end),
        f64_part(ranks, OUTSIDE, first, end),
        f64_part(ranks, SPEED, first, end),
        inside_rows(plan, first, end),
        f64_part(plan, SHARED, 2 * first, 2 * end),
    )


@compiled(error_model="numpy")
def _pace_factor(speed, usual_speed):
    """Return the factor of J by the declared speed; 1 when undeclared (0)."""
    return usual_speed / speed if usual_speed > 0.0 and speed > 0.0 else 1.0


@compiled()
def slot_at(rows, query, at, has_blocks, has_more):
    """Return the numbers of one slot.

    has_blocks: False when the slot certainly has no block of the prompt
    has_more: False when certainly no slot has tokens inside a block, nor in a shared cache
    """
    row, left, kv_blocks = at * N_TOTALS, float(rows.work_left[at]), rows.kv_blocks[at]
    outside, pace = rows.outside[at], _pace_factor(rows.speed[at], query.usual_speed)
    requests = float(rows.totals[row + REQUESTS])
    blocks = active_blocks_of(
        rows.totals[row + WHOLE_BLOCKS],
        rows.totals[row + FRACTIONAL_BLOCKS],
        rows.fractions[at],
    )
    credit = NO_CREDIT
    if not has_blocks:
        if has_more:
            credit = shared_credit(rows.shared, at, 0.0)
        return WorkSlot(
            left, requests, blocks, kv_blocks, outside, pace, 0.0, 0.0, 0.0, 0.0, credit
        )
    tiers, leading = at * N_TIERS, float(rows.leading[at])
    device, cpu = float(rows.matched[tiers]), float(rows.matched[tiers + 1])
    external = float(rows.matched[tiers + 3])
    if has_more:
        credit = shared_credit(rows.shared, at, external * query.block_size)
        more = blocks_inside(rows.inside, at, query.block_size)
        device, cpu, external = device + more, cpu + more, external + more
    return WorkSlot(
        left, requests, blocks, kv_blocks, outside, pace, device, cpu, external, leading, credit
    )


@compiled(error_model="numpy", forceinline=True)
def _costs_between(plan, query, factors, bounds, has_blocks, has_more):
    """Fill the costs of the slots from `first` to `end`.

    Inlined, so the compiler specializes the loop for the constants `has_blocks` and `has_more`.
    """
    first, end = bounds
    if first == end:
        return
    rows, costs = slice_rows(plan, query, first, end), f64_part(plan, COSTS, first, end)
    own = factors[first:end]
    for at in range(end - first):
        slot = slot_at(rows, query, at, has_blocks, has_more)
        factor = own[at] if own.shape[0] != 0 else 1.0
        prices, weight = slot_prices(slot, query), rows.weight[at]
        costs[at] = _weighted_cost(prices, slot.pace, factor, weight, query.block_size)


@compiled(error_model="numpy", forceinline=True)
def _fill_all_costs(plan, query, n_slots, factors, has_more):
    """Fill the costs of all slots, in runs of slots with and without blocks of the prompt.

    Most slots have no block of a prompt, and such a cost takes less time.
    """
    words = (n_slots + 63) >> 6
    word = I(0)
    while word < words:
        end = find_run_end(plan, word, words, False)
        bounds = (word << 6, min(end << 6, n_slots))
        _costs_between(plan, query, factors, bounds, False, has_more)
        word = find_run_end(plan, end, words, True)
        bounds = (end << 6, min(word << 6, n_slots))
        _costs_between(plan, query, factors, bounds, True, has_more)


@compiled(error_model="numpy")
def _fill_costs(plan, query, n_slots, factors):
    """Fill the costs of all slots."""
    if has_inside_rows(plan) or plan[SHARED + 1] != 0:
        _fill_all_costs(plan, query, n_slots, factors, True)
    else:
        _fill_all_costs(plan, query, n_slots, factors, False)


@compiled(error_model="numpy", forceinline=True)
def _is_full(rows, query, at, held):
    """Return whether the cache of a slot is full.

    held: blocks of the slot, without those that live requests fill at the moment
    """
    requests = float(rows.totals[at * N_TOTALS + REQUESTS])
    # Each live request fills a block that no event has announced yet.
    tokens = query.block_size * (held + requests) + float(rows.work_left[at])
    return tokens >= FILLED_SHARE * (query.block_size * rows.kv_blocks[at])


@compiled(error_model="numpy")
def _own_work_at(rows, query, at):
    return slot_prices(slot_at(rows, query, at, True, True), query)[1]


@compiled(error_model="numpy")
def _least_own_work(plan, query, rows, eligible):
    """Return the least own work of the eligible slots.

    Without a shared cache, only slots with blocks of the prompt can have less than the whole.
    """
    holding, running = u64_view(plan, HOLDING), u64_view(plan, RUNNING)
    least = max(1.0, query.isl_tokens)
    if plan[SHARED + 1] != 0:
        # Every rank has credit then, so the masks below would leave out some.
        for slot in range(eligible.shape[0]):
            if eligible[slot]:
                least = min(least, _own_work_at(rows, query, slot))
        return least
    for word in range((eligible.shape[0] + 63) >> 6):
        rest = holding[word] | running[word]
        while rest:
            at = word * 64 + I(lowest_bit(rest))
            if at < eligible.shape[0] and eligible[at]:
                least = min(least, _own_work_at(rows, query, at))
            rest &= rest - U(1)
    return least


@compiled(error_model="numpy")
def _add_copy_prices(plan, query, eligible, factors):
    """Add the prices of copies to the costs."""
    n_slots, columns = eligible.shape[0], held_columns(plan)
    rows, costs = slice_rows(plan, query, 0, n_slots), f64_view(plan, COSTS)
    least = _least_own_work(plan, query, rows, eligible)
    # Recorded: the candidates that a decision keeps may lack the rank with the least work.
    plan[LEAST_WORK] = I(least)
    if least == max(1.0, query.isl_tokens):
        return  # no rank has anything to copy
    for slot in range(n_slots):
        if _is_full(rows, query, slot, held_blocks(columns, slot)):
            copy = query.copy_price * max(0.0, _own_work_at(rows, query, slot) - least)
            pace = _pace_factor(rows.speed[slot], query.usual_speed)
            factor = factors[slot] if factors.shape[0] != 0 else 1.0
            costs[slot] = _add_copy(costs[slot], copy, pace, factor, rows.weight[slot])


@compiled(error_model="numpy")
def place_by_work(plan, path, sequence, eligible, factors):
    """Place a prompt in the three steps of `placement_kernels`."""
    match_prompt(plan, path, sequence)
    load = i64_view(plan, LOAD)
    # Estimating progress costs time, and without reports the estimate is not used.
    if are_ends_reported(load):
        update_progress(i64_view(plan, INDEX), load, plan[BLOCK_SIZE])
    query = make_work_query(plan)
    _fill_costs(plan, query, eligible.shape[0], factors)
    if query.copy_price > 0.0:
        _add_copy_prices(plan, query, eligible, factors)
    chosen = choose_slot(plan, eligible)
    if chosen != NO_SLOT:
        slot = slot_at(slice_rows(plan, query, chosen, chosen + 1), query, 0, True, True)
        prices = slot_prices(slot, query)
        write_token_summary(plan, max(0.0, query.isl_tokens - prices[0]), prices[1])
    return chosen


_address_of_place = function_address(PLACE_SIGNATURE, place_by_work)


@compiled("int64()")
def address_of_place():
    """Return the address of `place_by_work`, for PLACE_ADDRESS."""
    return _address_of_place()


@compiled(TERMS_SIGNATURE, error_model="numpy")
def fill_terms(plan, eligible, factors, out):
    """Write the cost terms of the last placement, see `reference_kernels.fill_terms`."""
    query, load = make_work_query(plan), i64_view(plan, LOAD)
    rows = slice_rows(plan, query, 0, out.shape[1])
    booked, left = i64_view(load, WORK_BOOKED), i64_view(load, WORK_LEFT)
    columns, least = held_columns(plan), max(1.0, query.isl_tokens)
    if query.copy_price > 0.0:
        for slot in range(out.shape[1]):
            if eligible[slot]:
                least = min(least, _own_work_at(rows, query, slot))
    for slot in range(out.shape[1]):
        slot_state = slot_at(rows, query, slot, True, True)
        prices = slot_prices(slot_state, query)
        cached, own, live = prices[0], prices[1], prices[2]
        out[CACHED_TOKENS, slot] = cached
        out[EFFECTIVE_PREFILL_TOKENS, slot] = max(0.0, query.isl_tokens - cached)
        out[DECODE, slot] = live
        factor = factors[slot] if factors.shape[0] != 0 else 1.0
        weight = rows.weight[slot]
        cost = _weighted_cost(prices, slot_state.pace, factor, weight, query.block_size)
        is_full = _is_full(rows, query, slot, held_blocks(columns, slot))
        copy = query.copy_price * max(0.0, own - least) if is_full else 0.0
        out[COST, slot] = _add_copy(cost, copy, slot_state.pace, factor, weight)
        out[COPY_PRICE, slot] = copy
        out[OWN_WORK, slot] = own
        out[BOOKED_WORK, slot] = booked[slot]
        out[PROGRESS, slot] = booked[slot] - left[slot]
        for price in range(LEFT_PRICE, COPY_PRICE):
            out[price, slot] = prices[3 + price - LEFT_PRICE]
