"""Prices of the work policies: the cost of a prompt on a rank, in tokens of prefill.

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
               + outside_price * u / (u + OUTSIDE_HALF)     on a rank of another replica's share
               + copy_price * (u - least u)                 if its cache is full
    speed      = declared prefill speed / the median of declared speeds; 1 when undeclared
    cost       = J / speed, times the factor of its taints, then (cost + B) / weight - B

A cache is full when the blocks of all its groups, R and left / B reach FILLED_SHARE of it; the
least u is that of all eligible ranks.  Both terms of the cache are 0 for ranks without a declared
`total_kv_blocks`.  When callers do not report the ends of prefills (REPORTED_SHARE of the load is
below REPORTED_MIN), P is unreliable: P then costs UNREPORTED_PRICE a token, no progress is
subtracted, and the share of own work is 0.
"""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would prove nothing.

from typing import NamedTuple

import numpy as np

from indexer.index.header_kernels import N_TIERS, f64_part, f64_view, i32_part, i64_part, i64_view
from indexer.jit.decorators import compiled
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
from select_service.core.placement.placement_kernels import (
    N_COMMON_TERMS,
    blocks_inside,
    inside_rows,
    own_work_tokens,
)
from select_service.core.placement.plan_layout import (
    BLOCK_SIZE,
    LEADING,
    LOAD,
    MATCHED,
    N_COMMON_PARAMETERS,
    PARAMETERS,
    RANKS,
    REQUEST_BLOCKS,
    REQUEST_ISL_TOKENS,
    SHARED,
)
from select_service.core.placement.policies.weight_kernels import apply_weight
from select_service.core.placement.shared_credit_kernels import shared_credit
from select_service.core.shared_caches.shared_layout import SHARED_FIELDS
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
"""Neutral number of a sum: the compiler drops the addition, but must not with +0.0."""
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
    """Numbers of a slot.

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
def weighted_cost(prices, pace, factor, weight, block_size):
    """Return the cost of a slot, never NaN."""
    _, own, _, left, share, requests, live, memory, outside = prices
    cost = (left + own + share + requests + live + memory + outside) * pace * factor
    return apply_weight(cost, weight, block_size)


@compiled(error_model="numpy", forceinline=True)
def weigh_copy(copy, pace, factor, weight):
    """Return the part of the price of a copy in the cost of a slot, never NaN."""
    # The weight divides a copy as it divides the other terms, see `apply_weight`.
    found = copy * pace * factor / weight
    return found if copy > 0.0 else 0.0


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
        f64_part(plan, SHARED, SHARED_FIELDS * first, SHARED_FIELDS * end),
    )


@compiled(error_model="numpy")
def pace_factor(speed, usual_speed):
    """Return the factor of J by the declared speed; 1 when undeclared (0)."""
    return usual_speed / speed if usual_speed > 0.0 and speed > 0.0 else 1.0


@compiled()
def slot_at(rows, query, at, has_blocks, has_more):
    """Return the numbers of a slot.

    has_blocks: False when the slot certainly has no block of the prompt
    has_more: False when certainly no slot has tokens inside a block, nor in a shared cache
    """
    row, left, kv_blocks = at * N_TOTALS, float(rows.work_left[at]), rows.kv_blocks[at]
    outside, pace = rows.outside[at], pace_factor(rows.speed[at], query.usual_speed)
    requests = float(rows.totals[row + REQUESTS])
    blocks = active_blocks_of(
        rows.totals[row + WHOLE_BLOCKS],
        rows.totals[row + FRACTIONAL_BLOCKS],
        rows.fractions[at],
    )
    credit = NO_CREDIT
    if not has_blocks:
        if has_more:
            credit = shared_credit(rows.shared, at)
        return WorkSlot(
            left, requests, blocks, kv_blocks, outside, pace, 0.0, 0.0, 0.0, 0.0, credit
        )
    tiers, leading = at * N_TIERS, float(rows.leading[at])
    device, cpu = float(rows.matched[tiers]), float(rows.matched[tiers + 1])
    external = float(rows.matched[tiers + 3])
    if has_more:
        credit = shared_credit(rows.shared, at)
        more = blocks_inside(rows.inside, at, query.block_size)
        device, cpu, external = device + more, cpu + more, external + more
    return WorkSlot(
        left, requests, blocks, kv_blocks, outside, pace, device, cpu, external, leading, credit
    )


@compiled(error_model="numpy", forceinline=True)
def is_full(rows, query, at, held):
    """Return whether the cache of a slot is full.

    held: blocks of the slot, without those that live requests fill at the moment
    """
    # Each live request fills a block that no event has announced yet.
    requests = float(rows.totals[at * N_TOTALS + REQUESTS])
    tokens = query.block_size * (held + requests) + float(rows.work_left[at])
    return tokens >= FILLED_SHARE * (query.block_size * rows.kv_blocks[at])
