"""Estimate of the request rate that the serving ranks can carry within their SLO."""

from collections.abc import Iterable
from math import ceil
from typing import NamedTuple

DEFAULT_ISL, DEFAULT_OSL = 2048.0, 256.0
SPARES_SHARE, SPARES_FROM = 0.05, 20
"""Recommended share of spare workers, and the smallest number of workers for which spares count."""


class ServiceObjective(NamedTuple):
    """Service level objective of a model: TTFT and ITL in ms, rate in requests/s."""

    ttft_ms: float
    itl_ms: float
    rps: float


class RequestMeanValues(NamedTuple):
    """Mean properties of requests.

    isl, osl: input and output length, tokens
    hit_rate: cached share of the input, 0 to 1
    """

    isl: float = DEFAULT_ISL
    osl: float = DEFAULT_OSL
    hit_rate: float = 0.0


class RankCapacity(NamedTuple):
    """Resources of a rank, rates in tokens/s; None means unknown, and the value is left out."""

    weight: float
    total_blocks: int | None
    block_size: int
    prefill_tokens_per_s: float | None
    decode_tokens_per_s: float | None


class CapacityEstimate(NamedTuple):
    """Sustainable request rate for each resource, in requests/s; 0 means unknown.

    effective_rps: smallest known rate
    ratio: effective_rps divided by the promised rate
    """

    by_cache_rps: float
    by_prefill_rps: float
    by_decode_rps: float
    effective_rps: float
    ratio: float


def estimate_capacity(
    ranks: Iterable[RankCapacity], slo: ServiceObjective, load: RequestMeanValues
) -> CapacityEstimate:
    """Estimate the capacity of ranks.

    The cache limit follows from Little's law: each request occupies its blocks for its residence
    time. O(ranks)
    """
    cached = prefill = decode = 0.0
    for rank in ranks:
        cached += rank.weight * (rank.total_blocks or 0) * rank.block_size
        prefill += rank.weight * (rank.prefill_tokens_per_s or 0.0)
        decode += rank.weight * (rank.decode_tokens_per_s or 0.0)
    residence_s = (slo.ttft_ms + load.osl * slo.itl_ms) / 1000.0
    # On average half of the output is in the cache while a request runs.
    by_cache = _quotient_or_unknown(
        _quotient_or_unknown(cached, load.isl + load.osl / 2.0), residence_s
    )
    # At least one token per request, since a fully cached prompt still runs one step.
    by_prefill = prefill / max(1.0, load.isl * (1.0 - load.hit_rate))
    by_decode = _quotient_or_unknown(decode, load.osl)
    effective = min((x for x in (by_cache, by_prefill, by_decode) if x > 0.0), default=0.0)
    return CapacityEstimate(
        by_cache, by_prefill, by_decode, effective, _quotient_or_unknown(effective, slo.rps)
    )


def _quotient_or_unknown(total: float, each: float) -> float:
    """Return the quotient, or 0 (unknown) if the divisor is not positive."""
    return total / each if each > 0.0 else 0.0


class SpareRules(NamedTuple):
    """Recommended share of spare workers, and the smallest fleet with spares, in workers."""

    share: float = SPARES_SHARE
    least_workers: int = SPARES_FROM


def recommended_spares(workers: int, rules: SpareRules | None = None) -> int:
    """Return the recommended number of spare workers; 0 for small fleets."""
    share, least = rules or SpareRules()
    return ceil(share * workers) if workers >= least else 0


def serving_share(weights: Iterable[float], serving: int) -> float:
    """Return the remaining share of serving capacity, for models without an SLO.

    weights: weights of the ranks that are not spares
    serving: number of those ranks
    """
    return sum(weights) / serving if serving else 0.0
