"""What load says of all roles of a deployment, with what it remembers between ticks."""

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from select_service.planner.core.contracts import Slo
from select_service.planner.core.engine_views import (
    Group,
    Terms,
    View,
    aggregated_ttft_views,
    complete,
    decode_views,
    prefill_views,
)
from select_service.planner.core.inputs import Limits, Role, Traffic
from select_service.planner.core.load import (
    INSUFFICIENT,
    Ground,
    Verdict,
    aggregated_verdict,
    easy_values,
    easy_verdict,
    sla_verdict,
)
from select_service.planner.core.perf.model import EngineModel
from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import Settings

MEDIAN_TICKS = 3
HOT_TICKS = 2
"""Ticks in a row that make an engine hot, or a queue at the selector real."""
HEARD_PART = 0.8
"""Of the engines that must be heard."""


class RoleState(NamedTuple):
    """ready, minimum: replicas;  cancels: start-ups that could be withdrawn"""

    ready: int
    minimum: int
    limits: Limits
    cancels: bool = False


class Judged(NamedTuple):
    """itl_ms: of engines that do both, besides the TTFT in the verdict"""

    verdict: Verdict
    engines: int
    itl_ms: float | None = None


class RoleLoad:
    """The load proposer of one role."""

    def __init__(self, settings: Settings, role: Role, model: EngineModel) -> None:
        self._settings = settings
        self._role = role
        self._model = model
        self._slo = Slo(settings.ttft_ms, settings.itl_ms)
        self._history: dict[str, deque[tuple[View, ...]]] = {}
        self._levels: deque[dict[str, float]] = deque(maxlen=MEDIAN_TICKS)
        """Of the thresholds, rank by rank."""
        self._hot: dict[str, int] = {}
        self._queued = 0
        self._ready = -1

    def heard(self, found: dict[str, Group]) -> dict[str, Group]:
        """Without engines of which a rank is silent: they are silent themselves."""
        if not self._settings.load_guards:
            return found
        ranks = max(map(len, found.values()), default=0)
        return {worker: of_it for worker, of_it in found.items() if len(of_it) == ranks}

    def forget(self) -> None:
        """Nothing was heard, or not of the same replicas: what comes next begins a row of ticks."""
        self._history.clear()
        self._levels.clear()
        self._hot.clear()

    def mismatched(self, found: Mapping[str, Group], ready: int) -> bool:
        """Those that spoke are not those that should be there."""
        if not complete(dict(found)):
            return True
        if not self._settings.load_guards:
            return len(found) != ready
        return not HEARD_PART * ready <= len(found) <= ready

    def judge(
        self, found: dict[str, Group], state: RoleState, hit_rate: float, accept_length: float
    ) -> Judged:
        """Of engines that are complete."""
        ground = Ground(state.ready, state.minimum, state.cancels)
        if state.ready != self._ready:
            self._ready = state.ready
            self.forget()
        if self._settings.optimization_target != "sla":
            return Judged(self._easy(found, state, ground), len(found))
        if not self._model.ready or state.ready == 0:
            return Judged(INSUFFICIENT, len(found))
        terms = Terms(
            state.ready,
            self._slo,
            self._settings.load_scaling_down_sensitivity / 100.0,
            state.limits,
            hit_rate,
            accept_length,
        )
        if self._settings.mode == "agg":
            return self._aggregated(found, terms, ground)
        if self._role is Role.PREFILL:
            if not state.limits.max_num_batched_tokens:
                return Judged(INSUFFICIENT, len(found))
            views = prefill_views(found, self._model, terms)
            return Judged(self._sla("ttft", views, self._slo.ttft_ms, ground), len(found))
        views = decode_views(found, self._model, terms)
        return Judged(self._sla("itl", views, self._slo.itl_ms, ground), len(found))

    def _easy(self, found: dict[str, Group], state: RoleState, ground: Ground) -> Verdict:
        known = easy_values(found, self._role, state.limits, self._settings)
        if known is None:
            return INSUFFICIENT
        values, thresholds = known
        if not self._settings.load_guards:
            return easy_verdict(values, thresholds, ground)
        ranks = [f"{one.worker}/{one.rank}" for of_it in found.values() for one in of_it]
        self._levels.append(dict(zip(ranks, values, strict=True)))
        calm = [median(tick[rank] for tick in self._levels if rank in tick) for rank in ranks]
        notes = (Reason.SILENT_ENGINES,) if len(found) < ground.replicas else ()
        return easy_verdict(calm, thresholds, ground)._replace(notes=notes)

    def _aggregated(self, found: dict[str, Group], terms: Terms, ground: Ground) -> Judged:
        ttft = Verdict(None)
        if terms.limits.max_num_batched_tokens:
            views = aggregated_ttft_views(found, self._model, terms)
            ttft = self._sla("ttft", views, self._slo.ttft_ms, ground)
        views = decode_views(found, self._model, terms, aggregated=True)
        itl = self._sla("itl", views, self._slo.itl_ms, ground)
        both = aggregated_verdict(ttft, itl, ground.replicas)
        return Judged(both, len(found), itl.estimate_ms)

    def _sla(self, name: str, views: Sequence[View], slo_ms: float, ground: Ground) -> Verdict:
        step = self._settings.step
        if not self._settings.load_guards:
            return sla_verdict(views, slo_ms, ground, step)
        calm = self._medians(name, views)
        verdict = sla_verdict(calm, slo_ms, ground, step)
        return self._with_guards(name, calm, slo_ms, ground, verdict)

    def _medians(self, name: str, views: Sequence[View]) -> list[View]:
        """Of the last ticks, engine by engine."""
        history = self._history.setdefault(name, deque(maxlen=MEDIAN_TICKS))
        history.append(tuple(views))
        seen: dict[str, list[View]] = {}
        for tick in history:
            for view in tick:
                seen.setdefault(view.worker, []).append(view)
        return [_median(seen[view.worker]) for view in views]

    def _with_guards(
        self, name: str, views: Sequence[View], slo_ms: float, ground: Ground, verdict: Verdict
    ) -> Verdict:
        """A hot engine is enough to go up; silent ones are said."""
        notes = verdict.notes
        if len(views) < ground.replicas:
            notes = (*notes, Reason.SILENT_ENGINES)
        hot = _hot_part(views, slo_ms) > 1.0 - self._settings.attainment
        self._hot[name] = self._hot.get(name, 0) + 1 if hot else 0
        up = verdict.target is not None and verdict.target > ground.replicas
        if not hot or up:
            return verdict._replace(notes=notes)
        if median(view.estimate_ms for view in views) < slo_ms / 2.0:
            notes = (*notes, Reason.IMBALANCE)
        if self._hot[name] < HOT_TICKS:
            held = Verdict(None, Reason.NO_CHANGE, verdict.estimate_ms, notes)
            return held if _is_down(verdict, ground) else verdict._replace(notes=notes)
        return Verdict(ground.replicas + 1, None, verdict.estimate_ms, (*notes, Reason.HOT_ENGINE))

    def selector_waits(self, traffic: Traffic | None) -> bool:
        """Requests queue at the selector or are refused, and it was so before."""
        if traffic is None or not self._settings.load_guards:
            return False
        waits = traffic.rejected > 0.0 or traffic.queued_requests >= 1.0
        self._queued = self._queued + 1 if waits else 0
        return self._queued >= HOT_TICKS

    def check_invariants(self) -> None:
        """For tests."""
        assert all(len(ticks) <= MEDIAN_TICKS for ticks in self._history.values())
        assert len(self._levels) <= MEDIAN_TICKS
        assert all(count >= 0 for count in self._hot.values())


def _is_down(verdict: Verdict, ground: Ground) -> bool:
    return verdict.target is not None and verdict.target < ground.replicas


def _median(views: Sequence[View]) -> View:
    afters = [view.after for view in views if view.after is not None]
    return views[-1]._replace(
        estimate_ms=median(view.estimate_ms for view in views),
        after=median(afters) if len(afters) == len(views) else None,
    )


def _hot_part(views: Sequence[View], slo_ms: float) -> float:
    """Part of the requests that sit on engines above the target.

    Selectors know what waits for prefill as tokens alone: then engines count alike.
    """
    total = sum(view.weight for view in views)
    if total <= 0.0:
        views, total = [view._replace(weight=1.0) for view in views], float(len(views))
    hot = sum(view.weight for view in views if view.estimate_ms > slo_ms)
    return hot / total if hot else 0.0
