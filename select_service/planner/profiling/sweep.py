"""Points of a sweep, and what the times of their tokens say. No I/O.

Prefill is measured with one prompt at a time. Decode is measured while all requests of a point
generate: from the last first token to the first last token.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil
from statistics import median
from typing import NamedTuple

INTERVALS_MIN = 4
"""Minimum token intervals of a request, on average, in which all requests generate."""
KV_FILL_MAX = 0.95
"""Part of the KV cache beyond which requests of a point would queue."""
OVERLAP_FACTOR = 1.5
"""Factor of the tokens generated while the other prompts are computed."""


class StreamTimes(NamedTuple):
    """Times of an answer.

    sent_s:   time of the request
    chunks_s: times of its chunks
    tokens:   generated tokens
    """

    sent_s: float
    chunks_s: tuple[float, ...]
    tokens: int

    @property
    def ttft_s(self) -> float:
        """Seconds to the first token."""
        return self.chunks_s[0] - self.sent_s


class MeasuredBatch(NamedTuple):
    """Decoding of several requests at once.

    context: mean tokens of a request
    itl_s:   seconds between two tokens
    """

    requests: int
    context: float
    itl_s: float


class DecodePoint(NamedTuple):
    """Requests of a length at the same time."""

    length: int
    requests: int


def spread_evenly(low: int, high: int, count: int) -> tuple[int, ...]:
    """Return at most `count` different numbers from low to high in equal ratios."""
    if count < 2 or high <= low:
        return (high,)
    ratio = (high / low) ** (1.0 / (count - 1))
    found = {min(high, max(low, round(low * ratio**i))) for i in range(count)}
    return tuple(sorted(found | {high}))


def plan_decode_points(
    lengths: Sequence[int], requests: Sequence[int], answer_tokens: int, max_kv_tokens: int
) -> list[DecodePoint]:
    """Return the points that fit into the KV cache, the lightest of a length first."""
    return [
        DecodePoint(length, count)
        for length in lengths
        for count in requests
        if count * (length + answer_tokens) <= KV_FILL_MAX * max_kv_tokens
    ]


def plan_answer_tokens(
    least: int, most: int, requests: int, prefill_s: float, itl_s: float | None
) -> int:
    """Return the length of answers that last until all prompts of a point are computed."""
    beyond = OVERLAP_FACTOR * (requests - 1) * prefill_s / itl_s if itl_s else 0.0
    return max(1, min(most, least + ceil(beyond)))


def mean_ttft_s(streams: Sequence[StreamTimes]) -> float:
    """Return the median of the times to first token: one stall of a host is no property."""
    return median(each.ttft_s for each in streams)


def measure_batch(length: int, streams: Sequence[StreamTimes]) -> MeasuredBatch | None:
    """Return the pace while all requests generate; None if they hardly did so together."""
    # Outside of this time fewer requests share the engine, which is then faster.
    start = max(each.chunks_s[0] for each in streams)
    end = min(each.chunks_s[-1] for each in streams)
    seconds = tokens = intervals = positions = 0.0
    for stream in streams:
        # Under load a chunk may carry several tokens.
        per_chunk = stream.tokens / len(stream.chunks_s)
        inside = [i for i, at_s in enumerate(stream.chunks_s) if start <= at_s <= end]
        for i, k in pairwise(inside):
            seconds += stream.chunks_s[k] - stream.chunks_s[i]
            tokens += per_chunk
            intervals += 1
            positions += (i + 1) * per_chunk
    if intervals < INTERVALS_MIN * len(streams) or seconds <= 0.0:
        return None
    return MeasuredBatch(len(streams), length + positions / intervals, seconds / tokens)


def prefill_arrays(found: Mapping[int, float], gpus: int) -> dict[str, object]:
    """Return the arrays of the file. found: seconds by prompt length"""
    return {
        "prefill_isl": list(found),
        "prefill_ttft": [seconds * 1000.0 for seconds in found.values()],
        "prefill_thpt_per_gpu": [length / seconds / gpus for length, seconds in found.items()],
    }


def decode_arrays(
    found: Sequence[MeasuredBatch], max_kv_tokens: int, gpus: int
) -> dict[str, object]:
    """Return the arrays of the file."""
    return {
        "x_kv_usage": [each.requests * each.context / max_kv_tokens for each in found],
        "y_context_length": [each.context for each in found],
        "z_itl": [each.itl_s * 1000.0 for each in found],
        "z_thpt_per_gpu": [each.requests / each.itl_s / gpus for each in found],
        "max_kv_tokens": max_kv_tokens,
    }
