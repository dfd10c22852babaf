"""Kernels of the work policies: placing by the prices of `work_price_kernels`."""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would prove nothing.

from indexer.index.header_kernels import I, U, f64_part, f64_view, i64_view, lowest_bit, u64_view
from indexer.jit.decorators import compiled
from indexer.jit.function_pointers import function_address
from select_service.core.load.compiled.load_layout import WORK_BOOKED, WORK_LEFT
from select_service.core.load.compiled.progress_kernels import update_progress
from select_service.core.placement.assumption_kernels import held_blocks, held_columns
from select_service.core.placement.placement_kernels import (
    CACHED_TOKENS,
    COST,
    DECODE,
    EFFECTIVE_PREFILL_TOKENS,
    NO_SLOT,
    PLACE_SIGNATURE,
    TERMS_SIGNATURE,
    choose_slot,
    find_run_end,
    has_inside_rows,
    match_prompt,
    write_token_summary,
)
from select_service.core.placement.plan_layout import (
    BLOCK_SIZE,
    COSTS,
    HOLDING,
    INDEX,
    LEAST_WORK,
    LOAD,
    OWN_WORKS,
    RUNNING,
    SHARED,
)
from select_service.core.placement.policies.work_price_kernels import (
    BOOKED_WORK,
    COPY_PRICE,
    LEFT_PRICE,
    OWN_WORK,
    PROGRESS,
    are_ends_reported,
    is_full,
    make_work_query,
    pace_factor,
    slice_rows,
    slot_at,
    slot_prices,
    weigh_copy,
    weighted_cost,
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
        costs[at] = weighted_cost(prices, slot.pace, factor, weight, query.block_size)


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
def _own_work_at(rows, query, at):
    return slot_prices(slot_at(rows, query, at, True, True), query)[1]


@compiled(error_model="numpy")
def _fill_own_works(plan, rows, query, eligible):
    """Fill OWN_WORKS of all slots; return the least own work of the eligible slots."""
    n_slots, own_works, whole = eligible.shape[0], f64_view(plan, OWN_WORKS), query.isl_tokens
    holding, running = u64_view(plan, HOLDING), u64_view(plan, RUNNING)
    least = whole = max(1.0, whole)
    own_works[:n_slots] = whole
    has_credit = plan[SHARED + 1] != 0  # perhaps of every slot
    for word in range((n_slots + 63) >> 6):
        rest = ~U(0) if has_credit else holding[word] | running[word]
        while rest:
            slot = word * 64 + I(lowest_bit(rest))
            rest &= rest - U(1)
            if slot < n_slots:
                own_works[slot] = _own_work_at(rows, query, slot)
                least = min(least, own_works[slot] if eligible[slot] else whole)
    return least


@compiled(error_model="numpy")
def _fill_copies(plan, rows, query, n_slots, least):
    """Turn OWN_WORKS into the prices of copies: 0 where the cache is not full."""
    own_works, columns = f64_view(plan, OWN_WORKS), held_columns(plan)
    for slot in range(n_slots):
        copy = query.copy_price * max(0.0, own_works[slot] - least)
        evicts = is_full(rows, query, slot, held_blocks(columns, slot))
        own_works[slot] = copy if evicts else 0.0


@compiled(error_model="numpy")
def _add_copy_prices(plan, query, eligible, factors):
    """Add the prices of copies to the costs, in loops that the compiler can vectorize."""
    n_slots = eligible.shape[0]
    rows = slice_rows(plan, query, 0, n_slots)
    least = _fill_own_works(plan, rows, query, eligible)
    # Recorded: the candidates that a decision keeps may lack the rank with the least work.
    plan[LEAST_WORK] = I(least)
    if least == max(1.0, query.isl_tokens):
        return  # no rank has anything to copy
    _fill_copies(plan, rows, query, n_slots, least)
    copies, costs = f64_view(plan, OWN_WORKS), f64_view(plan, COSTS)
    if factors.shape[0] == 0 and query.usual_speed == 0.0:
        for slot in range(n_slots):
            costs[slot] += weigh_copy(copies[slot], 1.0, 1.0, rows.weight[slot])
        return
    for slot in range(n_slots):
        pace = pace_factor(rows.speed[slot], query.usual_speed)
        factor = factors[slot] if factors.shape[0] != 0 else 1.0
        costs[slot] += weigh_copy(copies[slot], pace, factor, rows.weight[slot])


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
        cost = weighted_cost(prices, slot_state.pace, factor, weight, query.block_size)
        evicts = is_full(rows, query, slot, held_blocks(columns, slot))
        copy = query.copy_price * max(0.0, own - least) if evicts else 0.0
        out[COST, slot] = cost + weigh_copy(copy, slot_state.pace, factor, weight)
        out[COPY_PRICE, slot] = copy
        out[OWN_WORK, slot] = own
        out[BOOKED_WORK, slot] = booked[slot]
        out[PROGRESS, slot] = booked[slot] - left[slot]
        for price in range(LEFT_PRICE, COPY_PRICE):
            out[price, slot] = prices[3 + price - LEFT_PRICE]
