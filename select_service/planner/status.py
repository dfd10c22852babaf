"""What is known of deployments after each tick, for metrics, the API and reports. No I/O.

A replay feeds it as the loop does, so that both show the same.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping

from msgspec import Struct

from select_service.planner.connectors.base import Decision
from select_service.planner.core.contracts import Said
from select_service.planner.core.diagnostics import Diagnostics, RoleDiagnostics, Sized
from select_service.planner.core.inputs import Role, TickInput, Traffic
from select_service.planner.core.reasons import Reason
from select_service.planner.core.schedule import load_on, throughput_on
from select_service.planner.core.settings import Settings
from select_service.planner.core.tick import Effects
from select_service.planner.history import History, Table

HISTORY_ROWS_MAX = 50_000
"""Ticks of a deployment; then every second one goes. 7 MB."""
HISTORIES_ROWS_MAX = 1_000_000
"""Of all deployments together. 136 MB."""
CHANGES_MAX = 2_000
"""Newest decisions to change a number, of a deployment."""

COLUMNS = (
    "at_s",
    "prefill_ready",
    "prefill_total",
    "prefill_decided",
    "decode_ready",
    "decode_total",
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
"""Of the history. A total is of ready and starting replicas. Rates are requests a second;
`demand_s` is the forecast with its quantile."""

READY = ("prefill_ready", "decode_ready")
ESTIMATED = ("ttft_estimated_ms", "itl_estimated_ms")
OBSERVED = ("requests_s", "ttft_observed_ms", "itl_observed_ms", "ttft_met", "itl_met")
"""Columns that say nothing once replicas, engines or traffic are not known."""


class Change(Struct, frozen=True, kw_only=True):
    """A decision for another number of replicas of one role. applied: what became of it"""

    at_s: float
    role: Role
    before: int
    wanted: int
    reasons: tuple[Reason, ...]
    applied: str | None


class Met(Struct):
    """Requests whose latency callers reported, and those that kept the target."""

    requests: float = 0.0
    kept: float = 0.0

    @property
    def part(self) -> float | None:
        return self.kept / self.requests if self.requests > 0.0 else None


class DeploymentStatus:
    """One deployment. Everything counted is since the start of the process."""

    def __init__(self, name: str, settings: Settings, rows_max: int = HISTORY_ROWS_MAX) -> None:
        self.name = name
        self.settings = settings
        self.tick: TickInput | None = None
        self.diagnostics: Diagnostics | None = None
        self.applied: Decision | None = None
        self.traffic: Traffic | None = None
        """Of the last window; None: it is not known."""
        self.load_reason: Reason | None = None
        self.throughput_reason: Reason | None = None
        self.forecast: Said | None = None
        self.sized: dict[Role, Sized] = {}
        """As the last tick said them that ran their loop."""
        self.ticks = 0
        self.by_reason: Counter[Reason] = Counter()
        """Ticks that gave a reason, each once."""
        self.reversals: Counter[Role] = Counter()
        self.scale_ups: Counter[Role] = Counter()
        self.scale_downs: Counter[Role] = Counter()
        self.gpu_seconds = 0.0
        self.met = {"ttft": Met(), "itl": Met()}
        self.changes: deque[Change] = deque(maxlen=CHANGES_MAX)
        self.latest: dict[str, float] = {}
        """Column of the history -> the last value, of those that are known now."""
        self._history = History(len(COLUMNS), rows_max)
        self._gpus = 0.0
        self._wished: dict[Role, int] = {}
        self._directions: dict[Role, int] = {}
        self._met_until_s = float("-inf")

    def ticked(self, tick: TickInput, effects: Effects, applied: Decision | None) -> None:
        """After each tick; times never go back. Constant time, but for the thinning."""
        said = effects.diagnostics
        self._spend(tick, said)
        self.tick, self.diagnostics, self.applied = tick, said, applied
        self.ticks += 1
        self._keep(said)
        reasons = _reasons(said)
        self.by_reason.update(reasons)
        self._follow(tick.now_s, effects.wished or {}, said, applied)
        self._attain(tick)
        row = self._row(tick, said)
        self._history.add(row)
        for column in self._unknown(tick, said):
            self.latest.pop(column, None)
        pairs = zip(COLUMNS, row, strict=True)
        self.latest.update({column: value for column, value in pairs if value is not None})

    def table(self) -> Table:
        """float64 [ticks, COLUMNS], a copy."""
        return self._history.table()

    @property
    def gpu_hours(self) -> float:
        """Of replicas that are ready or starting."""
        return self.gpu_seconds / 3600.0

    def gpus_now(self) -> float:
        """Of the last tick in which replicas were known."""
        return self._gpus

    @property
    def slo_out_of_reach(self) -> bool:
        """For the traffic of the last forecast."""
        return any(one.reason is Reason.SLO_OUT_OF_REACH for one in self.sized.values())

    def _keep(self, said: Diagnostics) -> None:
        if said.load_reason is not None:
            self.load_reason = said.load_reason
        if said.throughput_reason is not None:
            self.throughput_reason = said.throughput_reason
        if said.forecast is not None:
            self.forecast = said.forecast
        for role, one in said.roles.items():
            if one.sized is not None:
                self.sized[role] = one.sized

    def _spend(self, tick: TickInput, said: Diagnostics) -> None:
        """What stood since the last tick, until now."""
        if self.tick is not None:
            self.gpu_seconds += self._gpus * max(0.0, tick.now_s - self.tick.now_s)
        if _known(said):
            self._gpus = float(
                sum((one.ready + one.starting) * one.num_gpu for one in said.roles.values())
            )

    def _follow(
        self,
        now_s: float,
        wished: Mapping[Role, int],
        said: Diagnostics,
        applied: Decision | None,
    ) -> None:
        """A wish that is repeated until the platform has followed is one change."""
        for role, one in said.roles.items():
            have, wanted = one.ready + one.starting, wished.get(role)
            if wanted is None or wanted == have or wanted == self._wished.get(role):
                if wanted is None:
                    self._wished.pop(role, None)
                continue
            before = self._wished.get(role, have)
            self._wished[role] = wanted
            self._turn(role, 1 if wanted > before else -1)
            outcome = None if applied is None else applied.roles.get(role)
            self.changes.append(
                Change(
                    at_s=now_s,
                    role=role,
                    before=before,
                    wanted=wanted,
                    reasons=_reasons_of(said, one),
                    applied=None if outcome is None else outcome.status.value,
                )
            )

    def _turn(self, role: Role, direction: int) -> None:
        (self.scale_ups if direction > 0 else self.scale_downs)[role] += 1
        if self._directions.get(role, direction) != direction:
            self.reversals[role] += 1
        self._directions[role] = direction

    def _attain(self, tick: TickInput) -> None:
        """Windows overlap where both loops run: only the part that is new counts."""
        traffic = tick.traffic
        if traffic is None or traffic.requests is None or traffic.duration_s <= 0.0:
            return
        self.traffic = traffic
        new_s = min(traffic.duration_s, tick.now_s - self._met_until_s)
        self._met_until_s = tick.now_s
        requests = traffic.requests * max(0.0, new_s) / traffic.duration_s
        for slo, part in (("ttft", traffic.ttft_met), ("itl", traffic.itl_met)):
            if part is not None:
                self.met[slo].requests += requests
                self.met[slo].kept += requests * part

    def _unknown(self, tick: TickInput, said: Diagnostics) -> Iterator[str]:
        """Columns whose last value counts no more, unless this tick has another one."""
        if not _known(said):
            yield from READY
        if said.run_load:
            yield from ESTIMATED
        asked = said.run_throughput or (said.run_load and load_on(self.settings))
        known = tick.traffic is not None and tick.traffic.requests is not None
        if asked and not known:
            self.traffic = None
        if asked and (not known or said.run_throughput or not throughput_on(self.settings)):
            yield from OBSERVED

    def _row(self, tick: TickInput, said: Diagnostics) -> list[float | None]:
        rates = self._rates(tick, said)
        latencies = self._latencies(tick, said)
        traffic = tick.traffic
        return [
            tick.now_s,
            *self._replicas(said, Role.PREFILL),
            *self._replicas(said, Role.DECODE),
            *rates,
            *latencies,
            None if traffic is None else traffic.ttft_met,
            None if traffic is None else traffic.itl_met,
            self._gpus if _known(said) else None,
        ]

    def _replicas(self, said: Diagnostics, role: Role) -> tuple[float | None, ...]:
        one = said.roles.get(role)
        if one is None or not _known(said):
            return None, None, None
        return one.ready, one.ready + one.starting, one.final

    def _rates(self, tick: TickInput, said: Diagnostics) -> tuple[float | None, ...]:
        """Short windows of the load loop are noise beside those of the forecast."""
        traffic, forecast = tick.traffic, said.forecast
        observed: float | None = None
        counts = said.run_throughput or not throughput_on(self.settings)
        if counts and traffic is not None and traffic.requests is not None:
            observed = traffic.requests / traffic.duration_s if traffic.duration_s > 0.0 else None
        if forecast is None:
            return observed, None, None
        interval = self.settings.throughput_adjustment_interval_seconds
        return observed, forecast.requests / interval, forecast.demand_requests / interval

    def _latencies(self, tick: TickInput, said: Diagnostics) -> tuple[float | None, ...]:
        """TTFT estimated and observed, ITL estimated and observed, in ms."""
        ttft, itl = _estimates(self.settings, said)
        traffic = tick.traffic
        observed = (None, None) if traffic is None else (_ms(traffic.ttft_s), _ms(traffic.itl_s))
        return ttft, observed[0], itl, observed[1]

    def check_invariants(self) -> None:
        """For tests."""
        self._history.check_invariants()
        assert len(self._history) <= self.ticks
        assert all(count <= self.ticks for count in self.by_reason.values())
        for role in Role:
            turned = self.scale_ups[role] + self.scale_downs[role]
            assert self.reversals[role] <= max(0, turned - 1)
        assert all(0.0 <= met.kept <= met.requests * (1 + 1e-9) for met in self.met.values())


class Statuses:
    """Of all deployments, by name. A listener of the loop."""

    def __init__(self, deployments: int = 1) -> None:
        """deployments: how many there will be"""
        self._rows_max = min(HISTORY_ROWS_MAX, HISTORIES_ROWS_MAX // max(1, deployments))
        self._by_name: dict[str, DeploymentStatus] = {}

    def ticked(
        self, name: str, tick: TickInput, effects: Effects, applied: Decision | None
    ) -> None:
        self._by_name[name].ticked(tick, effects, applied)

    def changed(self, name: str, settings: Settings, now_s: float) -> None:
        """Before the first tick, and whenever the settings have changed."""
        if name in self._by_name:
            self._by_name[name].settings = settings
        else:
            self._by_name[name] = DeploymentStatus(name, settings, self._rows_max)

    def get(self, name: str) -> DeploymentStatus | None:
        return self._by_name.get(name)

    def __iter__(self) -> Iterator[DeploymentStatus]:
        """In the order in which they became known."""
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)


def _known(said: Diagnostics) -> bool:
    return Reason.REPLICAS_UNKNOWN not in said.reasons


def _reasons(said: Diagnostics) -> set[Reason]:
    found = {*said.reasons}
    found |= {each for each in (said.load_reason, said.throughput_reason) if each is not None}
    for one in said.roles.values():
        found.update(_reasons_of_role(one))
    return found


def _reasons_of_role(one: RoleDiagnostics) -> Iterator[Reason]:
    if one.sized is not None:
        yield one.sized.reason
    if one.load is not None:
        if one.load.reason is not None:
            yield one.load.reason
        yield from one.load.notes
    if one.stabilised is not None:
        yield one.stabilised.reason
    yield from one.reasons


def _reasons_of(said: Diagnostics, one: RoleDiagnostics) -> tuple[Reason, ...]:
    """Why a role changes: its own stages, then what decided for all. Each once, in order."""
    return tuple(dict.fromkeys((*_reasons_of_role(one), *said.reasons)))


def _estimates(settings: Settings, said: Diagnostics) -> tuple[float | None, float | None]:
    """Of the worst engine, TTFT and ITL in ms. Engines of `agg` estimate both."""
    if settings.optimization_target != "sla":
        return None, None
    prefill, decode = (
        None if one is None else one.load
        for one in (said.roles.get(Role.PREFILL), said.roles.get(Role.DECODE))
    )
    ttft = None if prefill is None else prefill.estimate_ms
    if decode is None:
        return ttft, None
    if settings.mode == "agg":
        return decode.estimate_ms, decode.itl_ms
    return ttft, decode.estimate_ms if decode.itl_ms is None else decode.itl_ms


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000.0
