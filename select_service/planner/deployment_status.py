"""State of deployments after each tick, for metrics, the API and reports. No I/O.

A replay feeds the state like the loop, so that both show the same.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct

from select_service.planner.connectors.connector import ConnectorDecision
from select_service.planner.core.diagnostics import RoleDiagnostics, SizingRecord, TickDiagnostics
from select_service.planner.core.forecast_contracts import ForecastRecord
from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import (
    DeploymentSettings,
    is_load_enabled,
    is_throughput_enabled,
)
from select_service.planner.core.stages import CallOutcome, PluginCall, Stage
from select_service.planner.core.tick import TickEffects
from select_service.planner.core.tick_input import Role, TickInput, TrafficWindow
from select_service.planner.thinned_history import Table, ThinnedHistory

HISTORY_ROWS_MAX = 50_000
"""Maximum ticks of a deployment, 9 MB; beyond, every second one is dropped."""
HISTORIES_ROWS_MAX = 1_000_000
"""Maximum ticks of all deployments together, 168 MB."""
CHANGES_MAX = 2_000
"""Maximum decisions of a deployment that are kept, the newest."""

COLUMNS = (
    "at_s",
    "prefill_ready",
    "prefill_total",
    "prefill_occupied",
    "prefill_serving",
    "prefill_draining",
    "prefill_decided",
    "decode_ready",
    "decode_total",
    "decode_occupied",
    "decode_serving",
    "decode_draining",
    "decode_decided",
    "requests_s",
    "forecast_s",
    "demand_s",
    "ttft_estimated_ms",
    "ttft_observed_ms",
    "itl_estimated_ms",
    "itl_observed_ms",
    "ttft_met",
    "itl_met",
    "gpus",
)
"""Columns of the history. Totals count ready and starting replicas, `occupied` also lost replicas;
`draining` counts serving and draining replicas, as the top of an area. Rates are requests a second;
`demand_s` is the forecast at its quantile.
"""

UP_REASONS = frozenset(
    {Reason.SCALE_UP, Reason.UP, Reason.HOT_ENGINE, Reason.SELECTOR_QUEUE, Reason.BELOW_MINIMUM}
    | {Reason.WAKE_UP}
)
DOWN_REASONS = frozenset({Reason.SCALE_DOWN, Reason.DOWN, Reason.STARTUP_DOWN, Reason.IDLE})
"""Reasons that explain one direction only."""

READY = ("prefill_ready", "decode_ready")
ESTIMATED = ("ttft_estimated_ms", "itl_estimated_ms")
OBSERVED = ("requests_s", "ttft_observed_ms", "itl_observed_ms", "ttft_met", "itl_met")
"""Columns that become unknown when replicas, engines or traffic are unknown."""


class ReplicaChange(Struct, frozen=True, kw_only=True):
    """Decision to change the replicas of a role.

    applied:    outcome at the platform
    decided_by: builtin loop or plugin that gave or bounded the number
    """

    at_s: float
    role: Role
    before: int
    wanted: int
    reasons: tuple[Reason, ...]
    applied: str | None
    decided_by: str | None = None


class TargetAttainment(Struct):
    """Requests with a latency reported by callers, and the part of them that kept the target."""

    requests: float = 0.0
    kept: float = 0.0

    @property
    def attained_part(self) -> float | None:
        """Part of the requests that kept the target; None without requests."""
        return self.kept / self.requests if self.requests > 0.0 else None


class PluginCallKind(NamedTuple):
    """Kind of the calls that are counted together."""

    plugin: str
    stage: Stage
    outcome: CallOutcome


class DeploymentStatus:
    """State of a deployment. All counters are since the start of the process."""

    def __init__(
        self, name: str, settings: DeploymentSettings, rows_max: int = HISTORY_ROWS_MAX
    ) -> None:
        self.name = name
        self.settings = settings
        self.tick: TickInput | None = None
        self.diagnostics: TickDiagnostics | None = None
        self.applied: ConnectorDecision | None = None
        self.traffic: TrafficWindow | None = None
        """Traffic of the last window; None if unknown."""
        self.load_reason: Reason | None = None
        self.throughput_reason: Reason | None = None
        self.forecast: ForecastRecord | None = None
        self.sized: dict[Role, SizingRecord] = {}
        """Sizes by the last tick that ran the throughput loop."""
        self.ticks = 0
        self.by_reason: Counter[Reason] = Counter()
        """Number of ticks by reason, each reason counted once a tick."""
        self.plugin_calls: Counter[PluginCallKind] = Counter()
        """Number of calls by plugin, stage and outcome."""
        self.last_calls: dict[str, PluginCall] = {}
        """Last call of each plugin."""
        self.reversals: Counter[Role] = Counter()
        self.scale_ups: Counter[Role] = Counter()
        self.scale_downs: Counter[Role] = Counter()
        self.gpu_seconds = 0.0
        self.met = {"ttft": TargetAttainment(), "itl": TargetAttainment()}
        self.changes: deque[ReplicaChange] = deque(maxlen=CHANGES_MAX)
        self.latest: dict[str, float] = {}
        """Last value of each column of the history that is known now."""
        self._history = ThinnedHistory(len(COLUMNS), rows_max)
        self._gpus = 0.0
        self._desired: dict[Role, int] = {}
        self._directions: dict[Role, int] = {}
        self._met_until_s = float("-inf")

    def add_tick(
        self, tick: TickInput, effects: TickEffects, applied: ConnectorDecision | None
    ) -> None:
        """Add a tick; times must not decrease. Constant time except for the thinning."""
        said = effects.diagnostics
        # Before the new tick is stored, as the GPUs of the last tick count until now.
        self._add_gpu_seconds(tick, said)
        self.tick, self.diagnostics, self.applied = tick, said, applied
        self.ticks += 1
        self._store_loop_results(said)
        reasons = _tick_reasons(said)
        self.by_reason.update(reasons)
        self.plugin_calls.update(
            PluginCallKind(call.plugin, call.stage, call.outcome) for call in said.plugins
        )
        self.last_calls = self.last_calls | {call.plugin: call for call in said.plugins}
        self._record_changes(tick.now_s, effects.wished or {}, said, applied)
        self._count_attainment(tick)
        values = self._column_values(tick, said)
        self._history.add_row([values.get(column) for column in COLUMNS])
        for column in self._outdated_columns(tick, said):
            self.latest.pop(column, None)
        self.latest |= {column: value for column, value in values.items() if value is not None}

    def history_table(self) -> Table:
        """Return the history, float64 [ticks, COLUMNS], as a copy."""
        return self._history.copy_table()

    @property
    def gpu_hours(self) -> float:
        """GPU hours of ready and starting replicas."""
        return self.gpu_seconds / 3600.0

    def gpus_now(self) -> float:
        """Return the GPUs in the last tick with known replicas."""
        return self._gpus

    @property
    def slo_out_of_reach(self) -> bool:
        """Whether no number of replicas keeps the target for the last forecast."""
        return any(one.reason is Reason.SLO_OUT_OF_REACH for one in self.sized.values())

    def _store_loop_results(self, diagnostics: TickDiagnostics) -> None:
        """Store the last results of the loops."""
        if diagnostics.load_reason is not None:
            self.load_reason = diagnostics.load_reason
        if diagnostics.throughput_reason is not None:
            self.throughput_reason = diagnostics.throughput_reason
        if diagnostics.forecast is not None:
            self.forecast = diagnostics.forecast
        for role, one in diagnostics.roles.items():
            if one.sized is not None:
                self.sized[role] = one.sized

    def _add_gpu_seconds(self, tick: TickInput, diagnostics: TickDiagnostics) -> None:
        """Add the GPU seconds since the last tick."""
        if self.tick is not None:
            self.gpu_seconds += self._gpus * max(0.0, tick.now_s - self.tick.now_s)
        if _replicas_known(diagnostics):
            self._gpus = float(
                sum(
                    (one.ready + one.starting + one.lost) * one.num_gpu
                    for one in diagnostics.roles.values()
                )
            )

    def _record_changes(
        self,
        now_s: float,
        desired: Mapping[Role, int],
        diagnostics: TickDiagnostics,
        applied: ConnectorDecision | None,
    ) -> None:
        """Record new decisions; a decision repeated until the platform has followed counts once."""
        for role, one in diagnostics.roles.items():
            have, wanted = one.ready + one.starting + one.lost, desired.get(role)
            # A platform needs several ticks to follow; the same target meanwhile is not a new
            # decision.
            if wanted is None or wanted == have or wanted == self._desired.get(role):
                if wanted is None:
                    self._desired.pop(role, None)
                continue
            self._desired[role] = wanted
            self._count_change(role, 1 if wanted > have else -1)
            outcome = None if applied is None else applied.roles.get(role)
            self.changes.append(
                ReplicaChange(
                    at_s=now_s,
                    role=role,
                    # What runs or starts: stages compare with it, not with the last decision.
                    before=have,
                    wanted=wanted,
                    reasons=find_change_reasons(diagnostics, role, wanted),
                    applied=None if outcome is None else outcome.status.value,
                    decided_by=one.decided_by,
                )
            )

    def _count_change(self, role: Role, direction: int) -> None:
        """Count a change, and a reversal of direction."""
        (self.scale_ups if direction > 0 else self.scale_downs)[role] += 1
        if self._directions.get(role, direction) != direction:
            self.reversals[role] += 1
        self._directions[role] = direction

    def _count_attainment(self, tick: TickInput) -> None:
        """Count requests in time.

        Windows overlap if both loops run, so only the new part counts.
        """
        traffic = tick.traffic
        if traffic is None or traffic.requests is None or traffic.duration_s <= 0.0:
            return
        self.traffic = traffic
        # The load loop's short windows lie inside of the throughput loop's long ones: counting both
        # in full would count requests twice.
        new_s = min(traffic.duration_s, tick.now_s - self._met_until_s)
        self._met_until_s = tick.now_s
        requests = traffic.requests * max(0.0, new_s) / traffic.duration_s
        for slo, part in (("ttft", traffic.ttft_met), ("itl", traffic.itl_met)):
            if part is not None:
                self.met[slo].requests += requests
                self.met[slo].kept += requests * part

    def _outdated_columns(self, tick: TickInput, diagnostics: TickDiagnostics) -> Iterator[str]:
        """Yield the columns with an outdated last value, unless this tick has another value."""
        if not _replicas_known(diagnostics):
            yield from READY
        if diagnostics.run_load:
            yield from ESTIMATED
        asked = diagnostics.run_throughput or (
            diagnostics.run_load and is_load_enabled(self.settings)
        )
        known = tick.traffic is not None and tick.traffic.requests is not None
        if asked and not known:
            self.traffic = None
        if asked and (
            not known or diagnostics.run_throughput or not is_throughput_enabled(self.settings)
        ):
            yield from OBSERVED

    def _column_values(
        self, tick: TickInput, diagnostics: TickDiagnostics
    ) -> dict[str, float | None]:
        """Return the values of a tick by column of the history; omitted values are unknown."""
        found: dict[str, float | None] = {"at_s": tick.now_s}
        if _replicas_known(diagnostics):
            found["gpus"] = self._gpus
            for role, one in diagnostics.roles.items():
                found[f"{role}_ready"] = one.ready
                serving = one.ready if one.serving is None else one.serving
                found[f"{role}_serving"] = serving
                found[f"{role}_draining"] = serving + one.draining
                total = max(one.ready + one.starting, serving + one.draining)
                found[f"{role}_total"] = total
                found[f"{role}_occupied"] = total + one.lost
                found[f"{role}_decided"] = one.final
        ttft_ms, itl_ms = _worst_latencies_ms(self.settings, diagnostics)
        found |= {"ttft_estimated_ms": ttft_ms, "itl_estimated_ms": itl_ms}
        if diagnostics.forecast is not None:
            interval_s = self.settings.throughput_adjustment_interval_seconds
            found["forecast_s"] = diagnostics.forecast.requests / interval_s
            found["demand_s"] = diagnostics.forecast.demand_requests / interval_s
        traffic = tick.traffic
        if traffic is None:
            return found
        for slo, met, mean_s in (
            ("ttft", traffic.ttft_met, traffic.ttft_s),
            ("itl", traffic.itl_met, traffic.itl_s),
        ):
            found[f"{slo}_met"] = met
            found[f"{slo}_observed_ms"] = None if mean_s is None else mean_s * 1000.0
        # Short windows of the load loop are too noisy for a rate.
        counts = diagnostics.run_throughput or not is_throughput_enabled(self.settings)
        if counts and traffic.requests is not None and traffic.duration_s > 0.0:
            found["requests_s"] = traffic.requests / traffic.duration_s
        return found


class DeploymentStatuses:
    """States of all deployments by name; a listener of the loop."""

    def __init__(self, deployments: int = 1) -> None:
        """Set the rows of each history. deployments: expected number of deployments"""
        # Memory is bounded over all deployments, so with many of them each keeps fewer rows.
        self._rows_max = min(HISTORY_ROWS_MAX, HISTORIES_ROWS_MAX // max(1, deployments))
        self._by_name: dict[str, DeploymentStatus] = {}

    def ticked(
        self, name: str, tick: TickInput, effects: TickEffects, applied: ConnectorDecision | None
    ) -> None:
        """Add a tick of a deployment."""
        self._by_name[name].add_tick(tick, effects, applied)

    def changed(self, name: str, settings: DeploymentSettings, now_s: float) -> None:
        """Store the settings, before the first tick and after each change."""
        if name in self._by_name:
            self._by_name[name].settings = settings
        else:
            self._by_name[name] = DeploymentStatus(name, settings, self._rows_max)

    def find_status(self, name: str) -> DeploymentStatus | None:
        """Return the state of a deployment, or None."""
        return self._by_name.get(name)

    def __iter__(self) -> Iterator[DeploymentStatus]:
        """Iterate in the order of the first appearance."""
        # A copy, as metrics may be collected in another thread.
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)


def _replicas_known(diagnostics: TickDiagnostics) -> bool:
    """Return whether replicas were known in the tick."""
    return Reason.REPLICAS_UNKNOWN not in diagnostics.reasons


def _tick_reasons(diagnostics: TickDiagnostics) -> set[Reason]:
    """Return all reasons of a tick."""
    found = {*diagnostics.reasons}
    found |= {
        each
        for each in (diagnostics.load_reason, diagnostics.throughput_reason)
        if each is not None
    }
    for one in diagnostics.roles.values():
        found.update(_role_stage_reasons(one))
    return found


def agreeing_reasons(reasons: Iterable[Reason], *, is_up: bool) -> tuple[Reason, ...]:
    """Return the reasons of a step, each once, without those for the other direction.

    Stages may differ: load that asks for less does not explain a step up of the forecast.
    """
    other = DOWN_REASONS if is_up else UP_REASONS
    return tuple(reason for reason in dict.fromkeys(reasons) if reason not in other)


def find_change_reasons(
    diagnostics: TickDiagnostics, role: Role, wanted: int
) -> tuple[Reason, ...]:
    """Return the reasons of a change to `wanted` replicas of a role, each once."""
    one = diagnostics.roles[role]
    is_up = wanted > one.ready + one.starting + one.lost
    # The role's own stages first: they are closer to the step than the common reasons.
    return agreeing_reasons((*_role_stage_reasons(one), *diagnostics.reasons), is_up=is_up)


def _role_stage_reasons(one: RoleDiagnostics) -> Iterator[Reason]:
    """Yield the reasons of a role's stages."""
    if one.sized is not None:
        yield one.sized.reason
    if one.load is not None:
        if one.load.reason is not None:
            yield one.load.reason
        yield from one.load.notes
    if one.stabilised is not None:
        yield one.stabilised.reason
    yield from one.reasons


def _worst_latencies_ms(
    settings: DeploymentSettings, diagnostics: TickDiagnostics
) -> tuple[float | None, float | None]:
    """Return TTFT and ITL of the worst engine, ms. Engines of `agg` estimate both."""
    if settings.optimization_target != "sla":
        return None, None
    prefill, decode = (
        None if one is None else one.load
        for one in (diagnostics.roles.get(Role.PREFILL), diagnostics.roles.get(Role.DECODE))
    )
    ttft = None if prefill is None else prefill.estimate_ms
    if decode is None:
        return ttft, None
    if settings.mode == "agg":
        return decode.estimate_ms, decode.itl_ms
    return ttft, decode.estimate_ms if decode.itl_ms is None else decode.itl_ms
