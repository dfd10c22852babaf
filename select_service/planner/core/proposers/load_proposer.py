"""Load proposer of a role: one replica more or less, by the engines' load at this moment.

`sla` compares estimated latencies with the targets; the other targets ("easy" modes) compare
queues and caches with thresholds and need no performance model.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from math import ceil
from statistics import median
from typing import NamedTuple

from msgspec.structs import replace

from select_service.planner.core.diagnostics import LoadRecord
from select_service.planner.core.forecast_contracts import LatencyTargets
from select_service.planner.core.performance.engine_model import EngineModel
from select_service.planner.core.proposers.engine_estimates import (
    EngineEstimate,
    LoadTerms,
    RankPasses,
    estimate_decode,
    estimate_ttft,
    has_equal_ranks,
)
from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import EngineLimits, ForwardPass, Role, TrafficWindow

MEDIAN_TICKS = 3
HOT_TICKS = 2
"""Consecutive ticks after which a hot engine, or a queue at the selector, counts."""
REPORTING_PART_MIN = 0.8
"""Minimum part of the ready engines that must report."""
STEP_UP_MAX = 4
"""Maximum number of replicas that a proportional step adds."""
INSUFFICIENT_DATA = LoadRecord(reason=Reason.INSUFFICIENT_DATA)


class ScaleContext(NamedTuple):
    """Context of a verdict on a role.

    replicas: ready replicas
    minimum:  replicas that are always kept
    cancels:  whether start-ups could be withdrawn
    """

    replicas: int
    minimum: int
    limits: EngineLimits
    cancels: bool = False

    def one_less(self) -> int:
        """Return one replica less, but not below the minimum."""
        return max(self.replicas - 1, self.minimum)


class RoleLoadProposer:
    """Load proposer of a role."""

    def __init__(self, settings: DeploymentSettings, role: Role, model: EngineModel) -> None:
        self._settings = settings
        self._role = role
        self._model = model
        self._slo = LatencyTargets(settings.ttft_ms, settings.itl_ms)
        self._history: dict[str, deque[tuple[EngineEstimate, ...]]] = {}
        self._levels: deque[dict[str, float]] = deque(maxlen=MEDIAN_TICKS)
        """Values compared with the thresholds in the last ticks, by rank."""
        self._hot: dict[str, int] = {}
        self._queued = 0
        self._ready = -1

    def complete_engines(self, engines: dict[str, RankPasses]) -> dict[str, RankPasses]:
        """Return the engines of which all ranks reported; a silent rank makes its engine silent."""
        if not self._settings.load_guards:
            return engines
        # All engines of a role have the same number of ranks, so fewer means a silent rank.
        ranks = max(map(len, engines.values()), default=0)
        return {worker: of_it for worker, of_it in engines.items() if len(of_it) == ranks}

    def clear_history(self) -> None:
        """Clear the history, after a tick without reports or with another number of replicas."""
        self._history.clear()
        self._levels.clear()
        self._hot.clear()

    def has_count_mismatch(self, engines: Mapping[str, RankPasses], ready: int) -> bool:
        """Return whether the engines that reported differ from the ready engines."""
        if not has_equal_ranks(dict(engines)):
            return True
        if not self._settings.load_guards:
            return len(engines) != ready
        # Messages get lost; waiting for every engine would block large fleets most of the time.
        return not REPORTING_PART_MIN * ready <= len(engines) <= ready

    def judge_role(
        self,
        engines: dict[str, RankPasses],
        ground: ScaleContext,
        hit_rate: float,
        accept_length: float,
    ) -> LoadRecord:
        """Return the verdict on engines that reported completely."""
        # Medians over different numbers of replicas would mix loads that are not comparable.
        if ground.replicas != self._ready:
            self._ready = ground.replicas
            self.clear_history()
        if self._settings.optimization_target != "sla":
            verdict = self._judge_easy_mode(engines, ground)
        elif not self._model.is_ready or ground.replicas == 0:
            verdict = INSUFFICIENT_DATA
        else:
            sensitivity = self._settings.load_scaling_down_sensitivity / 100.0
            limits = ground.limits
            verdict = self._judge_engines(
                engines,
                LoadTerms(ground.replicas, self._slo, sensitivity, limits, hit_rate, accept_length),
                ground,
            )
        return replace(verdict, engines=len(engines))

    def _judge_easy_mode(self, engines: dict[str, RankPasses], ground: ScaleContext) -> LoadRecord:
        """Return the verdict of an easy mode: medians of the last ticks against thresholds."""
        known = threshold_values(engines, self._role, ground.limits, self._settings)
        if known is None:
            return INSUFFICIENT_DATA
        values, thresholds = known
        if not self._settings.load_guards:
            return judge_thresholds(values, thresholds, ground)
        ranks = [f"{one.worker}/{one.rank}" for of_it in engines.values() for one in of_it]
        self._levels.append(dict(zip(ranks, values, strict=True)))
        calm = [median(tick[rank] for tick in self._levels if rank in tick) for rank in ranks]
        notes = (Reason.SILENT_ENGINES,) if len(engines) < ground.replicas else ()
        return replace(judge_thresholds(calm, thresholds, ground), notes=notes)

    def _judge_engines(
        self, engines: dict[str, RankPasses], terms: LoadTerms, ground: ScaleContext
    ) -> LoadRecord:
        """Return the verdict on engines with a known performance model."""
        has_batch = bool(terms.limits.max_num_batched_tokens)
        if self._settings.mode == "agg":
            ttft = LoadRecord()
            if has_batch:
                views = estimate_ttft(engines, self._model, terms)
                ttft = self._judge_latency("ttft", views, self._slo.ttft_ms, ground)
            views = estimate_decode(engines, self._model, terms, aggregated=True)
            itl = self._judge_latency("itl", views, self._slo.itl_ms, ground)
            return combine_verdicts(ttft, itl, ground.replicas)
        if self._role is Role.DECODE:
            views = estimate_decode(engines, self._model, terms)
            return self._judge_latency("itl", views, self._slo.itl_ms, ground)
        if not has_batch:
            return INSUFFICIENT_DATA
        views = estimate_ttft(engines, self._model, terms)
        return self._judge_latency("ttft", views, self._slo.ttft_ms, ground)

    def _judge_latency(
        self, name: str, views: Sequence[EngineEstimate], slo_ms: float, ground: ScaleContext
    ) -> LoadRecord:
        """Return the verdict on a latency target, with the guards if enabled."""
        step = self._settings.step
        if not self._settings.load_guards:
            return judge_latencies(views, slo_ms, ground, step)
        calm = self._recent_medians(name, views)
        verdict = judge_latencies(calm, slo_ms, ground, step)
        return self._with_guards(name, calm, slo_ms, ground, verdict)

    def _recent_medians(self, name: str, views: Sequence[EngineEstimate]) -> list[EngineEstimate]:
        """Return the medians of the last ticks, engine by engine."""
        history = self._history.setdefault(name, deque(maxlen=MEDIAN_TICKS))
        history.append(tuple(views))
        seen: dict[str, list[EngineEstimate]] = {}
        for tick in history:
            for view in tick:
                seen.setdefault(view.worker, []).append(view)
        return [_median_estimate(seen[view.worker]) for view in views]

    def _with_guards(
        self,
        name: str,
        views: Sequence[EngineEstimate],
        slo_ms: float,
        ground: ScaleContext,
        verdict: LoadRecord,
    ) -> LoadRecord:
        """Scale up for a hot engine that persists, and note silent engines."""
        notes = verdict.notes
        if len(views) < ground.replicas:
            notes = (*notes, Reason.SILENT_ENGINES)
        hot = _hot_request_part(views, slo_ms) > 1.0 - self._settings.attainment
        self._hot[name] = self._hot.get(name, 0) + 1 if hot else 0
        up = verdict.target is not None and verdict.target > ground.replicas
        if not hot or up:
            return replace(verdict, notes=notes)
        # A hot engine among idle engines is a routing problem that more replicas would not solve.
        if median(view.estimate_ms for view in views) < slo_ms / 2.0:
            notes = (*notes, Reason.IMBALANCE)
        if self._hot[name] >= HOT_TICKS:
            return LoadRecord(
                target=ground.replicas + 1,
                estimate_ms=verdict.estimate_ms,
                notes=(*notes, Reason.HOT_ENGINE),
            )
        # One hot tick may be chance: it already prevents a step down, and not yet causes a step up.
        if verdict.target is not None and verdict.target < ground.replicas:
            verdict = replace(verdict, target=None, reason=Reason.NO_CHANGE)
        return replace(verdict, notes=notes)

    def has_selector_queue(self, traffic: TrafficWindow | None) -> bool:
        """Return whether requests queued at the selector or were refused, in consecutive ticks."""
        if traffic is None or not self._settings.load_guards:
            return False
        # A queue shorter than one request on average is normal scheduling.
        waits = traffic.rejected > 0.0 or traffic.queued_requests >= 1.0
        self._queued = self._queued + 1 if waits else 0
        return self._queued >= HOT_TICKS


def _median_estimate(views: Sequence[EngineEstimate]) -> EngineEstimate:
    """Return the median of the estimates of an engine."""
    afters = [view.after for view in views if view.after is not None]
    return views[-1]._replace(
        estimate_ms=median(view.estimate_ms for view in views),
        after=median(afters) if len(afters) == len(views) else None,
    )


def _hot_request_part(views: Sequence[EngineEstimate], slo_ms: float) -> float:
    """Return the part of the requests that are on engines above the target.

    Selectors report requests that wait for prefill as tokens only: then engines count alike.
    """
    total = sum(view.weight for view in views)
    if total <= 0.0:
        views, total = [view._replace(weight=1.0) for view in views], float(len(views))
    hot = sum(view.weight for view in views if view.estimate_ms > slo_ms)
    return hot / total if hot else 0.0


def judge_latencies(
    views: Sequence[EngineEstimate], slo_ms: float, ground: ScaleContext, step: str
) -> LoadRecord:
    """Scale up if all engines exceed the target, down if all have room for the load of another."""
    if not views or ground.replicas == 0:
        return INSUFFICIENT_DATA
    worst = max(view.estimate_ms for view in views)
    if all(view.estimate_ms > slo_ms for view in views):
        up = ground.replicas + _step_up(views, slo_ms, ground, step)
        return LoadRecord(target=up, estimate_ms=worst)
    # A single replica stays, except that its start-up may be withdrawn.
    may_go = ground.replicas > 1 or ground.cancels
    afters = [view.after for view in views]
    if may_go and all(after is not None and after < 1.0 for after in afters):
        return LoadRecord(target=ground.one_less(), estimate_ms=worst)
    refused = may_go and any(after is not None and after >= 1.0 for after in afters)
    reason = Reason.SCALE_DOWN_REFUSED if refused else Reason.NO_CHANGE
    return LoadRecord(reason=reason, estimate_ms=worst)


def _step_up(
    views: Sequence[EngineEstimate], slo_ms: float, ground: ScaleContext, step: str
) -> int:
    """Return the replicas to add: 1, or in proportion to the median excess over the target."""
    if step != "proportional":
        return 1
    ratio = median(view.estimate_ms for view in views) / slo_ms
    # The estimate grows faster than the load near saturation, hence the limit of the step.
    return max(1, min(STEP_UP_MAX, ceil(ground.replicas * (ratio - 1.0))))


def combine_verdicts(ttft: LoadRecord, itl: LoadRecord, replicas: int) -> LoadRecord:
    """Scale up if either verdict does, down if both do; without a TTFT decode decides alone.

    A refusal to scale down is an opinion: it keeps the other verdict from scaling down alone.
    """
    refused = Reason.SCALE_DOWN_REFUSED in (ttft.reason, itl.reason)
    prefill, decode = (
        replicas if verdict.reason is Reason.SCALE_DOWN_REFUSED else verdict.target
        for verdict in (ttft, itl)
    )
    target = max(prefill or 0, decode or 0)
    is_down = decode is not None and decode < replicas and (prefill is None or prefill < replicas)
    if target < replicas and not is_down:
        target = replicas
    return LoadRecord(
        target=target,
        reason=Reason.SCALE_DOWN_REFUSED if refused and target == replicas else None,
        estimate_ms=ttft.estimate_ms,
        itl_ms=itl.estimate_ms,
        notes=ttft.notes + itl.notes,
    )


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
) -> LoadRecord:
    """Scale up if any value is above, down if all are below and stay below with one engine less."""
    if not values or ground.replicas == 0:
        return INSUFFICIENT_DATA
    n, most = ground.replicas, max(values)
    if most > at.up or (at.up_inclusive and most >= at.up):
        return LoadRecord(target=n + 1)
    low = most < at.down or (at.down_inclusive and most <= at.down)
    if not low or (n <= 1 and not ground.cancels):
        return LoadRecord(reason=Reason.NO_CHANGE)
    # With one engine less the load of the others grows; scaling down into the upper threshold would
    # scale up again in the next tick.
    if n > 1 and most * n / (n - 1) >= at.up:
        return LoadRecord(target=n if ground.cancels else None, reason=Reason.SCALE_DOWN_REFUSED)
    return LoadRecord(target=ground.one_less())
