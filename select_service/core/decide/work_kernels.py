"""The policies of work: what a prompt costs on each rank, in tokens of prefill.

B is the block size, isl the length of the prompt, both in tokens:

    cached     = round((D + host_weight*H + disk_weight*K) * B)          as in `reference_kernels`
    u          = max(1, isl - max(cached, B * leading run))          own work of the prompt there
    P          = sum of u of the unfinished prefills of the rank
    left       = P, less what is known to be done of the oldest          see `progress_kernels`
    R          = live requests of the rank
    live       = B * (A + N)         tokens that would be active there;  A, N: `reference_kernels`
    J          = left_price * left + u
               + min(R * request_share, share_max) * min(u, own_work_max)
               + request_price * R
               + live_price * live
               + memory_price * max(0, live - full * B * blocks of its KV cache)
               + outside_price * u / (u + OUTSIDE_HALF)     if it is of another replica's share
    speed      = its declared prefill speed / the median of the declared ones; 1: not declared
    cost       = J / speed, times the factor of its taints, then (cost + B) / weight - B

The term of memory is 0 for ranks whose `total_kv_blocks` nobody declared.  Where callers do not
report the ends of prefills (REPORTED of the load is below REPORTED_MIN), P says little: it costs
UNREPORTED_PRICE a token, nothing is taken off, and the share of own work is 0.
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
    INDEX,
    LEADING,
    LOAD,
    MATCHED,
    N_COMMON_PARAMETERS,
    PARAMETERS,
    RANKS,
)
from select_service.core.decide.weight_kernels import weighed
from select_service.core.load.bits_kernels import float_of
from select_service.core.load.kernels import active_blocks_of
from select_service.core.load.load_layout import (
    BOOKED,
    FRACTIONAL_BLOCKS,
    FRACTIONS,
    LEFT,
    N_TOTALS,
    REPORTED,
    REQUESTS,
    TOTALS,
    WHOLE_BLOCKS,
)
from select_service.core.load.progress_kernels import look_at_progress
from select_service.core.workers.rank_layout import (
    KV_BLOCKS,
    OUTSIDE,
    SPEED,
    USUAL_SPEED,
    WEIGHT,
)

# Rows of the terms float64[N_TERMS, n_slots] behind the common ones: tokens, then prices.
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
) = range(N_COMMON_TERMS, N_COMMON_TERMS + 9)
N_TERMS = N_COMMON_TERMS + 9

# Entries of the parameters behind the common ones.
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
) = range(N_COMMON_PARAMETERS, N_COMMON_PARAMETERS + 12)
N_PARAMETERS = N_COMMON_PARAMETERS + 12

REPORTED_MIN = 0.5
UNREPORTED_PRICE = 0.3
OUTSIDE_HALF = 2048.0
"""Tokens of own work that cost half of the price of ranks outside the share."""


class Query(NamedTuple):
    """What of a prompt and of the policy is the same for all slots.

    left_at: the pair of the load that says what is left
    usual_speed: in tokens per second, of a rank whose cost is J; 0: that of all
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
    usual_speed: float
    host_weight: float
    disk_weight: float
    tracks_active: bool
    block_size: float
    isl_tokens: float
    n_blocks: float


class Slot(NamedTuple):
    """What is known of a slot.  device, cpu, external: matched blocks, cumulative

    outside: 1: of another replica's share, else 0
    pace: what J is multiplied by, because it is slower or faster than the usual rank
    """

    left: float
    requests: float
    active_blocks: float
    kv_blocks: float
    outside: float
    pace: float
    device: float
    cpu: float
    external: float
    leading: float


class Rows(NamedTuple):
    """What is known of the slots of a range, as arrays."""

    left: np.ndarray
    totals: np.ndarray
    fractions: np.ndarray
    matched: np.ndarray
    leading: np.ndarray
    kv_blocks: np.ndarray
    weight: np.ndarray
    outside: np.ndarray
    speed: np.ndarray


@compiled()
def _are_reported(load):
    return float_of(load[REPORTED]) >= REPORTED_MIN


@compiled()
def _query(plan, isl_tokens, n_blocks):
    parameters = f64_view(plan, PARAMETERS)
    left_at, left_price, share_max = LEFT, parameters[P_LEFT], parameters[P_SHARE_MAX]
    if not _are_reported(i64_view(plan, LOAD)):
        left_at, left_price, share_max = BOOKED, min(left_price, UNREPORTED_PRICE), 0.0
    return Query(
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
        usual_speed=float_of(i64_view(plan, RANKS)[USUAL_SPEED]),
        host_weight=parameters[P_HOST],
        disk_weight=parameters[P_DISK],
        tracks_active=parameters[P_TRACK_ACTIVE] != 0.0,
        block_size=float(plan[BLOCK_SIZE]),
        isl_tokens=isl_tokens,
        n_blocks=n_blocks,
    )


@compiled(error_model="numpy")
def prices_of(slot, query):
    """(cached tokens, own work, live blocks, and the prices: of what is left, of the share of own
    work, of requests, of what is live, of memory, of other shares) of a slot.
    """
    lower = query.host_weight * (slot.cpu - slot.device)
    lower += query.disk_weight * (slot.external - slot.cpu)
    cached = np.floor((slot.device + lower) * query.block_size + 0.5)
    own = own_work_of(query.isl_tokens, cached, slot.leading * query.block_size)
    share = min(slot.requests * query.request_share, query.share_max)
    live = slot.active_blocks + query.n_blocks - slot.leading if query.tracks_active else 0.0
    over = max(0.0, live - query.full * slot.kv_blocks)
    return (
        cached,
        own,
        live,
        query.left_price * slot.left,
        share * min(own, query.own_work_max),
        query.request_price * slot.requests,
        query.live_price * (query.block_size * live),
        query.memory_price * (query.block_size * over),
        query.outside_price * slot.outside * (own / (own + OUTSIDE_HALF)),
    )


@compiled(error_model="numpy")
def _cost(prices, pace, factor, weight, block_size):
    """Never NaN."""
    _, own, _, left, share, requests, live, memory, outside = prices
    cost = (left + own + share + requests + live + memory + outside) * pace * factor
    return weighed(cost, weight, block_size)


@compiled()
def _rows(plan, query, first, end):
    """Of the slots from `first` to `end`."""
    load, ranks = i64_view(plan, LOAD), i64_view(plan, RANKS)
    return Rows(
        i64_view(load, query.left_at)[first:end],
        i64_view(load, TOTALS)[first * N_TOTALS : end * N_TOTALS],
        f64_view(load, FRACTIONS)[first:end],
        i32_view(plan, MATCHED)[first * N_TIERS : end * N_TIERS],
        i64_view(plan, LEADING)[first:end],
        f64_view(ranks, KV_BLOCKS)[first:end],
        f64_view(ranks, WEIGHT)[first:end],
        f64_view(ranks, OUTSIDE)[first:end],
        f64_view(ranks, SPEED)[first:end],
    )


@compiled(error_model="numpy")
def _pace(speed, usual_speed):
    """speed: 0: it is not declared"""
    return usual_speed / speed if usual_speed > 0.0 and speed > 0.0 else 1.0


@compiled()
def _slot_at(rows, query, at, found):
    """found: may it have anything of the prompt?"""
    row, left, kv_blocks = at * N_TOTALS, float(rows.left[at]), rows.kv_blocks[at]
    outside, pace = rows.outside[at], _pace(rows.speed[at], query.usual_speed)
    requests = float(rows.totals[row + REQUESTS])
    blocks = active_blocks_of(
        rows.totals[row + WHOLE_BLOCKS],
        rows.totals[row + FRACTIONAL_BLOCKS],
        rows.fractions[at],
    )
    if not found:
        return Slot(left, requests, blocks, kv_blocks, outside, pace, 0.0, 0.0, 0.0, 0.0)
    tiers, leading = at * N_TIERS, float(rows.leading[at])
    device, cpu = float(rows.matched[tiers]), float(rows.matched[tiers + 1])
    external = float(rows.matched[tiers + 3])
    return Slot(left, requests, blocks, kv_blocks, outside, pace, device, cpu, external, leading)


@compiled(error_model="numpy", forceinline=True)
def _costs_between(plan, query, factors, first, end, found):
    """Costs of the slots from `first` to `end`.  Inlined, and so optimized for its `found`."""
    rows, costs = _rows(plan, query, first, end), f64_view(plan, COSTS)[first:end]
    own = factors[first:end]
    for at in range(end - first):
        slot = _slot_at(rows, query, at, found)
        factor = own[at] if own.shape[0] != 0 else 1.0
        prices, weight = prices_of(slot, query), rows.weight[at]
        costs[at] = _cost(prices, slot.pace, factor, weight, query.block_size)


@compiled(error_model="numpy")
def _fill_costs(plan, query, n_slots, factors):
    """Most slots have nothing of a prompt: theirs cost less to compute."""
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
    load = i64_view(plan, LOAD)
    if _are_reported(load):
        look_at_progress(i64_view(plan, INDEX), load, plan[BLOCK_SIZE])
    query = _query(plan, isl_tokens, float(sequence.shape[0]))
    _fill_costs(plan, query, eligible.shape[0], factors)
    chosen = choose(plan, eligible, draw)
    if chosen != NOBODY:
        slot = _slot_at(_rows(plan, query, chosen, chosen + 1), query, 0, True)
        prices = prices_of(slot, query)
        summarise_tokens(plan, max(0.0, isl_tokens - prices[0]), prices[1])
    return chosen


_address_of_place = address_of(PLACE, place)


@compiled("int64()")
def address_of_place():
    """For PLACE_AT."""
    return _address_of_place()


@compiled(TERMS, error_model="numpy")
def fill_terms(plan, eligible, factors, isl_tokens, n_blocks, pinned, out):
    """See `reference_kernels.fill_terms`."""
    query, load = _query(plan, isl_tokens, n_blocks), i64_view(plan, LOAD)
    rows = _rows(plan, query, 0, out.shape[1])
    booked, left = i64_view(load, BOOKED), i64_view(load, LEFT)
    for slot in range(out.shape[1]):
        known = _slot_at(rows, query, slot, True)
        prices = prices_of(known, query)
        cached, own, live = prices[0], prices[1], prices[2]
        out[CACHED_TOKENS, slot] = cached
        out[EFFECTIVE_PREFILL_TOKENS, slot] = max(0.0, isl_tokens - cached)
        out[DECODE, slot] = live
        factor = factors[slot] if factors.shape[0] != 0 else 1.0
        weight = rows.weight[slot]
        out[COST, slot] = _cost(prices, known.pace, factor, weight, query.block_size)
        out[OWN_WORK, slot] = own
        out[BOOKED_WORK, slot] = booked[slot]
        out[PROGRESS, slot] = booked[slot] - left[slot]
        for price in range(LEFT_PRICE, N_TERMS):
            out[price, slot] = prices[3 + price - LEFT_PRICE]
