"""Run of the planner's core over requests, in simulated time, on engines that start and drain.

The core gets the same input as from a real fleet, at the same times, and nothing else. Neither
clocks nor random numbers are used: equal requests and settings give equal runs.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from msgspec import Struct

from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick import PlannedDeployment, TickEffects
from select_service.planner.core.tick_input import ForwardPass, Role, TickInput
from select_service.planner.replay.least_gpu_hours import ServicePromise
from select_service.planner.replay.simulated_engine import SimulatedRequest
from select_service.planner.replay.simulated_fleet import FleetOptions, SimulatedFleet
from select_service.planner.replay.simulated_observation import SimulatedWindow

AFTERWARDS_S = 3600.0
"""Time for open requests at the end, on the engines at the end, seconds."""
SAMPLE_INTERVAL_S = 5.0
"""Maximum interval between two samples of engines, seconds; each tick samples, too."""


class TickFollower(Protocol):
    """Callback for every tick."""

    def __call__(self, told: TickInput, effects: TickEffects) -> None: ...


class ReplayCourse(Struct, frozen=True, kw_only=True):
    """Course of a run. Requests arrive in order, before `until_s`.

    replicas: replicas at the beginning
    """

    fleet: FleetOptions
    replicas: Mapping[Role, int]
    until_s: float


class ReplayOutcome(Struct, kw_only=True):
    """Outcome of a run, filled during the run. Parts are of all requests that arrived.

    gpu_hours:       GPU hours of engines that start, run and drain
    least_gpu_hours: least GPU hours that could have kept the promise; None if not computed
    reversals:       decisions against the direction of the last one, by role
    failed:          requests on engines that stopped before their end
    over_budget_s:   seconds with more GPUs than `max_gpu_budget`, including draining engines
    """

    hours: float
    ticks: int = 0
    requests: int = 0
    unfinished: int = 0
    failed: int = 0
    rejected: int = 0
    attainment: float = 0.0
    attainment_ttft: float = 0.0
    attainment_itl: float = 0.0
    gpu_hours: float = 0.0
    least_gpu_hours: float | None = None
    reversals: dict[Role, int]
    scale_ups: dict[Role, int]
    scale_downs: dict[Role, int]
    most_replicas: dict[Role, int]
    most_gpus: int
    over_budget_s: float = 0.0

    @property
    def reversals_an_hour(self) -> float:
        """Reversals an hour of the role with the most."""
        return max(self.reversals.values()) / self.hours if self.hours else 0.0


class ChangeCounts:
    """Counts of changes of replicas, by role."""

    def __init__(self, roles: Iterable[Role]) -> None:
        names = tuple(roles)
        self.ups = dict.fromkeys(names, 0)
        self.downs = dict.fromkeys(names, 0)
        self.reversals = dict.fromkeys(names, 0)
        self._last: dict[Role, bool] = {}

    def count_change(self, role: Role, up: bool) -> None:
        """Count a change."""
        (self.ups if up else self.downs)[role] += 1
        self.reversals[role] += self._last.get(role, up) is not up
        self._last[role] = up


class _PromiseCounts:
    """Counts of requests that ended, and that kept the promise."""

    def __init__(self, promise: ServicePromise) -> None:
        self._promise = promise
        self.ended = self.ttft = self.itl = self.both = 0

    def add_requests(self, requests: Iterable[SimulatedRequest]) -> None:
        """Count requests."""
        for each in requests:
            ttft_s, itl_s = each.ttft_s, each.itl_s
            self.ended += 1
            self.ttft += ttft_s is not None and ttft_s <= self._promise.ttft_s
            self.itl += itl_s is None or itl_s <= self._promise.itl_s
            self.both += self._promise.is_kept(each)


class PlannerRun:
    """Run of a deployment through a course. Used once."""

    def __init__(
        self,
        settings: DeploymentSettings,
        deployment: PlannedDeployment,
        course: ReplayCourse,
        follower: TickFollower | None = None,
    ) -> None:
        """Prepare the run. deployment: a deployment that starts at 0"""
        self._deployment = deployment
        self._course = course
        self._follower = follower
        self._ceiling = settings.max_gpu_budget
        self._fleet = SimulatedFleet(course.fleet, course.replicas, 0.0)
        promise = make_promise(settings)
        self._kept = _PromiseCounts(promise)
        keep_s = max(
            settings.throughput_adjustment_interval_seconds,
            settings.load_adjustment_interval_seconds,
        )
        self._window = SimulatedWindow(promise.ttft_s, promise.itl_s, keep_s)
        self._turns = ChangeCounts(course.fleet.roles)
        self._looked_s = self._ticked_s = 0.0
        self._outcome = ReplayOutcome(
            hours=course.until_s / 3600.0,
            reversals=self._turns.reversals,
            scale_ups=self._turns.ups,
            scale_downs=self._turns.downs,
            most_replicas=dict(course.replicas),
            most_gpus=self._fleet.count_gpus(),
        )

    def run_course(
        self, requests: Iterable[SimulatedRequest], least_gpu_hours: float | None = None
    ) -> ReplayOutcome:
        """Run the course and return its outcome; the requests are modified."""
        for request in requests:
            self._run_until(request.arrived_s)
            self._outcome.requests += 1
            self._window.add_arrival(request)
            self._fleet.add_request(request, request.arrived_s)
        until_s = self._course.until_s
        self._run_until(until_s)
        self._fleet.advance_to(until_s)
        self._outcome.gpu_hours = self._fleet.gpu_s / 3600.0
        self._outcome.least_gpu_hours = least_gpu_hours
        # Open requests may still end, but the GPU hours of that time do not count.
        self._fleet.advance_to(until_s + AFTERWARDS_S)
        self._collect_finished(until_s)
        return self._complete_outcome()

    def _run_until(self, now: float) -> None:
        """Run the samples and ticks that are due."""
        while True:
            tick_s = self._deployment.next_tick.at_s
            look_s = self._looked_s + SAMPLE_INTERVAL_S
            if min(tick_s, look_s) > now:
                return
            if tick_s <= look_s:
                self._run_tick(tick_s)
            else:
                self._sample_engines(look_s)

    def _sample_engines(self, now: float) -> dict[Role, tuple[ForwardPass, ...]]:
        """Sample the engines."""
        self._looked_s = now
        self._collect_finished(now)
        found = self._fleet.current_passes()
        for passes in found.values():
            self._window.add_passes(now, passes)
        return found

    def _collect_finished(self, now: float) -> None:
        """Collect completed and rejected requests."""
        fleet = self._fleet
        fleet.advance_to(now)
        done, fleet.done = fleet.done, []
        self._kept.add_requests(done)
        self._window.add_finished(now, done)
        rejected, fleet.rejected = fleet.rejected, []
        self._outcome.rejected += len(rejected)
        for each in rejected:
            self._window.add_rejection(each)

    def _run_tick(self, now: float) -> None:
        """Run a tick of the planner."""
        if self._fleet.count_gpus() > self._ceiling >= 0:
            self._outcome.over_budget_s += now - self._ticked_s
        passes = self._sample_engines(now)
        self._ticked_s = now
        window_s = self._deployment.next_tick.traffic_s
        queued = self._fleet.count_held()
        told = TickInput(
            now_s=now,
            replicas=self._fleet.read_replicas(),
            traffic=None if window_s is None else self._window.read_traffic(now, window_s, queued),
            passes=passes,
        )
        effects = self._deployment.run_tick(told)
        self._outcome.ticks += 1
        self._apply_decision(effects, told, now)
        if self._follower is not None:
            self._follower(told, effects)

    def _apply_decision(self, effects: TickEffects, tick_input: TickInput, now: float) -> None:
        """Apply a decision, reductions first like connectors: raises wait for their end."""
        have = {role: each.ready + each.pending for role, each in tick_input.replicas.items()}
        wanted = {role: n for role, n in (effects.scale_to or {}).items() if n != have[role]}
        downs = {role: n for role, n in wanted.items() if n < have[role]}
        most = self._outcome.most_replicas
        # With any reduction the raises wait for the next tick, when the GPUs are free.
        for role, replicas in (downs or wanted).items():
            self._turns.count_change(role, replicas > have[role])
            self._fleet.scale_role(role, replicas, now)
            most[role] = max(most[role], replicas)
        self._outcome.most_gpus = max(self._outcome.most_gpus, self._fleet.count_gpus())

    def _complete_outcome(self) -> ReplayOutcome:
        """Return the outcome with the results of the requests."""
        outcome, kept = self._outcome, self._kept
        total = max(1, outcome.requests)
        outcome.failed = self._fleet.failed
        outcome.unfinished = outcome.requests - kept.ended - outcome.failed - outcome.rejected
        outcome.attainment = kept.both / total
        outcome.attainment_ttft = kept.ttft / total
        outcome.attainment_itl = kept.itl / total
        return outcome


def make_promise(settings: DeploymentSettings) -> ServicePromise:
    """Return the promise of the settings."""
    return ServicePromise(
        ttft_s=settings.ttft_ms / 1000.0,
        itl_s=settings.itl_ms / 1000.0,
        attainment=settings.attainment,
    )
