"""What a selector would tell the planner of a simulated fleet."""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import takewhile
from math import ceil, log2
from typing import TypeVar

import numpy as np

from select_service.dispersion import arrival_variation
from select_service.planner.core.inputs import (
    Bins,
    DecodeSample,
    ForwardPass,
    PrefillSample,
    Traffic,
)
from select_service.planner.replay.engine import Request

SAMPLES_MAX = 256
"""Of each kind in a window."""
BINS, TOKENS_MAX = 64, 1 << 20
_Sample = TypeVar("_Sample")


class Window:
    """Everything of the last while, of which any shorter window can be read.

    Loops of a planner look at windows that overlap, so nothing is gone when it has been read.
    """

    def __init__(self, ttft_s: float, itl_s: float, keep_s: float) -> None:
        """ttft_s, itl_s: what has to be kept;  keep_s: the longest window"""
        self._ttft_s = ttft_s
        self._itl_s = itl_s
        self._keep_s = keep_s
        self._arrived: deque[tuple[float, Request]] = deque()
        self._done: deque[tuple[float, Request]] = deque()
        self._decodes: deque[tuple[float, DecodeSample]] = deque()
        self._rejected: deque[tuple[float, Request]] = deque()

    def arrive(self, request: Request) -> None:
        self._arrived.append((request.arrived_s, request))

    def reject(self, request: Request) -> None:
        """After its arrival."""
        self._rejected.append((request.arrived_s, request))

    def finish(self, now: float, requests: Iterable[Request]) -> None:
        """Those that have ended since somebody looked, which is soon enough."""
        self._done += ((now, each) for each in requests)

    def look(self, now: float, passes: Iterable[ForwardPass]) -> None:
        """Iterations of engines, as output blocks would show them."""
        self._decodes += (
            (now, DecodeSample(each.decode_requests, each.decode_kv_tokens, each.wall_s))
            for each in passes
            if each.decode_requests and not each.prefill_tokens
        )
        for kept in (self._arrived, self._done, self._decodes, self._rejected):
            while kept and kept[0][0] <= now - self._keep_s:
                kept.popleft()

    def read(self, now: float, duration_s: float, queued: int = 0) -> Traffic:
        """The last `duration_s` before now, in the form of an observation."""
        begin = now - duration_s
        arrived, done = _since(begin, self._arrived), _since(begin, self._done)
        prompt = sum(each.isl for each in arrived)
        uncached = [float(each.uncached) for each in arrived]
        return Traffic(
            duration_s=duration_s,
            requests=float(len(arrived)),
            isl=prompt / len(arrived) if arrived else None,
            osl=_mean([float(each.osl) for each in done]),
            kv_hit_rate=1.0 - sum(uncached) / prompt if prompt else None,
            uncached_isl=bins(uncached),
            context=bins([each.isl + each.osl / 2 for each in done]),
            arrival_variation=variation([each.arrived_s for each in arrived], begin, now),
            prefill_samples=tuple(
                PrefillSample(each.uncached, each.ttft_s, each.ahead_tokens)
                for each in _thinned(done)
                if each.ttft_s is not None
            ),
            decode_samples=tuple(_thinned(_since(begin, self._decodes))),
            rejected=float(len(_since(begin, self._rejected))),
            queued_requests=float(queued),
            ttft_met=_part([each.ttft_s for each in done], self._ttft_s),
            itl_met=_part([each.itl_s for each in done], self._itl_s),
            ttft_s=_mean([each.ttft_s for each in done if each.ttft_s is not None]),
            itl_s=_mean([each.itl_s for each in done if each.itl_s is not None]),
        )


def _since(begin: float, kept: deque[tuple[float, _Sample]]) -> list[_Sample]:
    """What came after `begin`, in its order."""
    found = [each for _, each in takewhile(lambda pair: pair[0] > begin, reversed(kept))]
    found.reverse()
    return found


def bins(values: Sequence[float]) -> Bins | None:
    """64 bins, equally wide in the logarithm from 1 to 2^20 tokens, with the mean of each."""
    sums: dict[int, tuple[float, int]] = {}
    for value in values:
        at = min(BINS - 1, max(0, ceil(log2(max(1.0, value)) * BINS / log2(TOKENS_MAX)) - 1))
        total, count = sums.get(at, (0.0, 0))
        sums[at] = total + value, count + 1
    if not sums:
        return None
    ordered = [sums[at] for at in sorted(sums)]
    return Bins(
        means=tuple(total / count for total, count in ordered),
        counts=tuple(float(count) for _, count in ordered),
    )


def variation(times: Sequence[float], begin: float, end: float) -> float | None:
    """Of the times between arrivals, from counts by second as a selector has them."""
    seconds = max(1, round(end - begin))
    counts, edges = np.histogram(times, bins=seconds, range=(begin, end))
    return arrival_variation(counts, np.diff(edges))


def _thinned(samples: Sequence[_Sample]) -> Sequence[_Sample]:
    """At most `SAMPLES_MAX`, evenly from all."""
    if len(samples) <= SAMPLES_MAX:
        return samples
    return [samples[i * len(samples) // SAMPLES_MAX] for i in range(SAMPLES_MAX)]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _part(values: Sequence[float | None], limit: float) -> float | None:
    known = [value for value in values if value is not None]
    return sum(value <= limit for value in known) / len(known) if known else None
