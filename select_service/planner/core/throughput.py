"""The throughput proposer: replicas for the forecast of the next window.

`mean` divides by the rate of an engine that is always busy; `queue` sizes for the attainment, with
the distributions of the last window stretched to the forecast means.
"""

from math import ceil, copysign, sqrt
from typing import NamedTuple

from select_service.planner.core import sizing
from select_service.planner.core.contracts import Forecast, Shape, Slo
from select_service.planner.core.diagnostics import Sized
from select_service.planner.core.inputs import (
    Bins,
    Limits,
    Role,
    Traffic,
    hit_rate_used,
)
from select_service.planner.core.perf.model import EngineModel
from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import Settings
from select_service.planner.core.shared_sizing import Shared, SharedEngine, SharedLoad, Targets

SPARE = 0.9
"""Part of the replicas that demand may use before one of them goes."""

LONG_MOST = 2.0
"""What few samples of decoding may change of a mean context."""

FORECAST_LEAST = 1.0
"""Requests of an interval; what forecasts of an idle deployment say below that is no demand."""

CHANCE = 1.0
"""Standard errors that a mean of one window may be off without saying anything of a change."""

NOT_READY = Sized(replicas=None, reason=Reason.MODEL_NOT_READY)


class Demand(NamedTuple):
    """What is sized for. rate: requests/s; traffic: the last window

    promised:   attainment that was asked for
    correction: misses that were observed, by those that were predicted
    expected:   requests/s without the quantile
    """

    rate: float
    shape: Shape
    traffic: Traffic
    promised: float
    correction: float = 1.0
    expected: float = 0.0

    def wanted(self, reachable: float) -> float:
        """The attainment to size for. Misses that no number of replicas helps are as many as they
        are; where they are all that is allowed, those that can be helped are as before.

        reachable: part of the requests that keep the target when nobody waits
        """
        helpless = 1.0 - reachable
        allowed = 1.0 - self.promised - helpless
        if allowed <= 0.0:
            return 1.0 - (1.0 - self.promised) / self.correction
        return reachable - allowed / self.correction

    @property
    def is_missed(self) -> bool:
        """The last window kept less than was promised: something has piled up."""
        met = (self.traffic.ttft_met, self.traffic.itl_met)
        return any(part is not None and part < self.promised for part in met)

    def with_slack(self) -> "Demand":
        """What a step down must leave. A quantile is a margin already, and none is added to it."""
        return self._replace(rate=max(self.rate, self.expected / SPARE))


class Engine(NamedTuple):
    """One engine of a role. both: it prefills and decodes"""

    model: EngineModel
    limits: Limits
    slo: Slo
    both: bool


def demand_of(
    forecast: Forecast, traffic: Traffic, settings: Settings, correction: float
) -> Demand | None:
    """The forecast is of a whole interval, however long the window was.  None: it says nothing."""
    if traffic.duration_s <= 0.0:
        return None
    hit_rate = hit_rate_used(forecast.kv_hit_rate)
    is_idle = (
        settings.sizing == "queue" and traffic.is_idle and forecast.demand_requests < FORECAST_LEAST
    )
    accept = min(max(forecast.accept_length, 1.0), settings.speculative_nextn + 1.0)
    shape = Shape(forecast.isl, forecast.osl, hit_rate, accept)
    interval_s = settings.throughput_adjustment_interval_seconds
    rate = 0.0 if is_idle else forecast.demand_requests / interval_s
    expected = 0.0 if is_idle else forecast.requests / interval_s
    return Demand(rate, shape, traffic, settings.attainment, correction, expected)


def sized(demand: Demand, role: Role, engine: Engine, settings: Settings) -> Sized:
    """replicas None: the model cannot say it."""
    is_queue = settings.sizing == "queue"
    if demand.rate <= 0.0 and is_queue:
        return Sized(replicas=0, reason=Reason.IDLE, spare=0)
    if demand.shape.isl <= 0.0 or demand.shape.osl <= 0.0 or not engine.model.ready:
        return NOT_READY
    capacity = engine.model.capacity(demand.shape, engine.limits, engine.slo)
    if capacity is None or capacity.rps <= 0.0:
        return NOT_READY
    by_mean = ceil(demand.rate / capacity.rps)
    if not is_queue:
        reason = Reason.SCALE if capacity.eligible else Reason.SLO_OUT_OF_REACH
        return Sized(replicas=by_mean, reason=reason, spare=by_mean, engine_rps=capacity.rps)
    now, then = (_by_attainment(each, role, engine) for each in (demand, demand.with_slack()))
    if now is None or then is None:
        return NOT_READY
    return Sized(
        replicas=now.replicas,
        exact=float(now.replicas) if demand.is_missed else now.exact,
        spare=then.replicas,
        reason=now.reason,
        engine_rps=capacity.rps,
        attainment=now.attainment,
        wanted=now.wanted,
    )


class Attained(NamedTuple):
    """Part of the requests that keep their targets, and that could on any number of replicas."""

    kept: float
    reachable: float


def attained(demand: Demand, replicas: int, engine: Engine) -> Attained | None:
    """What so many should keep: the first token, and where they do both, the others too.
    None: it cannot be said, or they are too few for it."""
    if engine.both:
        shared = shared_of(demand, engine)
        kept = 0.0 if shared is None else shared.attainment(replicas, demand.rate)
        return None if shared is None or not kept else Attained(kept, shared.reachable)
    queue = queue_of(demand, engine)
    if queue is None or replicas <= queue.offered:
        return None
    waits, slo_s = sizing.erlang_c(replicas, queue.offered), engine.slo.ttft_ms / 1000.0
    return Attained(queue.attainment(replicas, waits, slo_s), queue.reachable(slo_s))


class _Answer(NamedTuple):
    replicas: int
    reason: Reason
    attainment: float | None
    exact: float
    wanted: float | None = None


def _by_attainment(demand: Demand, role: Role, engine: Engine) -> _Answer | None:
    if engine.both:
        return _shared(demand, engine)
    return _prefill(demand, engine) if role is Role.PREFILL else _decode(demand, engine)


def _shared(demand: Demand, engine: Engine) -> _Answer | None:
    shared = shared_of(demand, engine)
    if shared is None:
        return None
    wanted = demand.wanted(shared.reachable)
    size = shared.size(wanted)
    reason = Reason.SCALE if size.reachable >= demand.promised else Reason.SLO_OUT_OF_REACH
    return _Answer(size.replicas, reason, size.attainment, size.exact, wanted)


def shared_of(demand: Demand, engine: Engine) -> Shared | None:
    """Engines that do both, under this demand."""
    model, limits, shape = engine.model, engine.limits, demand.shape
    iteration_s = model.mixed()
    if iteration_s is None or not limits.max_kv_tokens or not limits.max_num_batched_tokens:
        return None
    context = (shape.isl + shape.osl / 2.0) * _weight_of_long(demand.traffic)
    contexts = _stretched(demand.traffic.context, context, demand.traffic.requests)
    variation = demand.traffic.arrival_variation
    load = SharedLoad(
        demand.rate,
        _uncached(demand),
        shape.osl,
        *sizing.moments(contexts),
        1.0 if variation is None else variation,
    )
    one = SharedEngine(
        iteration_s,
        float(limits.max_num_batched_tokens),
        float(limits.max_kv_tokens),
        limits.max_num_seqs or sizing.REPLICAS_MAX,
        shape.accept_length,
    )
    return Shared(load, one, Targets(engine.slo.ttft_ms / 1e3, engine.slo.itl_ms / 1e3))


def _weight_of_long(traffic: Traffic) -> float:
    """KV tokens of a request that lives, by those of one that comes: long answers live longer."""
    requests = sum(each.live_requests for each in traffic.decode_samples)
    if requests <= 0.0 or not traffic.isl:
        return 1.0
    seen = sum(each.kv_tokens for each in traffic.decode_samples) / requests
    expected = traffic.isl + (traffic.osl or 0.0) / 2.0
    return min(LONG_MOST, max(1.0 / LONG_MOST, seen / expected))


def _uncached(demand: Demand) -> Bins:
    """Lengths of the last window, with the mean of the forecast."""
    mean = max(1.0, demand.shape.isl * (1.0 - demand.shape.hit_rate))
    return _stretched(demand.traffic.uncached_isl, mean, demand.traffic.requests)


def _prefill(demand: Demand, engine: Engine) -> _Answer | None:
    """Where too many prompts are too long, those that can be helped are: to want a little more
    must not mean to get half the replicas."""
    queue = queue_of(demand, engine)
    if queue is None:
        return None
    slo_s = engine.slo.ttft_ms / 1000.0
    reachable = queue.reachable(slo_s)
    wanted = demand.wanted(reachable)
    size = sizing.prefill_replicas(queue, slo_s, wanted)
    if size.reason is not Reason.SLO_OUT_OF_REACH:
        return _Answer(size.replicas, size.reason, size.attainment, size.exact, wanted)
    helped = sizing.prefill_replicas(queue, slo_s, wanted * reachable)
    best = max(size, helped, key=lambda one: one.replicas)
    reason = Reason.SCALE if reachable >= demand.promised else size.reason
    return _Answer(best.replicas, reason, best.attainment, best.exact, wanted)


def queue_of(demand: Demand, engine: Engine) -> sizing.PrefillQueue | None:
    """The queue in front of prefill."""
    lengths = _uncached(demand)
    seconds = [engine.model.prefill_s(length, engine.limits) for length in lengths.means]
    known = [each for each in seconds if each is not None]
    if len(known) < len(seconds):
        return None
    by_length = dict(zip(lengths.means, known, strict=True))
    variation = demand.traffic.arrival_variation
    return sizing.prefill_queue(
        lengths, by_length.__getitem__, demand.rate, 1.0 if variation is None else variation
    )


def _decode(demand: Demand, engine: Engine) -> _Answer | None:
    model, limits, shape = engine.model, engine.limits, demand.shape
    if not limits.max_kv_tokens or model.decode_s(1.0, 1.0) is None:
        return None

    def itl_s(requests: float, kv_tokens: float) -> float:
        return (model.decode_s(requests, kv_tokens) or 0.0) / shape.accept_length

    contexts = _stretched(
        demand.traffic.context, shape.isl + shape.osl / 2.0, demand.traffic.requests
    )
    load = sizing.DecodeLoad(demand.rate, shape.osl, *sizing.moments(contexts))
    seqs = limits.max_num_seqs or sizing.REPLICAS_MAX
    one = sizing.DecodeEngine(itl_s, float(limits.max_kv_tokens), seqs)
    size = sizing.decode_replicas(load, one, engine.slo.itl_ms / 1000.0)
    return _Answer(size.replicas, size.reason, None, size.exact)


def _stretched(bins: Bins | None, mean: float, requests: float | None) -> Bins:
    """With this mean, as far as it is more than chance; a single value where no distribution is
    known.

    requests: of the window that the mean is of
    """
    if bins is None or not bins.counts:
        return Bins(means=(mean,), counts=(1.0,))
    first, second = sizing.moments(bins)
    if first <= 0.0:
        return Bins(means=(mean,), counts=(1.0,))
    error = sqrt(max(0.0, second - first * first) / max(1.0, requests or 0.0))
    beyond = max(0.0, abs(mean - first) - CHANCE * error)
    by = (first + copysign(beyond, mean - first)) / first
    return Bins(means=tuple(m * by for m in bins.means), counts=bins.counts)
