"""The planner's core over a list of requests, in simulated time, on engines that start and drain.

The core sees what it would see of a real fleet, when it asks for it, and nothing else. No clock and
no chance take part: the same requests and settings give the same run.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from msgspec import Struct

from select_service.planner.core.inputs import ForwardPass, Role, TickInput
from select_service.planner.core.settings import Settings
from select_service.planner.core.tick import Deployment, Effects
from select_service.planner.replay.engine import Request
from select_service.planner.replay.fleet import Fleet, FleetOptions
from select_service.planner.replay.least import Promise
from select_service.planner.replay.observing import Window

AFTERWARDS_S = 3600.0
"""Requests that are open at the end get so long, on the engines that are there then."""
LOOK_S = 5.0
"""Between two looks at the iterations of engines, at most; each tick looks too."""


class Follower(Protocol):
    """Is told of every tick."""

    def __call__(self, told: TickInput, effects: Effects) -> None: ...


class Course(Struct, frozen=True, kw_only=True):
    """What the planner is tried on. Requests come in the order of their arrival, before `until_s`.

    replicas: at the beginning
    """

    fleet: FleetOptions
    replicas: Mapping[Role, int]
    until_s: float


class Outcome(Struct, frozen=True, kw_only=True):
    """What came of it. Parts are of all requests that arrived.

    gpu_hours:      of engines that start, run and drain
    least_gpu_hours: that could have kept the promise; None: not asked for
    reversals:      decisions against the direction of the one before, by role
    failed:         requests on engines that went before they were done
    over_budget_s:  with more GPUs than `max_gpu_budget`, those that drain included
    """

    hours: float
    ticks: int
    requests: int
    unfinished: int
    failed: int
    rejected: int
    attainment: float
    attainment_ttft: float
    attainment_itl: float
    gpu_hours: float
    least_gpu_hours: float | None
    reversals: dict[Role, int]
    scale_ups: dict[Role, int]
    scale_downs: dict[Role, int]
    most_replicas: dict[Role, int]
    most_gpus: int
    over_budget_s: float

    @property
    def reversals_an_hour(self) -> float:
        """Of the role with the most."""
        return max(self.reversals.values()) / self.hours if self.hours else 0.0


class Turns:
    """Decisions to change the number of replicas, by role."""

    def __init__(self, roles: Iterable[Role]) -> None:
        names = tuple(roles)
        self.ups = dict.fromkeys(names, 0)
        self.downs = dict.fromkeys(names, 0)
        self.reversals = dict.fromkeys(names, 0)
        self._last: dict[Role, bool] = {}

    def turn(self, role: Role, up: bool) -> None:
        (self.ups if up else self.downs)[role] += 1
        self.reversals[role] += self._last.get(role, up) is not up
        self._last[role] = up


class _Kept:
    """How many requests ended, and kept what was promised."""

    def __init__(self, promise: Promise) -> None:
        self._promise = promise
        self.ended = self.ttft = self.itl = self.both = 0

    def add(self, requests: Iterable[Request]) -> None:
        for each in requests:
            ttft_s, itl_s = each.ttft_s, each.itl_s
            self.ended += 1
            self.ttft += ttft_s is not None and ttft_s <= self._promise.ttft_s
            self.itl += itl_s is None or itl_s <= self._promise.itl_s
            self.both += self._promise.is_kept(each)


class Run:
    """One deployment through one course. Used once."""

    def __init__(
        self,
        settings: Settings,
        deployment: Deployment,
        course: Course,
        follower: Follower | None = None,
    ) -> None:
        """deployment: that starts at 0"""
        self._deployment = deployment
        self._course = course
        self._follower = follower
        self._ceiling = settings.max_gpu_budget
        self._fleet = Fleet(course.fleet, course.replicas, 0.0)
        promise = promise_of(settings)
        self._kept = _Kept(promise)
        keep_s = max(
            settings.throughput_adjustment_interval_seconds,
            settings.load_adjustment_interval_seconds,
        )
        self._window = Window(promise.ttft_s, promise.itl_s, keep_s)
        self._turns = Turns(course.fleet.roles)
        self._most = dict(course.replicas)
        self._looked_s = self._ticked_s = self._over_s = 0.0
        self._most_gpus = self._fleet.gpus()
        self._ticks = self._requests = self._rejected = 0

    def go(self, requests: Iterable[Request], least_gpu_hours: float | None = None) -> Outcome:
        """Through all of it; requests are written to."""
        for request in requests:
            self._until(request.arrived_s)
            self._requests += 1
            self._window.arrive(request)
            self._fleet.arrive(request, request.arrived_s)
        until_s = self._course.until_s
        self._until(until_s)
        self._fleet.advance(until_s)
        gpu_hours = self._fleet.gpu_s / 3600.0
        self._fleet.advance(until_s + AFTERWARDS_S)
        self._gather(until_s)
        return self._outcome(gpu_hours, least_gpu_hours)

    def _until(self, now: float) -> None:
        """Looks and ticks that are due."""
        while True:
            tick_s = self._deployment.next_tick.at_s
            look_s = self._looked_s + LOOK_S
            if min(tick_s, look_s) > now:
                return
            if tick_s <= look_s:
                self._tick(tick_s)
            else:
                self._look(look_s)

    def _look(self, now: float) -> dict[Role, tuple[ForwardPass, ...]]:
        self._looked_s = now
        self._gather(now)
        found = self._fleet.passes()
        for passes in found.values():
            self._window.look(now, passes)
        return found

    def _gather(self, now: float) -> None:
        """What has ended or was rejected since."""
        fleet = self._fleet
        fleet.advance(now)
        done, fleet.done = fleet.done, []
        self._kept.add(done)
        self._window.finish(now, done)
        rejected, fleet.rejected = fleet.rejected, []
        self._rejected += len(rejected)
        for each in rejected:
            self._window.reject(each)

    def _tick(self, now: float) -> None:
        if self._fleet.gpus() > self._ceiling >= 0:
            self._over_s += now - self._ticked_s
        passes = self._look(now)
        self._ticked_s = now
        window_s = self._deployment.next_tick.traffic_s
        queued = self._fleet.held()
        told = TickInput(
            now_s=now,
            replicas=self._fleet.replicas(),
            traffic=None if window_s is None else self._window.read(now, window_s, queued),
            passes=passes,
        )
        effects = self._deployment.tick(told)
        self._ticks += 1
        self._scale(effects, told, now)
        if self._follower is not None:
            self._follower(told, effects)

    def _scale(self, effects: Effects, told: TickInput, now: float) -> None:
        """Reductions first, as connectors do: what grows waits for what goes."""
        have = {role: each.ready + each.pending for role, each in told.replicas.items()}
        wanted = {role: n for role, n in (effects.scale_to or {}).items() if n != have[role]}
        downs = {role: n for role, n in wanted.items() if n < have[role]}
        for role, replicas in (downs or wanted).items():
            self._turns.turn(role, replicas > have[role])
            self._fleet.scale(role, replicas, now)
            self._most[role] = max(self._most[role], replicas)
        self._most_gpus = max(self._most_gpus, self._fleet.gpus())

    def _outcome(self, gpu_hours: float, least_gpu_hours: float | None) -> Outcome:
        kept, total = self._kept, max(1, self._requests)
        lost = self._fleet.failed + self._rejected
        return Outcome(
            hours=self._course.until_s / 3600.0,
            ticks=self._ticks,
            requests=self._requests,
            unfinished=self._requests - kept.ended - lost,
            failed=self._fleet.failed,
            rejected=self._rejected,
            attainment=kept.both / total,
            attainment_ttft=kept.ttft / total,
            attainment_itl=kept.itl / total,
            gpu_hours=gpu_hours,
            least_gpu_hours=least_gpu_hours,
            reversals=self._turns.reversals,
            scale_ups=self._turns.ups,
            scale_downs=self._turns.downs,
            most_replicas=self._most,
            most_gpus=self._most_gpus,
            over_budget_s=self._over_s,
        )


def promise_of(settings: Settings) -> Promise:
    """What the settings want to be kept."""
    return Promise(
        ttft_s=settings.ttft_ms / 1000.0,
        itl_s=settings.itl_ms / 1000.0,
        attainment=settings.attainment,
    )
