"""Verdicts of the load proposer: one replica more or less, by the engines' load at this moment.

`sla` compares estimated latencies with the targets; the other targets ("easy" modes) compare
queues and caches with thresholds and need no performance model.
"""

from collections.abc import Sequence
from math import ceil
from statistics import median
from typing import NamedTuple

from select_service.planner.core.proposers.engine_estimates import EngineEstimate, RankPasses
from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import EngineLimits, ForwardPass, Role

STEP_UP_MAX = 4
"""Maximum number of replicas that a proportional step adds."""


class LoadVerdict(NamedTuple):
    """Verdict on a role, before floors and budgets. target None means no opinion.

    estimate_ms: latency of the worst engine
    notes:       further observations
    """

    target: int | None
    reason: Reason | None = None
    estimate_ms: float | None = None
    notes: tuple[Reason, ...] = ()


INSUFFICIENT_DATA = LoadVerdict(None, Reason.INSUFFICIENT_DATA)


class ScaleContext(NamedTuple):
    """Context of a verdict.

    replicas: ready replicas
    minimum:  replicas that are always kept
    cancels:  whether start-ups could be withdrawn
    """

    replicas: int
    minimum: int
    cancels: bool = False

    def one_less(self) -> int:
        """Return one replica less, but not below the minimum."""
        return max(self.replicas - 1, self.minimum)


def judge_latencies(
    views: Sequence[EngineEstimate], slo_ms: float, ground: ScaleContext, step: str
) -> LoadVerdict:
    """Scale up if all engines exceed the target, down if all have room for the load of another."""
    if not views or ground.replicas == 0:
        return INSUFFICIENT_DATA
    worst = max(view.estimate_ms for view in views)
    if all(view.estimate_ms > slo_ms for view in views):
        return LoadVerdict(ground.replicas + _step_up(views, slo_ms, ground, step), None, worst)
    # A single replica stays, except that its start-up may be withdrawn.
    may_go = ground.replicas > 1 or ground.cancels
    afters = [view.after for view in views]
    if may_go and all(after is not None and after < 1.0 for after in afters):
        return LoadVerdict(ground.one_less(), None, worst)
    if may_go and any(after is not None and after >= 1.0 for after in afters):
        return LoadVerdict(None, Reason.SCALE_DOWN_REFUSED, worst)
    return LoadVerdict(None, Reason.NO_CHANGE, worst)


def _step_up(
    views: Sequence[EngineEstimate], slo_ms: float, ground: ScaleContext, step: str
) -> int:
    """Return the replicas to add: 1, or in proportion to the median excess over the target."""
    if step != "proportional":
        return 1
    ratio = median(view.estimate_ms for view in views) / slo_ms
    # The estimate grows faster than the load near saturation, hence the limit of the step.
    return max(1, min(STEP_UP_MAX, ceil(ground.replicas * (ratio - 1.0))))


def combine_verdicts(ttft: LoadVerdict, itl: LoadVerdict, replicas: int) -> LoadVerdict:
    """Scale up if either verdict does, down if both do; without a TTFT decode decides alone.

    A refusal to scale down is an opinion: it keeps the other verdict from scaling down alone.
    """
    refused = Reason.SCALE_DOWN_REFUSED in (ttft.reason, itl.reason)
    targets = [_target_or_current(verdict, replicas) for verdict in (ttft, itl)]
    ups = [target for target in targets if target is not None and target > replicas]
    worst = ttft.estimate_ms
    notes = ttft.notes + itl.notes
    if ups:
        return LoadVerdict(max(ups), None, worst, notes)
    prefill, decode = targets
    if decode is not None and decode < replicas and (prefill is None or prefill < replicas):
        return LoadVerdict(decode if prefill is None else max(prefill, decode), None, worst, notes)
    return LoadVerdict(replicas, Reason.SCALE_DOWN_REFUSED if refused else None, worst, notes)


def _target_or_current(verdict: LoadVerdict, replicas: int) -> int | None:
    """Return the target of a verdict, where a refusal to scale down means the current replicas."""
    return replicas if verdict.reason is Reason.SCALE_DOWN_REFUSED else verdict.target


class LoadThresholds(NamedTuple):
    """Thresholds of a role in an easy mode. inclusive: whether a value on the threshold counts"""

    up: float
    down: float
    up_inclusive: bool
    down_inclusive: bool


def threshold_values(
    found: dict[str, RankPasses], role: Role, limits: EngineLimits, settings: DeploymentSettings
) -> tuple[list[float], LoadThresholds] | None:
    """Return the value of each rank, in the unit of the thresholds; None if a limit is unknown."""
    passes = [one for ranks in found.values() for one in ranks]
    if role is Role.PREFILL:
        return _queue_values(passes, limits, settings)
    if not limits.max_kv_tokens:
        return None
    aggregated = settings.mode == "agg"
    values = [_kv_tokens(one, aggregated) / limits.max_kv_tokens for one in passes]
    target = settings.optimization_target
    if target == "load":
        up, down = settings.decode_scale_up_kv_rate, settings.decode_scale_down_kv_rate
        return values, LoadThresholds(up / 100.0, down / 100.0, True, True)
    up, down = (0.4, 0.1) if target == "latency" else (1.0, 0.6)
    return values, LoadThresholds(up, down, False, False)


def _queue_values(
    passes: Sequence[ForwardPass], limits: EngineLimits, settings: DeploymentSettings
) -> tuple[list[float], LoadThresholds] | None:
    """Return the queued prefill tokens of each rank, absolute or by the context length."""
    queued = [float(one.queued_prefill_tokens) for one in passes]
    if settings.optimization_target == "load":
        up, down = settings.prefill_scale_up_queue_tokens, settings.prefill_scale_down_queue_tokens
        return queued, LoadThresholds(up, down, True, True)
    if not limits.context_length:
        return None
    values = [tokens / limits.context_length for tokens in queued]
    if settings.optimization_target == "latency":
        return values, LoadThresholds(0.1, 0.0, True, True)
    return values, LoadThresholds(1.0, 0.1, True, False)


def _kv_tokens(one: ForwardPass, aggregated: bool) -> int:
    """Return the KV tokens of a rank, running and queued."""
    tokens = one.decode_kv_tokens + one.queued_decode_kv_tokens
    return tokens + one.queued_prefill_tokens if aggregated else tokens


def judge_thresholds(
    values: Sequence[float], at: LoadThresholds, ground: ScaleContext
) -> LoadVerdict:
    """Scale up if any value is above, down if all are below and stay below with one engine less."""
    if not values or ground.replicas == 0:
        return INSUFFICIENT_DATA
    n, most = ground.replicas, max(values)
    if most > at.up or (at.up_inclusive and most >= at.up):
        return LoadVerdict(n + 1)
    low = most < at.down or (at.down_inclusive and most <= at.down)
    if not low or (n <= 1 and not ground.cancels):
        return LoadVerdict(None, Reason.NO_CHANGE)
    # With one engine less the load of the others grows; scaling down into the upper threshold would
    # scale up again in the next tick.
    if n > 1 and most * n / (n - 1) >= at.up:
        kept = n if ground.cancels else None
        return LoadVerdict(kept, Reason.SCALE_DOWN_REFUSED)
    return LoadVerdict(ground.one_less())
