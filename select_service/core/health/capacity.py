"""How many requests a second the ranks that serve can carry within their promises."""

from collections.abc import Iterable
from math import ceil
from typing import NamedTuple

ISL_DEFAULT, OSL_DEFAULT = 2048.0, 256.0
SPARES_SHARE, SPARES_FROM = 0.05, 20
"""Of the workers, and from how many on."""


class Slo(NamedTuple):
    """What was promised for a model."""

    ttft_ms: float
    itl_ms: float
    rps: float


class LoadMeans(NamedTuple):
    """What requests are like.

    isl, osl: tokens in and out;  hit_rate: share of the input that is cached
    """

    isl: float = ISL_DEFAULT
    osl: float = OSL_DEFAULT
    hit_rate: float = 0.0


class RankCapacity(NamedTuple):
    """What one rank has; None: unknown, and left out.  Rates in tokens/s."""

    weight: float
    total_blocks: int | None
    block_size: int
    prefill_tokens_per_s: float | None
    decode_tokens_per_s: float | None


class Capacity(NamedTuple):
    """Requests/s by each of what they need; 0: unknown.

    effective_rps: the least of those that are known
    ratio:         of it to what was promised
    """

    by_cache_rps: float
    by_prefill_rps: float
    by_decode_rps: float
    effective_rps: float
    ratio: float


def capacity(ranks: Iterable[RankCapacity], slo: Slo, load: LoadMeans) -> Capacity:
    """By Little's law where it is the cache: each request holds its blocks for a time.

    O(ranks)
    """
    cached = prefill = decode = 0.0
    for rank in ranks:
        cached += rank.weight * (rank.total_blocks or 0) * rank.block_size
        prefill += rank.weight * (rank.prefill_tokens_per_s or 0.0)
        decode += rank.weight * (rank.decode_tokens_per_s or 0.0)
    residence_s = (slo.ttft_ms + load.osl * slo.itl_ms) / 1000.0
    by_cache = _per(_per(cached, load.isl + load.osl / 2.0), residence_s)
    by_prefill = prefill / max(1.0, load.isl * (1.0 - load.hit_rate))
    by_decode = _per(decode, load.osl)
    effective = min((x for x in (by_cache, by_prefill, by_decode) if x > 0.0), default=0.0)
    return Capacity(by_cache, by_prefill, by_decode, effective, _per(effective, slo.rps))


def _per(total: float, each: float) -> float:
    """0: nothing is known."""
    return total / each if each > 0.0 else 0.0


def spares_wanted(workers: int) -> int:
    """How many of so many workers should be spares; small fleets have none."""
    return ceil(SPARES_SHARE * workers) if workers >= SPARES_FROM else 0


def ratio_of_weights(weights: Iterable[float], serving: int) -> float:
    """Without promises: how much of the ranks that are no spares is left.  serving: their number"""
    return sum(weights) / serving if serving else 0.0
