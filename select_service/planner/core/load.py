"""The load proposer: one replica more or less, from what engines say of this moment.

`sla` compares estimated latencies with the targets; the other targets ("easy" modes) compare
queues and caches with thresholds and need no performance model.
"""

from collections.abc import Sequence
from math import ceil
from statistics import median
from typing import NamedTuple

from select_service.planner.core.engine_views import Group, View
from select_service.planner.core.inputs import ForwardPass, Limits, Role
from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import Settings

STEP_MAX = 4
"""Replicas that a proportional step adds at most."""
EASY_MODES = frozenset({"throughput", "latency", "load"})


class Verdict(NamedTuple):
    """Of one role, before floors and budgets. target None: no opinion.

    estimate_ms: the worst of the engines
    notes:       what else was seen
    """

    target: int | None
    reason: Reason | None = None
    estimate_ms: float | None = None
    notes: tuple[Reason, ...] = ()


INSUFFICIENT = Verdict(None, Reason.INSUFFICIENT_DATA)


class Ground(NamedTuple):
    """minimum: replicas that stay;  cancels: start-ups are under way that could be withdrawn"""

    replicas: int
    minimum: int
    cancels: bool = False

    def lower(self) -> int:
        return max(self.replicas - 1, self.minimum)


def sla_verdict(views: Sequence[View], slo_ms: float, ground: Ground, step: str) -> Verdict:
    """Up when all engines are above the target, down when all could take what one of them has."""
    if not views or ground.replicas == 0:
        return INSUFFICIENT
    worst = max(view.estimate_ms for view in views)
    if all(view.estimate_ms > slo_ms for view in views):
        return Verdict(ground.replicas + _step_up(views, slo_ms, ground, step), None, worst)
    may_go = ground.replicas > 1 or ground.cancels
    afters = [view.after for view in views]
    if may_go and all(after is not None and after < 1.0 for after in afters):
        return Verdict(ground.lower(), None, worst)
    if may_go and any(after is not None and after >= 1.0 for after in afters):
        return Verdict(None, Reason.SCALE_DOWN_REFUSED, worst)
    return Verdict(None, Reason.NO_CHANGE, worst)


def _step_up(views: Sequence[View], slo_ms: float, ground: Ground, step: str) -> int:
    if step != "proportional":
        return 1
    ratio = median(view.estimate_ms for view in views) / slo_ms
    return max(1, min(STEP_MAX, ceil(ground.replicas * (ratio - 1.0))))


def aggregated_verdict(ttft: Verdict, itl: Verdict, replicas: int) -> Verdict:
    """Up when either says so, down when both do; without a TTFT decode decides alone.

    A refusal is no missing signal: it keeps the other from going down alone.
    """
    refused = Reason.SCALE_DOWN_REFUSED in (ttft.reason, itl.reason)
    targets = [_standing(verdict, replicas) for verdict in (ttft, itl)]
    ups = [target for target in targets if target is not None and target > replicas]
    worst = ttft.estimate_ms
    notes = ttft.notes + itl.notes
    if ups:
        return Verdict(max(ups), None, worst, notes)
    prefill, decode = targets
    if decode is not None and decode < replicas and (prefill is None or prefill < replicas):
        return Verdict(decode if prefill is None else max(prefill, decode), None, worst, notes)
    return Verdict(replicas, Reason.SCALE_DOWN_REFUSED if refused else None, worst, notes)


def _standing(verdict: Verdict, replicas: int) -> int | None:
    return replicas if verdict.reason is Reason.SCALE_DOWN_REFUSED else verdict.target


class Thresholds(NamedTuple):
    """Of one role in an easy mode. inclusive: the thresholds themselves count."""

    up: float
    down: float
    up_inclusive: bool
    down_inclusive: bool


def easy_values(
    found: dict[str, Group], role: Role, limits: Limits, settings: Settings
) -> tuple[list[float], Thresholds] | None:
    """What each rank has, in the unit of the thresholds; None: a limit is not known."""
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
        return values, Thresholds(up / 100.0, down / 100.0, True, True)
    up, down = (0.4, 0.1) if target == "latency" else (1.0, 0.6)
    return values, Thresholds(up, down, False, False)


def _queue_values(
    passes: Sequence[ForwardPass], limits: Limits, settings: Settings
) -> tuple[list[float], Thresholds] | None:
    queued = [float(one.queued_prefill_tokens) for one in passes]
    if settings.optimization_target == "load":
        up, down = settings.prefill_scale_up_queue_tokens, settings.prefill_scale_down_queue_tokens
        return queued, Thresholds(up, down, True, True)
    if not limits.context_length:
        return None
    values = [tokens / limits.context_length for tokens in queued]
    if settings.optimization_target == "latency":
        return values, Thresholds(0.1, 0.0, True, True)
    return values, Thresholds(1.0, 0.1, True, False)


def _kv_tokens(one: ForwardPass, aggregated: bool) -> int:
    tokens = one.decode_kv_tokens + one.queued_decode_kv_tokens
    return tokens + one.queued_prefill_tokens if aggregated else tokens


def easy_verdict(values: Sequence[float], at: Thresholds, ground: Ground) -> Verdict:
    """Up when any is above, down when all are below and stay so with one engine less."""
    if not values or ground.replicas == 0:
        return INSUFFICIENT
    n, most = ground.replicas, max(values)
    if most > at.up or (at.up_inclusive and most >= at.up):
        return Verdict(n + 1)
    low = most < at.down or (at.down_inclusive and most <= at.down)
    if not low or (n <= 1 and not ground.cancels):
        return Verdict(None, Reason.NO_CHANGE)
    if n > 1 and most * n / (n - 1) >= at.up:
        kept = n if ground.cancels else None
        return Verdict(kept, Reason.SCALE_DOWN_REFUSED)
    return Verdict(ground.lower())
