"""Throughput proposer: replicas for the forecast of the next window.

`mean` divides by the rate of an engine that is always busy; `queue` sizes for the attainment, with
the distributions of the last window stretched to the forecast means.
"""

from math import ceil, copysign, sqrt
from typing import NamedTuple

from select_service.planner.core.diagnostics import SizingRecord
from select_service.planner.core.forecast_contracts import (
    ExpectedTraffic,
    LatencyTargets,
    MeanRequest,
)
from select_service.planner.core.performance.engine_model import EngineModel
from select_service.planner.core.proposers import queue_sizing
from select_service.planner.core.proposers.pair_demand import find_local_part, find_remote_part
from select_service.planner.core.proposers.queue_sizing import RoleSize
from select_service.planner.core.proposers.shared_engine_sizing import (
    SharedEngine,
    SharedLoad,
    SharedSizing,
)
from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import (
    EngineLimits,
    LengthBins,
    Role,
    TrafficWindow,
    usable_hit_rate,
)

SCALE_DOWN_SLACK = 0.9
"""Part of the remaining replicas that demand may use before a step down."""

LONG_ANSWER_FACTOR_MAX = 2.0
"""Limit of the correction of a mean context by few decode samples."""

FORECAST_REQUESTS_MIN = 1.0
"""Minimum requests of an interval; a lower forecast of an idle deployment is no demand."""

CHANCE_STANDARD_ERRORS = 1.0
"""Standard errors by which the mean of a window may differ without a real change."""

MODEL_NOT_READY = SizingRecord(replicas=None, reason=Reason.MODEL_NOT_READY)
TOO_LONG = SizingRecord(replicas=None, reason=Reason.SLO_OUT_OF_REACH)


class SizedDemand(NamedTuple):
    """Demand to size for.

    rate:       requests/s at the quantile
    shape:      mean request of the forecast
    traffic:    last window
    promised:   attainment of the settings
    correction: ratio of observed to predicted misses
    expected:   requests/s without the quantile
    """

    rate: float
    shape: MeanRequest
    traffic: TrafficWindow
    promised: float
    correction: float = 1.0
    expected: float = 0.0

    def attainment_to_size_for(self, reachable: float) -> float:
        """Return the attainment to size for; unavoidable misses stay out of the correction.

        Where unavoidable misses use up the whole allowance, avoidable misses are sized for as
        before.
        reachable: part of the requests that keep the target without any wait
        """
        # Misses of too long prompts are certain. The correction is about queueing, so it applies to
        # the rest of the allowance only.
        helpless = 1.0 - reachable
        allowed = 1.0 - self.promised - helpless
        if allowed <= 0.0:
            return 1.0 - (1.0 - self.promised) / self.correction
        return reachable - allowed / self.correction

    @property
    def has_missed_target(self) -> bool:
        """Whether the last window attained less than promised: a backlog has formed."""
        met = (self.traffic.ttft_met, self.traffic.itl_met)
        return any(part is not None and part < self.promised for part in met)

    def of_prefill_ranks(self) -> "SizedDemand":
        """Return the demand without the prompts that decode ranks compute."""
        part, shape, traffic = find_remote_part(self.shape, self.traffic)
        return self._replace(
            rate=self.rate * part, expected=self.expected * part, shape=shape, traffic=traffic
        )

    def with_slack(self) -> "SizedDemand":
        """Return the demand that a step down must leave room for; a quantile is margin enough."""
        # The demand at a quantile of 0.8 already exceeds the expected one: only the larger margin
        # counts.
        return self._replace(rate=max(self.rate, self.expected / SCALE_DOWN_SLACK))


class RoleEngine(NamedTuple):
    """Engine of a role.

    both:    whether the engine prefills and decodes
    prefill: model of prefill ranks, for prompts that decode ranks compute
    """

    model: EngineModel
    limits: EngineLimits
    slo: LatencyTargets
    both: bool
    prefill: EngineModel | None = None


def make_demand(
    forecast: ExpectedTraffic,
    traffic: TrafficWindow,
    settings: DeploymentSettings,
    correction: float,
) -> SizedDemand | None:
    """Return the demand of a whole interval, whatever the window's length.

    None for an empty window.
    """
    if traffic.duration_s <= 0.0:
        return None
    hit_rate = usable_hit_rate(forecast.kv_hit_rate)
    # A forecast never reaches 0 exactly, so an idle deployment would keep a replica for ever.
    is_idle = (
        settings.sizing == "queue"
        and traffic.is_idle
        and forecast.demand_requests < FORECAST_REQUESTS_MIN
    )
    accept = min(max(forecast.accept_length, 1.0), settings.speculative_nextn + 1.0)
    shape = MeanRequest(forecast.isl, forecast.osl, hit_rate, accept)
    interval_s = settings.throughput_adjustment_interval_seconds
    rate = 0.0 if is_idle else forecast.demand_requests / interval_s
    expected = 0.0 if is_idle else forecast.requests / interval_s
    return SizedDemand(rate, shape, traffic, settings.attainment, correction, expected)


def size_role(
    demand: SizedDemand, role: Role, engine: RoleEngine, settings: DeploymentSettings
) -> SizingRecord:
    """Size a role; replicas None if the model is not ready."""
    is_queue = settings.sizing == "queue"
    if demand.rate <= 0.0 and is_queue:
        return SizingRecord(replicas=0, reason=Reason.IDLE, spare=0)
    if is_queue and (why := _why_unsized(demand.shape, role, engine)) is not None:
        return SizingRecord(replicas=None, reason=why)
    if not is_queue and min(demand.shape.isl, demand.shape.osl) <= 0.0:
        return MODEL_NOT_READY
    if role is Role.PREFILL:
        demand = demand.of_prefill_ranks()
    capacity = engine.model.find_capacity(demand.shape, engine.limits, engine.slo)
    if capacity is None or capacity.rps <= 0.0:
        # With model, lengths and limits given, not even one request fits into an engine.
        return TOO_LONG if is_queue else MODEL_NOT_READY
    by_mean = ceil(demand.rate / capacity.rps + find_local_prefill(demand, role, engine))
    if not is_queue:
        reason = Reason.SCALE if capacity.eligible else Reason.SLO_OUT_OF_REACH
        return SizingRecord(replicas=by_mean, reason=reason, spare=by_mean, engine_rps=capacity.rps)
    now, then = (_size_by_attainment(each, role, engine) for each in (demand, demand.with_slack()))
    if now is None or then is None:
        return MODEL_NOT_READY
    return SizingRecord(
        replicas=now.replicas,
        # While targets are missed a backlog exists, so the fractional saving is not taken.
        exact=float(now.replicas) if demand.has_missed_target else now.exact,
        spare=then.replicas,
        reason=now.reason,
        engine_rps=capacity.rps,
        attainment=now.attainment,
        wanted=now.wanted,
    )


def find_local_prefill(demand: SizedDemand, role: Role, engine: RoleEngine) -> float:
    """Return the replicas that are fully busy with the prompts that decode ranks compute.

    The other roles have none, engines with both roles have them in their own sizing.
    """
    local = find_local_part(demand.shape, demand.traffic)
    if role is not Role.DECODE or engine.both or local is None or engine.prefill is None:
        return 0.0
    # An answer is as slow as the time that is left for it: n replicas with `busy` replicas of
    # prefill decode like n - busy ones.
    seconds = [engine.prefill.prefill_s(length, engine.limits) for length in local.lengths.means]
    known = [each * n for each, n in zip(seconds, local.lengths.counts, strict=True) if each]
    return demand.rate * local.requests * sum(known) / local.lengths.total


def _why_unsized(shape: MeanRequest, role: Role, engine: RoleEngine) -> Reason | None:
    """Return why a role cannot be sized, or None."""
    decodes, limits = engine.both or role is Role.DECODE, engine.limits
    if not engine.model.is_ready:
        return Reason.MODEL_NOT_READY
    if shape.isl <= 0.0:
        return Reason.NO_PROMPT_LENGTHS
    # Prefill does not depend on answers: it is sized as soon as the prompts are known.
    if decodes and shape.osl <= 0.0:
        return Reason.NO_OUTPUT_LENGTHS
    is_limited = limits.max_kv_tokens and (limits.max_num_batched_tokens or not engine.both)
    return Reason.LIMITS_UNKNOWN if decodes and not is_limited else None


class PredictedAttainment(NamedTuple):
    """Predicted attainment.

    kept:      part of the requests that keep their targets
    reachable: part that could on any number of replicas
    """

    kept: float
    reachable: float


def predict_attainment(
    demand: SizedDemand, replicas: int, engine: RoleEngine
) -> PredictedAttainment | None:
    """Return the predicted attainment of so many replicas; engines with both roles include ITL.

    None if the attainment is unknown or the replicas are too few for a steady state.
    """
    if engine.both:
        shared = make_shared_sizing(demand, engine)
        kept = 0.0 if shared is None else shared.attainment(replicas, demand.rate)
        return None if shared is None or not kept else PredictedAttainment(kept, shared.reachable)
    queue = make_queue(demand, engine)
    if queue is None or replicas <= queue.busy_replicas:
        return None
    waits, slo_s = queue_sizing.erlang_c(replicas, queue.busy_replicas), engine.slo.ttft_ms / 1000.0
    return PredictedAttainment(
        queue.attainment(replicas, waits, slo_s), queue.reachable_part(slo_s)
    )


def _size_by_attainment(demand: SizedDemand, role: Role, engine: RoleEngine) -> RoleSize | None:
    """Size a role for the attainment."""
    if engine.both:
        return _size_shared(demand, engine)
    return _size_prefill(demand, engine) if role is Role.PREFILL else _size_decode(demand, engine)


def _size_shared(demand: SizedDemand, engine: RoleEngine) -> RoleSize | None:
    """Size engines that prefill and decode."""
    shared = make_shared_sizing(demand, engine)
    if shared is None:
        return None
    wanted = demand.attainment_to_size_for(shared.reachable)
    size = shared.size_replicas(wanted)
    reason = Reason.SCALE if size.reachable >= demand.promised else Reason.SLO_OUT_OF_REACH
    return RoleSize(size.replicas, reason, size.exact, size.attainment, wanted)


def make_shared_sizing(demand: SizedDemand, engine: RoleEngine) -> SharedSizing | None:
    """Return the sizing of engines that prefill and decode.

    None if a limit or the model is missing.
    """
    model, limits, shape = engine.model, engine.limits, demand.shape
    iteration_s = model.mixed_iteration_time()
    if iteration_s is None or not limits.max_kv_tokens or not limits.max_num_batched_tokens:
        return None
    context = (shape.isl + shape.osl / 2.0) * _long_answer_weight(demand.traffic)
    contexts = _stretch_bins(demand.traffic.context, context, demand.traffic.requests)
    load = SharedLoad(
        demand.rate,
        _uncached_lengths(demand),
        shape.osl,
        *queue_sizing.first_two_moments(contexts),
        demand.traffic.arrival_variation or 1.0,
    )
    one = SharedEngine(
        iteration_s,
        float(limits.max_num_batched_tokens),
        float(limits.max_kv_tokens),
        limits.max_num_seqs or queue_sizing.REPLICAS_MAX,
        shape.accept_length,
    )
    return SharedSizing(load, one, engine.slo)


def _long_answer_weight(traffic: TrafficWindow) -> float:
    """Return the KV tokens of a live request by those of an arriving one.

    Long answers live longer, so the mean live request is longer than the mean arriving one.
    """
    requests = sum(each.live_requests for each in traffic.decode_samples)
    if requests <= 0.0 or not traffic.isl:
        return 1.0
    # A request is in n samples if it lives for n blocks, so samples weigh long answers correctly.
    seen = sum(each.kv_tokens for each in traffic.decode_samples) / requests
    expected = traffic.isl + (traffic.osl or 0.0) / 2.0
    return min(LONG_ANSWER_FACTOR_MAX, max(1.0 / LONG_ANSWER_FACTOR_MAX, seen / expected))


def _uncached_lengths(demand: SizedDemand) -> LengthBins:
    """Return the prompt lengths of the last window, stretched to the mean of the forecast."""
    mean = max(1.0, demand.shape.isl * (1.0 - demand.shape.hit_rate))
    return _stretch_bins(demand.traffic.uncached_isl, mean, demand.traffic.requests)


def _size_prefill(demand: SizedDemand, engine: RoleEngine) -> RoleSize | None:
    """Size prefill; if too many prompts are too long, size for the prompts that can be helped.

    Otherwise a slightly higher target could halve the replicas.
    """
    queue = make_queue(demand, engine)
    if queue is None:
        return None
    slo_s = engine.slo.ttft_ms / 1000.0
    reachable = queue.reachable_part(slo_s)
    wanted = demand.attainment_to_size_for(reachable)
    size = queue_sizing.size_prefill(queue, slo_s, wanted)
    if size.reason is not Reason.SLO_OUT_OF_REACH:
        return size._replace(wanted=wanted)
    # The plain answer for an unreachable target ignores the queue, and may be lower than for a
    # target just within reach. The larger of both keeps the size monotonic.
    helped = queue_sizing.size_prefill(queue, slo_s, wanted * reachable)
    best = max(size, helped, key=lambda one: one.replicas)
    reason = Reason.SCALE if reachable >= demand.promised else size.reason
    return best._replace(reason=reason, wanted=wanted)


def make_queue(demand: SizedDemand, engine: RoleEngine) -> queue_sizing.PrefillQueue | None:
    """Return the queue in front of prefill, or None if a prompt's time is unknown."""
    lengths = _uncached_lengths(demand)
    seconds = [engine.model.prefill_s(length, engine.limits) for length in lengths.means]
    known = [each for each in seconds if each is not None]
    if len(known) < len(seconds):
        return None
    variation = demand.traffic.arrival_variation or 1.0
    return queue_sizing.make_prefill_queue(lengths, known, demand.rate, variation)


def _size_decode(demand: SizedDemand, engine: RoleEngine) -> RoleSize | None:
    """Size decode; None if a limit or model is missing."""
    model, limits, shape = engine.model, engine.limits, demand.shape
    if not limits.max_kv_tokens or model.decode_s(1.0, 1.0) is None:
        return None

    def itl_s(requests: float, kv_tokens: float) -> float:
        return (model.decode_s(requests, kv_tokens) or 0.0) / shape.accept_length

    contexts = _stretch_bins(
        demand.traffic.context, shape.isl + shape.osl / 2.0, demand.traffic.requests
    )
    load = queue_sizing.DecodeLoad(
        demand.rate, shape.osl, *queue_sizing.first_two_moments(contexts)
    )
    seqs = limits.max_num_seqs or queue_sizing.REPLICAS_MAX
    one = queue_sizing.DecodeCapability(itl_s, float(limits.max_kv_tokens), seqs)
    size = queue_sizing.size_decode(load, one, engine.slo.itl_ms / 1000.0)
    local = find_local_prefill(demand, Role.DECODE, engine)
    exact = size.exact + local
    return RoleSize(max(size.replicas, ceil(exact)) if local else size.replicas, size.reason, exact)


def _stretch_bins(bins: LengthBins | None, mean: float, requests: float | None) -> LengthBins:
    """Return the distribution with this mean, as far as the difference exceeds chance.

    Without a distribution: a single value.  requests: number of requests behind the mean
    """
    if bins is None or not bins.counts:
        return LengthBins(means=(mean,), counts=(1.0,))
    first, second = queue_sizing.first_two_moments(bins)
    if first <= 0.0:
        return LengthBins(means=(mean,), counts=(1.0,))
    # Stretching follows a real shift of the mean; within the standard error the shape is kept.
    error = sqrt(max(0.0, second - first * first) / max(1.0, requests or 0.0))
    beyond = max(0.0, abs(mean - first) - CHANCE_STANDARD_ERRORS * error)
    by = (first + copysign(beyond, mean - first)) / first
    return LengthBins(means=tuple(m * by for m in bins.means), counts=bins.counts)
