"""Observations of a simulated fleet, as a selector would report."""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import takewhile
from math import ceil, log2
from typing import TypeVar

import numpy as np

from select_service.base.arrival_variation import arrival_variation
from select_service.planner.core.tick_input import (
    DecodeTiming,
    ForwardPass,
    LengthBins,
    PrefillTiming,
    TrafficWindow,
)
from select_service.planner.replay.simulated_engine import SimulatedRequest

SAMPLES_MAX = 256
"""Maximum samples of each kind in a window."""
BINS, TOKENS_MAX = 64, 1 << 20
_Sample = TypeVar("_Sample")


class SimulatedWindow:
    """Recent events, from which any shorter window can be read.

    Loops of a planner read overlapping windows, so reading removes nothing.
    """

    def __init__(self, ttft_s: float, itl_s: float, keep_s: float) -> None:
        """Create the window.

        ttft_s, itl_s: latency targets
        keep_s:        longest window
        """
        self._ttft_s = ttft_s
        self._itl_s = itl_s
        self._keep_s = keep_s
        self._arrived: deque[tuple[float, SimulatedRequest]] = deque()
        self._done: deque[tuple[float, SimulatedRequest]] = deque()
        self._decodes: deque[tuple[float, DecodeTiming]] = deque()
        self._rejected: deque[tuple[float, SimulatedRequest]] = deque()

    def add_arrival(self, request: SimulatedRequest) -> None:
        """Add an arrival."""
        self._arrived.append((request.arrived_s, request))

    def add_rejection(self, request: SimulatedRequest) -> None:
        """Add a rejection, after its arrival."""
        self._rejected.append((request.arrived_s, request))

    def add_finished(self, now: float, requests: Iterable[SimulatedRequest]) -> None:
        """Add requests that ended since the last call, which is recent enough."""
        self._done += ((now, each) for each in requests)

    def add_passes(self, now: float, passes: Iterable[ForwardPass]) -> None:
        """Add iterations of engines, as output blocks would show."""
        self._decodes += (
            (now, DecodeTiming(each.decode_requests, each.decode_kv_tokens, each.wall_s))
            for each in passes
            # Output blocks with prefill in between would show the sum of both.
            if each.decode_requests and not each.prefill_tokens
        )
        for kept in (self._arrived, self._done, self._decodes, self._rejected):
            while kept and kept[0][0] <= now - self._keep_s:
                kept.popleft()

    def read_traffic(self, now: float, duration_s: float, queued: int = 0) -> TrafficWindow:
        """Return the last `duration_s` before now, in the form of an observation."""
        begin = now - duration_s
        arrived, done = _entries_since(begin, self._arrived), _entries_since(begin, self._done)
        prompt = sum(each.isl for each in arrived)
        uncached = [float(each.uncached) for each in arrived]
        return TrafficWindow(
            duration_s=duration_s,
            requests=float(len(arrived)),
            isl=prompt / len(arrived) if arrived else None,
            osl=_mean_or_none([float(each.osl) for each in done]),
            kv_hit_rate=1.0 - sum(uncached) / prompt if prompt else None,
            uncached_isl=make_length_bins(uncached),
            context=make_length_bins([each.isl + each.osl / 2 for each in done]),
            arrival_variation=measure_variation([each.arrived_s for each in arrived], begin, now),
            prefill_samples=tuple(
                PrefillTiming(each.uncached, each.ttft_s, each.ahead_tokens)
                for each in _thin_samples(done)
                if each.ttft_s is not None
            ),
            decode_samples=tuple(_thin_samples(_entries_since(begin, self._decodes))),
            rejected=float(len(_entries_since(begin, self._rejected))),
            queued_requests=float(queued),
            ttft_met=_part_within([each.ttft_s for each in done], self._ttft_s),
            itl_met=_part_within([each.itl_s for each in done], self._itl_s),
            ttft_s=_mean_or_none([each.ttft_s for each in done if each.ttft_s is not None]),
            itl_s=_mean_or_none([each.itl_s for each in done if each.itl_s is not None]),
        )


def _entries_since(begin: float, kept: deque[tuple[float, _Sample]]) -> list[_Sample]:
    """Return the entries after `begin`, in their order."""
    found = [each for _, each in takewhile(lambda pair: pair[0] > begin, reversed(kept))]
    found.reverse()
    return found


def make_length_bins(values: Sequence[float]) -> LengthBins | None:
    """Return the histogram in 64 bins, equally wide in the logarithm from 1 to 2^20 tokens.

    Each bin has the mean of its values.
    """
    sums: dict[int, tuple[float, int]] = {}
    for value in values:
        at = min(BINS - 1, max(0, ceil(log2(max(1.0, value)) * BINS / log2(TOKENS_MAX)) - 1))
        total, count = sums.get(at, (0.0, 0))
        sums[at] = total + value, count + 1
    if not sums:
        return None
    ordered = [sums[at] for at in sorted(sums)]
    return LengthBins(
        means=tuple(total / count for total, count in ordered),
        counts=tuple(float(count) for _, count in ordered),
    )


def measure_variation(times: Sequence[float], begin: float, end: float) -> float | None:
    """Return the variation of arrivals, from counts by second like a selector."""
    seconds = max(1, round(end - begin))
    counts, edges = np.histogram(times, bins=seconds, range=(begin, end))
    return arrival_variation(counts, np.diff(edges))


def _thin_samples(samples: Sequence[_Sample]) -> Sequence[_Sample]:
    """Return at most `SAMPLES_MAX`, evenly from all."""
    if len(samples) <= SAMPLES_MAX:
        return samples
    return [samples[i * len(samples) // SAMPLES_MAX] for i in range(SAMPLES_MAX)]


def _mean_or_none(values: Sequence[float]) -> float | None:
    """Return the mean, or None."""
    return sum(values) / len(values) if values else None


def _part_within(values: Sequence[float | None], limit: float) -> float | None:
    """Return the part of the values up to a limit, or None."""
    known = [value for value in values if value is not None]
    return sum(value <= limit for value in known) / len(known) if known else None
