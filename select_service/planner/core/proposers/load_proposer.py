"""Load proposer of a role, with its state between ticks."""

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from select_service.planner.core.forecast_contracts import LatencyTargets
from select_service.planner.core.performance.engine_model import EngineModel
from select_service.planner.core.proposers.engine_estimates import (
    EngineEstimate,
    LoadTerms,
    RankPasses,
    estimate_aggregated_ttft,
    estimate_decode,
    estimate_prefill,
    has_equal_ranks,
)
from select_service.planner.core.proposers.load_verdicts import (
    INSUFFICIENT_DATA,
    LoadVerdict,
    ScaleContext,
    combine_verdicts,
    judge_latencies,
    judge_thresholds,
    threshold_values,
)
from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import EngineLimits, Role, TrafficWindow

MEDIAN_TICKS = 3
HOT_TICKS = 2
"""Consecutive ticks after which a hot engine, or a queue at the selector, counts."""
REPORTING_PART_MIN = 0.8
"""Minimum part of the ready engines that must report."""


class LoadRoleState(NamedTuple):
    """State of a role.

    ready, minimum: replicas
    cancels:        whether start-ups could be withdrawn
    """

    ready: int
    minimum: int
    limits: EngineLimits
    cancels: bool = False


class RoleVerdict(NamedTuple):
    """Verdict with its basis. itl_ms: time between tokens of engines that also prefill"""

    verdict: LoadVerdict
    engines: int
    itl_ms: float | None = None


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
        state: LoadRoleState,
        hit_rate: float,
        accept_length: float,
    ) -> RoleVerdict:
        """Return the verdict on engines that reported completely."""
        ground = ScaleContext(state.ready, state.minimum, state.cancels)
        # Medians over different numbers of replicas would mix loads that are not comparable.
        if state.ready != self._ready:
            self._ready = state.ready
            self.clear_history()
        if self._settings.optimization_target != "sla":
            return RoleVerdict(self._judge_easy_mode(engines, state, ground), len(engines))
        if not self._model.is_ready or state.ready == 0:
            return RoleVerdict(INSUFFICIENT_DATA, len(engines))
        terms = LoadTerms(
            state.ready,
            self._slo,
            self._settings.load_scaling_down_sensitivity / 100.0,
            state.limits,
            hit_rate,
            accept_length,
        )
        if self._settings.mode == "agg":
            return self._judge_aggregated(engines, terms, ground)
        if self._role is Role.PREFILL:
            if not state.limits.max_num_batched_tokens:
                return RoleVerdict(INSUFFICIENT_DATA, len(engines))
            views = estimate_prefill(engines, self._model, terms)
            return RoleVerdict(
                self._judge_latency("ttft", views, self._slo.ttft_ms, ground), len(engines)
            )
        views = estimate_decode(engines, self._model, terms)
        return RoleVerdict(
            self._judge_latency("itl", views, self._slo.itl_ms, ground), len(engines)
        )

    def _judge_easy_mode(
        self, engines: dict[str, RankPasses], state: LoadRoleState, ground: ScaleContext
    ) -> LoadVerdict:
        """Return the verdict of an easy mode: medians of the last ticks against thresholds."""
        known = threshold_values(engines, self._role, state.limits, self._settings)
        if known is None:
            return INSUFFICIENT_DATA
        values, thresholds = known
        if not self._settings.load_guards:
            return judge_thresholds(values, thresholds, ground)
        ranks = [f"{one.worker}/{one.rank}" for of_it in engines.values() for one in of_it]
        self._levels.append(dict(zip(ranks, values, strict=True)))
        calm = [median(tick[rank] for tick in self._levels if rank in tick) for rank in ranks]
        notes = (Reason.SILENT_ENGINES,) if len(engines) < ground.replicas else ()
        return judge_thresholds(calm, thresholds, ground)._replace(notes=notes)

    def _judge_aggregated(
        self, engines: dict[str, RankPasses], terms: LoadTerms, ground: ScaleContext
    ) -> RoleVerdict:
        """Return the verdict on engines that prefill and decode."""
        ttft = LoadVerdict(None)
        if terms.limits.max_num_batched_tokens:
            views = estimate_aggregated_ttft(engines, self._model, terms)
            ttft = self._judge_latency("ttft", views, self._slo.ttft_ms, ground)
        views = estimate_decode(engines, self._model, terms, aggregated=True)
        itl = self._judge_latency("itl", views, self._slo.itl_ms, ground)
        both = combine_verdicts(ttft, itl, ground.replicas)
        return RoleVerdict(both, len(engines), itl.estimate_ms)

    def _judge_latency(
        self, name: str, views: Sequence[EngineEstimate], slo_ms: float, ground: ScaleContext
    ) -> LoadVerdict:
        """Return the verdict on one latency target, with the guards if enabled."""
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
        verdict: LoadVerdict,
    ) -> LoadVerdict:
        """Scale up for a hot engine that persists, and note silent engines."""
        notes = verdict.notes
        if len(views) < ground.replicas:
            notes = (*notes, Reason.SILENT_ENGINES)
        hot = _hot_request_part(views, slo_ms) > 1.0 - self._settings.attainment
        self._hot[name] = self._hot.get(name, 0) + 1 if hot else 0
        up = verdict.target is not None and verdict.target > ground.replicas
        if not hot or up:
            return verdict._replace(notes=notes)
        # A hot engine among idle ones is a routing problem that more replicas would not solve.
        if median(view.estimate_ms for view in views) < slo_ms / 2.0:
            notes = (*notes, Reason.IMBALANCE)
        if self._hot[name] < HOT_TICKS:
            # One hot tick may be chance: it already prevents a step down, and not yet causes a step
            # up.
            held = LoadVerdict(None, Reason.NO_CHANGE, verdict.estimate_ms, notes)
            return held if _is_step_down(verdict, ground) else verdict._replace(notes=notes)
        return LoadVerdict(
            ground.replicas + 1, None, verdict.estimate_ms, (*notes, Reason.HOT_ENGINE)
        )

    def has_selector_queue(self, traffic: TrafficWindow | None) -> bool:
        """Return whether requests queued at the selector or were refused, in consecutive ticks."""
        if traffic is None or not self._settings.load_guards:
            return False
        # A queue shorter than one request on average is normal scheduling.
        waits = traffic.rejected > 0.0 or traffic.queued_requests >= 1.0
        self._queued = self._queued + 1 if waits else 0
        return self._queued >= HOT_TICKS

    def check_invariants(self) -> None:
        """Raise AssertionError if an invariant is broken (for tests)."""
        assert all(len(ticks) <= MEDIAN_TICKS for ticks in self._history.values())
        assert len(self._levels) <= MEDIAN_TICKS
        assert all(count >= 0 for count in self._hot.values())


def _is_step_down(verdict: LoadVerdict, ground: ScaleContext) -> bool:
    """Return whether a verdict removes replicas."""
    return verdict.target is not None and verdict.target < ground.replicas


def _median_estimate(views: Sequence[EngineEstimate]) -> EngineEstimate:
    """Return the median of the estimates of one engine."""
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
