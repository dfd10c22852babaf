"""Choice of a prefill rank and a decode rank together, or of a single rank, in one pass.

All costs are tokens of prefill work; `work_price_kernels` has cached, u, left, R and live.  p is a
rank that may prefill for others, d a rank that may decode:

    hold(d)    = REQUEST_PRICE * R + LIVE_PRICE * live + max(0, live - FULL_SHARE * cache)
    local(d)   = left + u + min(R / SHARE_STEP, SHARE_MAX) * min(u, OWN_WORK_MAX) + hold(d)
    move(p, d) = price(p, d) * ((isl - cached_d) + BACKLOG_PRICE * max(leaving(p), entering(d)))
    pair(p, d) = left_p + u_p + move(p, d) + hold(d)

The credit for tokens in a shared cache lowers u, and no move: the cache fills the rank of the
prefill only.

The choice is the smallest of all local(d) of ranks that may do both and all pair(p, d); equal costs
are drawn.  `price` depends only on the link groups of p and d (`pair_layout`), so the best rank of
each group stands for all, or the second best for a rank that would move blocks to itself, and all
decode ranks of a group that hold nothing of the prompt need the same prefill.  Groups are examined
in the order of their best ranks, until no other can be cheaper: O(slots + groups * log(groups)) for
groups of similar links, at most O(slots * groups), with the result of the full matrix.
Declared speeds and weights of ranks count as in `work_price_kernels`.
"""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would prove nothing.

import numpy as np

from indexer.index.header_kernels import HASHES, HEADER, MUTEX, I, U, f64_view, i64_view
from indexer.jit.decorators import compiled
from indexer.jit.function_pointers import export_function
from indexer.jit.mutex_kernels import lock_mutex, unlock_mutex
from select_service.core.load.compiled.progress_kernels import update_progress
from select_service.core.pairs.pair_layout import (
    BACKLOG_PRICE,
    BEST,
    BEST_SLOT,
    CHOOSE_ADDRESS,
    ENTERING,
    FULL_SHARE,
    GROUP,
    HOST,
    LEAST_PRICE,
    LEAVING,
    LIVE_PRICE,
    NEXT,
    NO_HOST,
    ORDER,
    OWN_WORK_MAX,
    PRICE,
    R_CREDIT,
    R_DECODE,
    R_DECODE_CACHED,
    R_DECODE_WORK,
    R_HOLD_COST,
    R_LOCAL_COST,
    R_LOCAL_SLOT,
    R_MOVE_COST,
    R_MOVE_TOKENS,
    R_PREFILL,
    R_PREFILL_CACHED,
    R_PREFILL_LEFT,
    R_PREFILL_WORK,
    R_REMOTE_COST,
    R_REMOTE_DECODE,
    R_REMOTE_PREFILL,
    REACHED,
    REACHED_BY,
    REQUEST_PRICE,
    RESULT,
    RUN_END,
    SHARE_MAX,
    SHARE_STEP,
)
from select_service.core.placement.placement_kernels import match_prompt
from select_service.core.placement.plan_layout import BLOCK_SIZE, INDEX, LOAD, REQUEST_DRAW
from select_service.core.placement.policies.weight_kernels import apply_weight
from select_service.core.placement.policies.work_price_kernels import (
    are_ends_reported,
    make_work_query,
    slice_rows,
    slot_at,
    slot_prices,
)

NO_SLOT = -1
MASKS = "boolean[:, ::1]"
FOR_PREFILL, FOR_DECODE, FOR_BOTH = range(3)
"""Rows of the masks: ranks that may prefill for others, decode for others, or do both alone."""


@compiled()
def _tie_key(draw, slot):
    """Return a random number of a slot, equal for equal draws."""
    key = (U(draw) ^ U(slot)) * U(0x9E3779B97F4A7C15)
    key = (key ^ (key >> U(32))) * U(0xD6E8FEB86659FD93)
    return key ^ (key >> U(32))


@compiled()
def _precedes(cost, slot, best, best_slot, draw):
    """Return whether a slot of this cost is chosen over the best so far."""
    if cost != best:
        return cost < best
    return best_slot == NO_SLOT or _tie_key(draw, slot) < _tie_key(draw, best_slot)


@compiled()
def _held_tokens(slot, prices):
    """Return the prompt tokens that a rank holds itself, without those of a shared cache."""
    return prices[0] - slot.credit


@compiled(error_model="numpy")
def _prefill_cost(slot, prices, weight, block_size):
    """Return left + u of a rank, by speed and weight."""
    return apply_weight((prices[3] + prices[1]) * slot.pace, weight, block_size)


@compiled(error_model="numpy")
def _hold_cost(slot, prices, weight, block_size):
    """Return the price of the request's decoding on a rank."""
    live = block_size * prices[2]
    over = max(0.0, live - FULL_SHARE * (block_size * slot.kv_blocks))
    return apply_weight(
        REQUEST_PRICE * slot.requests + LIVE_PRICE * live + over, weight, block_size
    )


@compiled(error_model="numpy")
def _local_cost(slot, prices, weight, block_size):
    """Return the price of both parts on a single rank, without the hold."""
    share = min(slot.requests / SHARE_STEP, SHARE_MAX) * min(prices[1], OWN_WORK_MAX)
    return apply_weight((prices[3] + prices[1] + share) * slot.pace, weight, block_size)


@compiled()
def _find_best_prefills(query, rows, pair, eligible, draw):
    """Fill BEST and BEST_SLOT: the two cheapest ranks of each link group for a prefill."""
    best, best_slot = f64_view(pair, BEST), i64_view(pair, BEST_SLOT)
    best[:], best_slot[:] = np.inf, NO_SLOT
    group = i64_view(pair, GROUP)
    for at in range(eligible.shape[0]):
        if eligible[at]:
            slot = slot_at(rows, query, at, True, True)
            prices = slot_prices(slot, query)
            cost = _prefill_cost(slot, prices, rows.weight[at], query.block_size)
            # The second best serves a decode rank that is itself the best.
            first = 2 * group[at]
            second = first + 1
            if _precedes(cost, at, best[first], best_slot[first], draw):
                best[second], best_slot[second] = best[first], best_slot[first]
                best[first], best_slot[first] = cost, at
            elif _precedes(cost, at, best[second], best_slot[second], draw):
                best[second], best_slot[second] = cost, at


@compiled(error_model="numpy")
def move_tokens_between(pair, group_p, group_d, missing):
    """Return the tokens that a transfer costs, including the tokens that wait for the link.

    The links of unknown hosts have no queue here.

    missing: tokens of the prompt that the decode rank does not hold
    """
    host = i64_view(pair, HOST)
    out, into, waiting = host[group_p], host[group_d], 0.0
    if out != into:
        if out != NO_HOST:
            waiting = f64_view(pair, LEAVING)[out]
        if into != NO_HOST:
            waiting = max(waiting, f64_view(pair, ENTERING)[into])
    return missing + BACKLOG_PRICE * waiting


@compiled()
def _is_before(pair, of, other, draw):
    """Return whether the best prefill of a group precedes that of another group."""
    best, best_slot = f64_view(pair, BEST), i64_view(pair, BEST_SLOT)
    return _precedes(best[2 * of], best_slot[2 * of], best[2 * other], best_slot[2 * other], draw)


@compiled()
def _sort_groups(pair, draw):
    """Fill ORDER and RUN_END; returns the number of groups with a prefill rank.

    Shell's method needs no scratch, and few steps for few groups.
    """
    order, best_slot = i64_view(pair, ORDER), i64_view(pair, BEST_SLOT)
    n = I(0)
    for of in range(order.shape[0]):
        if best_slot[2 * of] != NO_SLOT:
            order[n] = of
            n += 1
    gap = I(1)
    while gap < n // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for k in range(gap, n):
            of, at = order[k], I(k)
            while at >= gap and _is_before(pair, of, order[at - gap], draw):
                order[at] = order[at - gap]
                at -= gap
            order[at] = of
        gap //= 3
    best, run_end, end = f64_view(pair, BEST), i64_view(pair, RUN_END), n
    # From the end, since a run ends where the cost of the next group differs.
    for k in range(n - 1, -1, -1):
        if k + 1 < n and best[2 * order[k]] != best[2 * order[k + 1]]:
            end = I(k + 1)
        run_end[k] = end
    return n


@compiled(error_model="numpy")
def _add_group(pair, of, decode, missing, found, draw):
    """Return the cheaper of the prefill `found` and the best prefill of a group.

    decode: (slot, link group) of the decode rank, as in `_cheapest_prefill`
    """
    best, best_slot = f64_view(pair, BEST), i64_view(pair, BEST_SLOT)
    at, into = decode
    each = f64_view(pair, PRICE)[of * (best.shape[0] // 2) + into]
    # A rank moves no blocks to itself: the second best of the group counts then.
    first = 2 * of + (best_slot[2 * of] == at)
    if best_slot[first] == NO_SLOT or each == np.inf:
        return found
    cost = best[first] + each * move_tokens_between(pair, of, into, missing)
    return (cost, best_slot[first]) if _precedes(cost, best_slot[first], *found, draw) else found


@compiled(error_model="numpy")
def _cheapest_prefill(pair, decode, missing, n_sorted, draw):
    """Return (smallest cost of a prefill with the move of its blocks, slot) for a decode rank.

    The groups of the decode rank's host come first, then all in order, up to the first that cannot
    be cheaper: from other hosts a token costs at least LEAST_PRICE.  A whole run of equal groups is
    skipped if the first group of the run can at most be as cheap and loses the draw.

    decode: (slot, link group); excluded as prefill rank, since that is the local choice
    """
    into, found = decode[1], (np.inf, I(NO_SLOT))
    best, best_slot = f64_view(pair, BEST), i64_view(pair, BEST_SLOT)
    order, run_end, next_of = i64_view(pair, ORDER), i64_view(pair, RUN_END), i64_view(pair, NEXT)
    of = into
    while True:
        found = _add_group(pair, of, decode, missing, found, draw)
        of = next_of[of]
        if of == into:
            break
    each, k = f64_view(pair, LEAST_PRICE)[into], I(0)
    # No other host may send blocks to this group.
    if each == np.inf:
        return found
    while k < n_sorted:
        of = order[k]
        # The true price and the queue of the link can only raise the cost.
        bound = best[2 * of] + each * missing
        if bound > found[0]:
            break
        if _precedes(bound, best_slot[2 * of], *found, draw):
            found = _add_group(pair, of, decode, missing, found, draw)
            k += 1
        else:
            k = run_end[k]
    return found


@compiled(error_model="numpy")
def _reach_group(pair, into, isl_tokens, n_sorted, draw):
    """Return `_cheapest_prefill` for any rank of a link group that holds nothing of the prompt."""
    reached, reached_by = f64_view(pair, REACHED), i64_view(pair, REACHED_BY)
    if np.isnan(reached[into]):
        # No slot has this number, so no rank is excluded.
        reached[into], reached_by[into] = _cheapest_prefill(
            pair, (I(NO_SLOT - 1), into), isl_tokens, n_sorted, draw
        )
    return reached[into], reached_by[into]


@compiled(error_model="numpy")
def _compare_pairs(pair, result, at, reach, hold, draw):
    """Compare the best pair so far with the best pair of a decode rank.

    reach: (cost, slot) of `_cheapest_prefill`
    """
    least, by = reach
    if by == NO_SLOT:
        return
    if _precedes(least + hold, at, result[R_REMOTE_COST], I(result[R_REMOTE_DECODE]), draw):
        result[R_REMOTE_COST] = least + hold
        result[R_REMOTE_PREFILL], result[R_REMOTE_DECODE] = by, at


@compiled(error_model="numpy")
def _choose(query, rows, pair, masks, draw):
    """Fill the best local and the best remote choice."""
    n_sorted = _sort_groups(pair, draw)
    result, group = f64_view(pair, RESULT), i64_view(pair, GROUP)
    f64_view(pair, REACHED)[:] = np.nan
    for at in range(masks.shape[1]):
        if not (masks[FOR_DECODE, at] or masks[FOR_BOTH, at]):
            continue
        slot, weight = slot_at(rows, query, at, True, True), rows.weight[at]
        prices = slot_prices(slot, query)
        hold = _hold_cost(slot, prices, weight, query.block_size)
        if masks[FOR_BOTH, at]:
            cost = _local_cost(slot, prices, weight, query.block_size) + hold
            if _precedes(cost, at, result[R_LOCAL_COST], I(result[R_LOCAL_SLOT]), draw):
                result[R_LOCAL_COST], result[R_LOCAL_SLOT] = cost, at
        if not masks[FOR_DECODE, at]:
            continue
        into = group[at]
        # Ranks of a group that hold nothing and exclude no prefill rank share the result.
        held = _held_tokens(slot, prices)
        if held == 0.0 and not masks[FOR_PREFILL, at]:
            reach = _reach_group(pair, into, query.isl_tokens, n_sorted, draw)
        else:
            missing = max(0.0, query.isl_tokens - held)
            reach = _cheapest_prefill(pair, (I(at), into), missing, n_sorted, draw)
        _compare_pairs(pair, result, at, reach, hold, draw)


@compiled(error_model="numpy")
def _describe_choice(query, rows, pair):
    """Fill the numbers of the choice; a local choice wins a tie, because no blocks move."""
    result = f64_view(pair, RESULT)
    is_local = result[R_LOCAL_SLOT] != NO_SLOT and (
        result[R_REMOTE_DECODE] == NO_SLOT or result[R_LOCAL_COST] <= result[R_REMOTE_COST]
    )
    decode = I(result[R_LOCAL_SLOT] if is_local else result[R_REMOTE_DECODE])
    prefill = I(NO_SLOT) if is_local else I(result[R_REMOTE_PREFILL])
    result[R_PREFILL], result[R_DECODE] = prefill, decode
    if decode == NO_SLOT:
        return
    slot = slot_at(rows, query, decode, True, True)
    prices = slot_prices(slot, query)
    held, result[R_CREDIT] = _held_tokens(slot, prices), slot.credit
    result[R_DECODE_CACHED], result[R_DECODE_WORK] = held, prices[1]
    result[R_HOLD_COST] = _hold_cost(slot, prices, rows.weight[decode], query.block_size)
    if is_local:
        return
    missing = max(0.0, query.isl_tokens - held)
    slot = slot_at(rows, query, prefill, True, True)
    prices = slot_prices(slot, query)
    held, result[R_CREDIT] = _held_tokens(slot, prices), slot.credit
    result[R_PREFILL_CACHED], result[R_PREFILL_WORK] = held, prices[1]
    result[R_PREFILL_LEFT] = prices[3]
    group, n_groups = i64_view(pair, GROUP), f64_view(pair, BEST).shape[0] // 2
    each = f64_view(pair, PRICE)[group[prefill] * n_groups + group[decode]]
    result[R_MOVE_TOKENS] = missing
    result[R_MOVE_COST] = each * move_tokens_between(pair, group[prefill], group[decode], missing)


@compiled(error_model="numpy")
def choose_pair(plan, pair, path, sequence, masks):
    """Fill RESULT for a prompt; arguments as for `place_pair`, with the index locked."""
    match_prompt(plan, path, sequence)
    load = i64_view(plan, LOAD)
    if are_ends_reported(load):
        update_progress(i64_view(plan, INDEX), load, plan[BLOCK_SIZE])
    result = f64_view(pair, RESULT)
    result[:] = 0.0
    for slot in (R_PREFILL, R_DECODE, R_LOCAL_SLOT, R_REMOTE_PREFILL, R_REMOTE_DECODE):
        result[slot] = NO_SLOT
    result[R_LOCAL_COST] = result[R_REMOTE_COST] = np.inf
    query, draw = make_work_query(plan), plan[REQUEST_DRAW]
    rows = slice_rows(plan, query, 0, masks.shape[1])
    _find_best_prefills(query, rows, pair, masks[FOR_PREFILL], draw)
    _choose(query, rows, pair, masks, draw)
    _describe_choice(query, rows, pair)


CHOICE = f"void({HEADER}, {HEADER}, {HASHES}, {HASHES}, {MASKS})"
_address_of_choice, call_choice = export_function(CHOICE, choose_pair)


@compiled(CHOICE)
def place_pair(plan, pair, path, sequence, masks):
    """Fill RESULT for a prompt, under the lock of the index.

    plan: header of a `Placer` with the parameters of the policy `work`
    pair: header of a `PairPlacer` (pair_layout)
    masks: bool[3, n_slots], eligible ranks (FOR_PREFILL, FOR_DECODE, FOR_BOTH)
    """
    # Other kernels call the same code: the address is there from the first choice on.
    pair[CHOOSE_ADDRESS] = _address_of_choice()
    mutex = i64_view(plan, INDEX)[MUTEX]
    thread = lock_mutex(mutex)
    call_choice(pair[CHOOSE_ADDRESS], (plan, pair, path, sequence, masks))
    unlock_mutex(mutex, thread)
