"""What selectors have timed, as the seconds of an iteration. No engine has to publish anything.

Times of requests are not times of iterations, and taken for them they mislead under load:

* Until its first token a prompt has waited behind others. How far the engine was with them is known
  only roughly, and what came later may have been computed together with it. Prompts that had
  nothing before them are as good as iterations, so those count as soon as there are enough.
* On engines that do both, blocks of output contain the prefill of others, often a multiple of the
  decoding itself. Never are they faster than decoding alone: the fastest of those with about the
  same load have met no prefill, or the least.
"""

from collections.abc import Iterator, Sequence
from math import ceil

from select_service.planner.core.inputs import DecodeSample, Traffic
from select_service.planner.core.perf.capacity import Given, Kind
from select_service.planner.core.perf.linear import HALF_LIFE_S, Line, fit, fit_robust
from select_service.planner.core.perf.samples import Sample, Samples
from select_service.planner.core.settings import Settings

ALONE_MIN = 16
"""Prompts without others before them that are better than all prompts together."""
GROUP_MAX = 16
"""Blocks of about the same load, of which the fastest eighth counts."""
GROUPS_MIN = 8
FASTEST = 8
REQUESTS_SPREAD_MIN = 2.0
"""Between the fewest and the most live requests of engines that do both; under it what looks like
the cost of a request is prefill, and only KV tokens count."""


class Timed:
    """Lines through prompts and through output blocks of one role."""

    def __init__(self, kind: Kind, settings: Settings) -> None:
        self._kind = kind
        self._settings = settings
        size, buckets = settings.max_num_fpm_samples, settings.fpm_sample_bucket_size
        self._alone = Samples(1, size, buckets)
        self._prompts = Samples(1, size, buckets)
        self._blocks = Samples(2, size, buckets)
        self._now_s = 0.0
        self._forward: Given | None = None
        self._is_fitted = False

    def observe(self, traffic: Traffic, now_s: float) -> None:
        """What ended in a window."""
        self._now_s = now_s
        self._is_fitted = False
        if self._kind != "decode":
            for each in traffic.prefill_samples:
                self._add_prompt(each.uncached_tokens, each.ahead_tokens, each.seconds)
        if self._kind != "prefill":
            blocks = [each for each in traffic.decode_samples if each.seconds > 0]
            for block in blocks if self._kind == "decode" else fastest(blocks):
                x = (block.live_requests, block.kv_tokens)
                self._blocks.add(Sample(x, block.seconds, now_s))

    @property
    def forward(self) -> Given | None:
        """None: too few samples, or lines that fall with the load. Fitted when it is asked for."""
        if not self._is_fitted:
            self._forward, self._is_fitted = self._fitted(), True
        return self._forward

    def _add_prompt(self, own: float, ahead: float, seconds: float) -> None:
        if seconds <= 0:
            return
        sample = Sample((own + ahead,), seconds, self._now_s)
        self._prompts.add(sample)
        if ahead <= 0:
            self._alone.add(sample)

    def _fitted(self) -> Given | None:
        prompts = None if self._kind == "decode" else self._prompt_line()
        blocks = None if self._kind == "prefill" else self._block_line()
        if self._kind == "prefill":
            return prompts and Given(prompts.intercept, prompts.coefficients[0], 0.0, 0.0)
        if blocks is None or (self._kind == "aggregated" and prompts is None):
            return None
        per_request, per_kv_token = blocks.coefficients
        # alone, a prompt needs no more than an iteration that decodes, and its tokens
        per_token = 0.0 if prompts is None else prompts.coefficients[0]
        return Given(blocks.intercept, per_token, per_kv_token, per_request)

    def _prompt_line(self) -> Line | None:
        """Of prompts without others before them, unless these are few or long ago."""
        alone = list(self._alone)
        is_fresh = any(self._now_s - each.at_s <= HALF_LIFE_S for each in alone)
        if len(alone) >= ALONE_MIN and is_fresh:
            line = self._line(alone)
            if line is not None:
                return line
        return self._line(list(self._prompts))

    def _block_line(self) -> Line | None:
        """By live requests and KV tokens: both, or the one that explains more."""
        blocks = list(self._blocks)
        by_kv = _widened(self._line([_of_axis(each, 1) for each in blocks]), 1)
        if self._kind == "aggregated" and _spread(blocks) < REQUESTS_SPREAD_MIN:
            return by_kv
        both = self._line(blocks)
        if both is not None:
            return both
        by_requests = _widened(self._line([_of_axis(each, 0) for each in blocks]), 0)
        known = [line for line in (by_kv, by_requests) if line is not None]
        return min(known, key=lambda line: _missed(line, blocks), default=None)

    def _line(self, samples: Sequence[Sample]) -> Line | None:
        """None: too few, or it falls with the load. No iteration takes less than nothing."""
        if len(samples) < self._settings.load_min_observations:
            return None
        robust = self._settings.robust
        line = fit_robust(samples, self._now_s) if robust else fit(samples)
        if min(line.coefficients) < 0.0:
            return None
        return line._replace(intercept=max(0.0, line.intercept))


def fastest(blocks: Sequence[DecodeSample]) -> Iterator[DecodeSample]:
    """Of each group of neighbours by their load the eighth with the shortest times, at least one.

    Where there are few blocks groups are smaller, so that not all but a few are given up.
    """
    size = min(GROUP_MAX, max(1, len(blocks) // GROUPS_MIN))
    ordered = sorted(blocks, key=lambda block: (block.live_requests, block.kv_tokens))
    for begin in range(0, len(ordered), size):
        group = sorted(ordered[begin : begin + size], key=lambda block: block.seconds)
        yield from group[: ceil(len(group) / FASTEST)]


def _spread(blocks: Sequence[Sample]) -> float:
    """Of the live requests."""
    requests = [each.x[0] for each in blocks]
    return max(requests, default=0.0) - min(requests, default=0.0)


def _of_axis(sample: Sample, axis: int) -> Sample:
    return sample._replace(x=(sample.x[axis],))


def _widened(line: Line | None, axis: int) -> Line | None:
    """A line along one of the two axes, as one of both."""
    if line is None:
        return None
    slope = line.coefficients[0]
    return line._replace(coefficients=(slope, 0.0) if axis == 0 else (0.0, slope))


def _missed(line: Line, samples: Sequence[Sample]) -> float:
    """Sum of the distances: outliers weigh as little as in a median."""
    first, second = line.coefficients
    return sum(
        abs(each.y - line.intercept - first * each.x[0] - second * each.x[1]) for each in samples
    )
