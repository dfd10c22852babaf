"""Latency of each engine now, and its load with one engine less, from forward passes.

Ranks of a worker count together, by the worst of them.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from select_service.planner.core.forecast_contracts import LatencyTargets
from select_service.planner.core.performance.engine_model import EngineModel
from select_service.planner.core.tick_input import EngineLimits, ForwardPass


class EngineEstimate(NamedTuple):
    """Estimate for an engine.

    estimate_ms: latency of one more request
    after:       load with one engine less, as part of the allowed load; None if unknown
    weight:      requests on the engine, as far as reported
    """

    worker: str
    estimate_ms: float
    after: float | None
    weight: float


class LoadTerms(NamedTuple):
    """Terms of a load decision.

    replicas:    ready engines
    sensitivity: part of the target that may be used after removal of an engine
    hit_rate, accept_length: last known values
    """

    replicas: int
    slo: LatencyTargets
    sensitivity: float
    limits: EngineLimits
    hit_rate: float
    accept_length: float

    @property
    def consolidation_factor(self) -> float:
        """Factor of an engine's load after removal of another engine."""
        return self.replicas / (self.replicas - 1) if self.replicas > 1 else 1.0


RankPasses = tuple[ForwardPass, ...]


def group_by_worker(passes: Sequence[ForwardPass]) -> dict[str, RankPasses]:
    """Return the newest pass of each rank, by worker, in the order of worker names."""
    # Passes come oldest first, so the last entry of the dictionary is the newest.
    newest = {(one.worker, one.rank): one for one in passes}
    found: dict[str, list[ForwardPass]] = {}
    for _, one in sorted(newest.items()):
        found.setdefault(one.worker, []).append(one)
    return {worker: tuple(ranks) for worker, ranks in found.items()}


def has_equal_ranks(engines: dict[str, RankPasses]) -> bool:
    """Return whether every worker has reported the same number of ranks."""
    return len({len(ranks) for ranks in engines.values()}) <= 1


def estimate_ttft(
    engines: dict[str, RankPasses], model: EngineModel, terms: LoadTerms
) -> list[EngineEstimate]:
    """Estimate the times to first token. Survivors of a removal take over queues and decoding."""
    factor = terms.consolidation_factor

    def now(one: ForwardPass) -> float | None:
        return _to_ms(model.ttft_s(one, terms.limits, terms.hit_rate))

    def after(one: ForwardPass) -> float | None:
        own, all_of_it = (
            model.ttft_s(
                one,
                terms.limits,
                terms.hit_rate,
                queue_scale=queue,
                decode_scale=factor,
                queued_decode=True,
            )
            for queue in (0.0, factor)
        )
        return _queue_part(own, all_of_it, terms)

    return _combine_ranks(
        engines, now, after, lambda one: one.prefill_requests + one.queued_prefill_requests
    )


def estimate_decode(
    engines: dict[str, RankPasses],
    model: EngineModel,
    terms: LoadTerms,
    *,
    aggregated: bool = False,
) -> list[EngineEstimate]:
    """Estimate the times between tokens. An overflowing cache is beyond the models: infinite."""
    room = terms.limits.max_kv_tokens
    allowed_ms = terms.slo.itl_ms * terms.sensitivity

    def after(one: ForwardPass) -> float | None:
        tokens = one.decode_kv_tokens + one.queued_decode_kv_tokens
        if aggregated:
            tokens += one.queued_prefill_tokens
        # Engines preempt requests when their cache is full, which no fitted line describes.
        if room and int(tokens * terms.consolidation_factor) >= room:
            return inf
        then = model.itl_s(
            one, decode_scale=terms.consolidation_factor, queued_prefill_as_kv=aggregated
        )
        return None if then is None else then * 1000.0 / terms.accept_length / allowed_ms

    def now(one: ForwardPass) -> float | None:
        seconds = model.itl_s(one)
        return None if seconds is None else seconds * 1000.0 / terms.accept_length

    return _combine_ranks(
        engines, now, after, lambda one: one.decode_requests + one.queued_decode_requests
    )


def _queue_part(own_s: float | None, all_s: float | None, terms: LoadTerms) -> float | None:
    """Return the time added by the queue, as part of the target less a request's own time."""
    if own_s is None or all_s is None:
        return None
    # A prompt's own time does not shrink with more replicas; only the queue's time does.
    budget_ms = (terms.slo.ttft_ms - own_s * 1000.0) * terms.sensitivity
    return inf if budget_ms <= 0.0 else (all_s - own_s) * 1000.0 / budget_ms


def _to_ms(seconds: float | None) -> float | None:
    """Convert seconds to milliseconds; None stays None."""
    return None if seconds is None else seconds * 1000.0


def _combine_ranks(
    found: dict[str, RankPasses],
    now: Callable[[ForwardPass], float | None],
    after: Callable[[ForwardPass], float | None],
    weight: Callable[[ForwardPass], int],
) -> list[EngineEstimate]:
    """Combine the ranks of each worker by the worst; omit workers without any estimate."""
    views = []
    for worker, ranks in found.items():
        estimates = [value for one in ranks if (value := now(one)) is not None]
        if not estimates:
            continue
        then = [after(one) for one in ranks]
        known = [value for value in then if value is not None]
        # A rank without an estimate may be the worst one, so the worker has no estimate either.
        worst = max(known) if len(known) == len(then) else None
        views.append(EngineEstimate(worker, max(estimates), worst, float(sum(map(weight, ranks)))))
    return views
