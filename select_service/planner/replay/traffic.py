"""Requests of a simulation: from a trace, or made up from a rate that changes with time."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from math import inf
from pathlib import Path
from random import Random

from select_service.planner.replay.engine import Request
from select_service.request_trace import TRACE_BLOCK_TOKENS, Row, rows

CACHED_BLOCKS_MAX = 20_000
"""Blocks of 512 tokens that the fleet's caches hold together."""
REQUESTS_MAX = 10_000_000


def trace_requests(
    path: Path,
    *,
    speedup: float = 1.0,
    requests_max: int = REQUESTS_MAX,
    cached_blocks: int = CACHED_BLOCKS_MAX,
) -> list[Request]:
    """Sorted by arrival. What a prompt shares with earlier ones is cached somewhere and used.

    speedup: requests arrive so many times faster.  Raises TraceError and OSError.
    """
    cache = _Cache(cached_blocks)
    found = sorted(
        (row for _, row in islice(rows(path), requests_max)), key=lambda row: row.timestamp
    )
    return [_request(row, speedup, cache) for row in found]


def made_requests(
    rate: Callable[[float], float],
    *,
    until_s: float,
    rate_max: float,
    lengths: Callable[[Random], tuple[int, int, int]],
    seed: int,
) -> Iterator[Request]:
    """A Poisson process of a changing rate, by thinning one of `rate_max` requests a second.

    lengths: ISL, uncached ISL and OSL of a request
    """
    rng, now = Random(seed), 0.0
    while True:
        now += rng.expovariate(rate_max)
        if now >= until_s:
            return
        if rng.random() * rate_max < rate(now):
            isl, uncached, osl = lengths(rng)
            yield Request(now, isl, osl, uncached)


def repeated(requests: list[Request], until_s: float, period_s: float) -> Iterator[Request]:
    """The same hour again and again: copies of all requests, shifted by whole periods."""
    shift = 0.0
    while shift < until_s:
        for each in requests:
            at = each.arrived_s + shift
            if at >= min(until_s, shift + period_s):
                break
            yield Request(at, each.isl, each.osl, each.uncached)
        shift += period_s if period_s > 0 else inf


class _Cache:
    """Blocks that were used last, without asking where."""

    def __init__(self, blocks_max: int) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._max = blocks_max

    def use(self, chain: list[int]) -> int:
        """Leading blocks that are there; then all of them are."""
        held = next((i for i, each in enumerate(chain) if each not in self._blocks), len(chain))
        for block in chain:
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._max:
            self._blocks.popitem(last=False)
        return held


def _request(row: Row, speedup: float, cache: _Cache) -> Request:
    isl = max(1, row.prompt_tokens)
    uncached = max(1, isl - cache.use(row.hash_ids) * TRACE_BLOCK_TOKENS)
    return Request(row.timestamp / 1000.0 / speedup, isl, max(1, row.output_length), uncached)
