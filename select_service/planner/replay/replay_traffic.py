"""Requests of a simulation, from a trace."""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from math import inf
from pathlib import Path

from select_service.files.mooncake_trace import TRACE_BLOCK_TOKENS, TraceRow, read_rows
from select_service.planner.replay.simulated_engine import SimulatedRequest

CACHED_BLOCKS_MAX = 20_000
"""Maximum blocks of 512 tokens in the fleet's caches together."""
REQUESTS_MAX = 10_000_000


def trace_requests(
    path: Path,
    *,
    speedup: float = 1.0,
    requests_max: int = REQUESTS_MAX,
    cached_blocks: int = CACHED_BLOCKS_MAX,
) -> list[SimulatedRequest]:
    """Return the requests by arrival. Prefixes shared with earlier prompts are cached in the fleet.

    speedup: factor on the arrival rate.  Raises TraceError and OSError.
    """
    cache = _PrefixCache(cached_blocks)
    found = sorted(
        (row for _, row in islice(read_rows(path), requests_max)), key=lambda row: row.timestamp
    )
    return [_to_request(row, speedup, cache) for row in found]


def repeat_requests(
    requests: list[SimulatedRequest], until_s: float, period_s: float
) -> Iterator[SimulatedRequest]:
    """Yield the requests again and again, shifted by whole periods."""
    shift = 0.0
    while shift < until_s:
        for each in requests:
            at = each.arrived_s + shift
            if at >= min(until_s, shift + period_s):
                break
            yield SimulatedRequest(at, each.isl, each.osl, each.uncached)
        shift += period_s if period_s > 0 else inf


class _PrefixCache:
    """Recently used blocks of the fleet as a whole."""

    def __init__(self, blocks_max: int) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._max = blocks_max

    def use_chain(self, chain: list[int]) -> int:
        """Return the number of cached leading blocks; then cache the whole chain."""
        held = next((i for i, each in enumerate(chain) if each not in self._blocks), len(chain))
        for block in chain:
            self._blocks[block] = None
            # Blocks of the chain are refreshed even if they were present, as real caches do.
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._max:
            self._blocks.popitem(last=False)
        return held


def _to_request(row: TraceRow, speedup: float, cache: _PrefixCache) -> SimulatedRequest:
    """Return the request of a row."""
    isl = max(1, row.prompt_tokens)
    uncached = max(1, isl - cache.use_chain(row.hash_ids) * TRACE_BLOCK_TOKENS)
    return SimulatedRequest(
        row.timestamp / 1000.0 / speedup, isl, max(1, row.output_length), uncached
    )
