"""Naive twin of the reference policy: the formulas of the specification, one rank at a time.

The operations follow the order of the compiled kernel, so that both agree to the last bit.
"""

import math
from dataclasses import dataclass


def round_half_away(x: float) -> int:
    return math.floor(x + 0.5)


@dataclass(frozen=True)
class RankState:
    device: int
    host: int
    disk: int
    prefill_tokens: int
    active_blocks: int
    leading_run: int
    requests: int = 0


@dataclass(frozen=True)
class Query:
    isl_tokens: int
    n_blocks: int
    block_size: int
    lowest_prefill_tokens: int
    pinned: bool = False


def cached_tokens(rank, query, config):
    return round_half_away((rank.device + lower_tiers(rank, config)) * query.block_size)


def lower_tiers(rank, config):
    return config.host_cache_hit_weight * rank.host + config.disk_cache_hit_weight * rank.disk


def effective_prefill_tokens(rank, query, config):
    return max(0, query.isl_tokens - cached_tokens(rank, query, config))


def weighted_cost(cost, weight, unit=1.0):
    """Return the cost of a rank adjusted by its weight.

    unit: cost of one block
    """
    if weight == 1.0:
        return cost
    return (cost + unit) / weight - unit if weight else math.inf


def cost(rank, query, config):
    size = query.block_size
    cached = cached_tokens(rank, query, config)
    raw = 0.0
    if config.track_prefill_tokens:
        raw = (rank.prefill_tokens + max(0, query.isl_tokens - cached) + cached) / size
    decay = 1.0
    if config.track_prefill_tokens and not query.pinned and query.isl_tokens > 0:
        excess = (rank.prefill_tokens - query.lowest_prefill_tokens) / size
        x = max(0.0, excess / math.ceil(query.isl_tokens / size))  # others may have less
        decay = 1.0 / (1.0 + config.overlap_score_credit_decay * x)
    credit = config.overlap_score_credit * decay * rank.device + lower_tiers(rank, config)
    prefill = config.prefill_load_scale * max(0.0, raw - credit)
    decode = 0.0
    if config.track_active_blocks:
        decode = rank.active_blocks + query.n_blocks - rank.leading_run
    return prefill + decode + config.decode_active_request_weight * rank.requests
