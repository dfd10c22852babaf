"""The throughput proposer: replicas for the forecast of the next window.

`mean` divides by the rate of an engine that is always busy; `queue` sizes for the attainment, with
the distributions of the last window stretched to the forecast means.
"""

from math import ceil
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

SPARE = 0.9
"""Part of the replicas that demand may use before one of them goes."""

NOT_READY = Sized(replicas=None, reason=Reason.MODEL_NOT_READY)


class Demand(NamedTuple):
    """What is sized for. rate: requests/s; traffic: the last window

    promised:   attainment that was asked for
    attainment: the same, corrected by what is observed
    expected:   requests/s without the quantile
    """

    rate: float
    shape: Shape
    traffic: Traffic
    promised: float
    attainment: float
    expected: float = 0.0

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
    forecast: Forecast, traffic: Traffic, settings: Settings, attainment: float
) -> Demand | None:
    """None: the window says nothing."""
    if traffic.duration_s <= 0.0:
        return None
    hit_rate = hit_rate_used(forecast.kv_hit_rate)
    accept = min(max(forecast.accept_length, 1.0), settings.speculative_nextn + 1.0)
    shape = Shape(forecast.isl, forecast.osl, hit_rate, accept)
    rate = forecast.demand_requests / traffic.duration_s
    expected = forecast.requests / traffic.duration_s
    return Demand(rate, shape, traffic, settings.attainment, attainment, expected)


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
    busy = 0.0
    if engine.both:
        busy = demand.rate / capacity.rps / (SPARE if demand.is_missed else 1.0)
    replicas = max(ceil(busy), now.replicas)
    return Sized(
        replicas=replicas,
        exact=float(replicas) if demand.is_missed else max(busy, now.exact),
        spare=max(ceil(busy), then.replicas),
        reason=now.reason,
        engine_rps=capacity.rps,
        attainment=now.attainment,
        wanted=demand.attainment,
    )


class _Answer(NamedTuple):
    replicas: int
    reason: Reason
    attainment: float | None
    exact: float


def _by_attainment(demand: Demand, role: Role, engine: Engine) -> _Answer | None:
    """The larger of what prefill and decode need, of those that the engine does."""
    answers = []
    if role is Role.PREFILL or engine.both:
        answers.append(_prefill(demand, engine))
    if role is Role.DECODE:
        answers.append(_decode(demand, engine))
    known = [answer for answer in answers if answer is not None]
    if len(known) < len(answers):
        return None
    bad = [answer for answer in known if answer.reason is Reason.SLO_OUT_OF_REACH]
    return _Answer(
        max(answer.replicas for answer in known),
        bad[0].reason if bad else Reason.SCALE,
        next((answer.attainment for answer in known if answer.attainment is not None), None),
        max(answer.exact for answer in known),
    )


def _prefill(demand: Demand, engine: Engine) -> _Answer | None:
    """Where too many prompts are too long, those that can be helped are: to want a little more
    must not mean to get half the replicas."""
    queue = queue_of(demand, engine)
    if queue is None:
        return None
    slo_s = engine.slo.ttft_ms / 1000.0
    size = sizing.prefill_replicas(queue, slo_s, demand.attainment)
    if size.reason is not Reason.SLO_OUT_OF_REACH:
        return _Answer(size.replicas, size.reason, size.attainment, size.exact)
    helped = sizing.prefill_replicas(queue, slo_s, demand.attainment * queue.reachable(slo_s))
    best = max(size, helped, key=lambda one: one.replicas)
    promised = queue.reachable(slo_s) >= demand.promised
    reason = Reason.SCALE if promised else size.reason
    return _Answer(best.replicas, reason, best.attainment, best.exact)


def queue_of(demand: Demand, engine: Engine) -> sizing.PrefillQueue | None:
    """The queue in front of prefill."""
    mean = max(1.0, demand.shape.isl * (1.0 - demand.shape.hit_rate))
    lengths = _stretched(demand.traffic.uncached_isl, mean)
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

    contexts = _stretched(demand.traffic.context, shape.isl + shape.osl / 2.0)
    load = sizing.DecodeLoad(demand.rate, shape.osl, *sizing.moments(contexts))
    seqs = limits.max_num_seqs or sizing.REPLICAS_MAX
    one = sizing.DecodeEngine(itl_s, float(limits.max_kv_tokens), seqs)
    size = sizing.decode_replicas(load, one, engine.slo.itl_ms / 1000.0)
    return _Answer(size.replicas, size.reason, None, size.exact)


def _stretched(bins: Bins | None, mean: float) -> Bins:
    """With this mean; a single value where no distribution is known."""
    if bins is None or not bins.counts:
        return Bins(means=(mean,), counts=(1.0,))
    now = sum(m * c for m, c in zip(bins.means, bins.counts, strict=True)) / sum(bins.counts)
    if now <= 0.0:
        return Bins(means=(mean,), counts=(1.0,))
    return Bins(means=tuple(m * mean / now for m in bins.means), counts=bins.counts)
