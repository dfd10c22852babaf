"""Iteration times from request times measured by selectors; engines publish nothing for it.

Request times are no iteration times, and would mislead under load:

* Until its first token a prompt has waited behind others. The progress of the engine with those is
  known only roughly, and later prompts may share its iterations. Prompts without predecessors are
  as good as iterations, so those count as soon as there are enough.
* On engines that prefill and decode, output blocks contain the prefill of other requests, often a
  multiple of the decoding itself. Blocks are never faster than decoding alone: the fastest blocks
  at a similar load have met no prefill, or the least.
"""

from collections.abc import Iterator, Sequence
from math import ceil

from select_service.planner.core.performance.bucketed_samples import BucketedSamples, LoadSample
from select_service.planner.core.performance.engine_capacity import EngineKind, LinearIterationTime
from select_service.planner.core.performance.line_fit import (
    HALF_LIFE_S,
    FittedLine,
    fit_line,
    fit_robust_line,
)
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import DecodeTiming, TrafficWindow

ALONE_MIN = 16
"""Number of prompts without predecessors that is preferred to all prompts together."""
GROUP_MAX = 16
"""Blocks of about the same load, of which the fastest eighth counts."""
GROUPS_MIN = 8
FASTEST_PART = 8
REQUESTS_SPREAD_MIN = 2.0
"""Minimum spread of live requests on engines that prefill and decode. Below, the apparent cost of a
request is prefill, so only KV tokens count.
"""


class RequestTimings:
    """Lines through prompts and through output blocks of a role."""

    def __init__(self, kind: EngineKind, settings: DeploymentSettings) -> None:
        self._kind = kind
        self._settings = settings
        size, buckets = settings.max_num_fpm_samples, settings.fpm_sample_bucket_size
        self._alone = BucketedSamples(1, size, buckets)
        self._prompts = BucketedSamples(1, size, buckets)
        self._blocks = BucketedSamples(2, size, buckets)
        self._now_s = 0.0
        self._forward: LinearIterationTime | None = None
        self._is_fitted = False

    def observe_traffic(self, traffic: TrafficWindow, now_s: float) -> None:
        """Add the prompts and blocks that ended in a window."""
        self._now_s = now_s
        self._is_fitted = False
        if self._kind != "decode":
            for each in traffic.prefill_samples:
                self._add_prompt(each.uncached_tokens, each.ahead_tokens, each.seconds)
        if self._kind != "prefill":
            blocks = [each for each in traffic.decode_samples if each.seconds > 0]
            # Pure decode engines have no prefill in their blocks, so no selection is needed, except
            # for engines that compute prompts of pairs.
            has_prefills = traffic.pairs is not None and traffic.pairs.local > 0
            is_pure = self._kind == "decode" and not has_prefills
            for block in blocks if is_pure else fastest_blocks(blocks):
                x = (block.live_requests, block.kv_tokens)
                self._blocks.add_sample(LoadSample(x, block.seconds, now_s))

    @property
    def iteration_time(self) -> LinearIterationTime | None:
        """Time model, fitted on demand.

        None with too few samples, or if a line falls with the load.
        """
        if not self._is_fitted:
            self._forward, self._is_fitted = self._fit_lines(), True
        return self._forward

    def _add_prompt(self, own: float, ahead: float, seconds: float) -> None:
        """Add a prompt with the tokens queued before."""
        if seconds <= 0:
            return
        # A prompt waits for all tokens queued before, so its time covers those, too.
        sample = LoadSample((own + ahead,), seconds, self._now_s)
        self._prompts.add_sample(sample)
        if ahead <= 0:
            self._alone.add_sample(sample)

    def _fit_lines(self) -> LinearIterationTime | None:
        """Fit the lines, or return None."""
        prompts = None if self._kind == "decode" else self._prompt_line()
        blocks = None if self._kind == "prefill" else self._block_line()
        if self._kind == "prefill":
            return prompts and LinearIterationTime(
                prompts.intercept, prompts.coefficients[0], 0.0, 0.0
            )
        if blocks is None or (self._kind == "aggregated" and prompts is None):
            return None
        per_request, per_kv_token = blocks.coefficients
        # Alone, a prompt needs no more than an iteration that decodes, plus its tokens.
        per_token = 0.0 if prompts is None else prompts.coefficients[0]
        return LinearIterationTime(blocks.intercept, per_token, per_kv_token, per_request)

    def _prompt_line(self) -> FittedLine | None:
        """Fit prompts without predecessors, or all prompts if those are few or old."""
        alone = list(self._alone)
        is_fresh = any(self._now_s - each.at_s <= HALF_LIFE_S for each in alone)
        if len(alone) >= ALONE_MIN and is_fresh:
            line = self._fit_line(alone)
            if line is not None:
                return line
        return self._fit_line(list(self._prompts))

    def _block_line(self) -> FittedLine | None:
        """Fit by live requests and KV tokens: both axes, or the axis that explains more."""
        blocks = list(self._blocks)
        by_kv = _widen_line(self._fit_line([_project_to_axis(each, 1) for each in blocks]), 1)
        # More requests also mean more prefill in between; a narrow spread cannot separate both.
        if self._kind == "aggregated" and _requests_spread(blocks) < REQUESTS_SPREAD_MIN:
            return by_kv
        both = self._fit_line(blocks)
        if both is not None:
            return both
        by_requests = _widen_line(self._fit_line([_project_to_axis(each, 0) for each in blocks]), 0)
        known = [line for line in (by_kv, by_requests) if line is not None]
        return min(known, key=lambda line: _total_distance(line, blocks), default=None)

    def _fit_line(self, samples: Sequence[LoadSample]) -> FittedLine | None:
        """Fit a line with intercept of at least 0.

        None with too few samples, or if the line falls.
        """
        if len(samples) < self._settings.load_min_observations:
            return None
        robust = self._settings.robust
        line = fit_robust_line(samples, self._now_s) if robust else fit_line(samples)
        if min(line.coefficients) < 0.0:
            return None
        return line._replace(intercept=max(0.0, line.intercept))


def fastest_blocks(blocks: Sequence[DecodeTiming]) -> Iterator[DecodeTiming]:
    """Yield the fastest eighth, at least one block, of each group of neighbours by load.

    Few blocks form smaller groups, so that not almost all are dropped.
    """
    size = min(GROUP_MAX, max(1, len(blocks) // GROUPS_MIN))
    ordered = sorted(blocks, key=lambda block: (block.live_requests, block.kv_tokens))
    for begin in range(0, len(ordered), size):
        group = sorted(ordered[begin : begin + size], key=lambda block: block.seconds)
        yield from group[: ceil(len(group) / FASTEST_PART)]


def _requests_spread(blocks: Sequence[LoadSample]) -> float:
    """Return the spread of the live requests."""
    requests = [each.x[0] for each in blocks]
    return max(requests, default=0.0) - min(requests, default=0.0)


def _project_to_axis(sample: LoadSample, axis: int) -> LoadSample:
    """Return a sample reduced to one axis."""
    return sample._replace(x=(sample.x[axis],))


def _widen_line(line: FittedLine | None, axis: int) -> FittedLine | None:
    """Return a line along one axis as a line of both axes."""
    if line is None:
        return None
    slope = line.coefficients[0]
    return line._replace(coefficients=(slope, 0.0) if axis == 0 else (0.0, slope))


def _total_distance(line: FittedLine, samples: Sequence[LoadSample]) -> float:
    """Return the sum of the distances: outliers weigh as little as in a median."""
    first, second = line.coefficients
    return sum(
        abs(each.y - line.intercept - first * each.x[0] - second * each.x[1]) for each in samples
    )
