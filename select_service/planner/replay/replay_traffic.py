"""Requests of a simulation, from a trace."""

from collections import OrderedDict
from collections.abc import Iterator
from math import inf
from pathlib import Path

from select_service.files.request_trace import RecordedRequest, load_trace
from select_service.planner.replay.simulated_engine import SimulatedRequest

CACHED_TOKENS_MAX = 10_240_000
"""Maximum tokens in the fleet's caches together."""
REQUESTS_MAX = 10_000_000


def trace_requests(
    path: Path,
    *,
    speedup: float = 1.0,
    requests_max: int = REQUESTS_MAX,
    cached_tokens: int = CACHED_TOKENS_MAX,
) -> list[SimulatedRequest]:
    """Return the requests by arrival. Prefixes shared with earlier prompts are cached in the fleet.

    speedup: factor on the arrival rate.  Raises TraceError and OSError.
    """
    cache = _PrefixCache(cached_tokens)
    found = load_trace(path, requests_max).requests
    return [_to_request(each, speedup, cache) for each in found]


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

    def __init__(self, tokens_max: int) -> None:
        self._blocks: OrderedDict[int, int] = OrderedDict()
        self._tokens, self._tokens_max = 0, tokens_max

    def use_chain(self, request: RecordedRequest) -> int:
        """Return the number of cached leading tokens; then cache the whole prompt."""
        keys, size = request.keys, request.key_tokens
        held = next((i for i, each in enumerate(keys) if each not in self._blocks), len(keys))
        for block in keys:
            self._tokens += size - self._blocks.pop(block, 0)
            # Blocks of the chain are refreshed even if they were present, as real caches do.
            self._blocks[block] = size
        while self._tokens > self._tokens_max:
            self._tokens -= self._blocks.popitem(last=False)[1]
        return held * size


def _to_request(request: RecordedRequest, speedup: float, cache: _PrefixCache) -> SimulatedRequest:
    """Return the simulated request."""
    isl = max(1, request.prompt_tokens)
    uncached = max(1, isl - cache.use_chain(request))
    return SimulatedRequest(
        request.at_s / speedup, isl, max(1, request.output_tokens or 0), uncached
    )
