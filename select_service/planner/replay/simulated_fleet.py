"""Simulated engines of a deployment that start, drain and stop on request."""

from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from math import inf

from msgspec import Struct

from select_service.planner.core.tick_input import EngineLimits, ForwardPass, Role, RoleReplicas
from select_service.planner.replay.simulated_engine import (
    EngineSpeed,
    SimulatedEngine,
    SimulatedRequest,
)


class FleetOptions(Struct, frozen=True, kw_only=True):
    """Properties of engines, and their start-up and drain times."""

    roles: tuple[Role, ...]
    """Roles. With prefill and decode, requests pass between the two; a single role does both."""
    speed: Mapping[Role, EngineSpeed]
    limits: Mapping[Role, EngineLimits]
    startup_s: float = 120.0
    drain_s: float = 300.0
    """Maximum drain; afterwards the engine stops and its requests fail, seconds."""
    queue_tokens_max: float = inf
    """Maximum queued prefill of the least loaded engine before a request is rejected, tokens."""


class _RolePool:
    """Engines of a role."""

    def __init__(self) -> None:
        self.ready: list[SimulatedEngine] = []
        self.starting: list[float] = []
        self.draining: list[tuple[SimulatedEngine, float]] = []


class SimulatedFleet:
    """Fleet of a simulation, in its seconds, which never decrease."""

    def __init__(self, options: FleetOptions, replicas: Mapping[Role, int], now: float) -> None:
        self.options = options
        self.done: list[SimulatedRequest] = []
        """Completed requests since the last collection."""
        self.rejected: list[SimulatedRequest] = []
        """Rejected requests since the last collection."""
        self.failed = 0
        self.gpu_s = 0.0
        self._now = now
        self._made = 0
        self._events: list[tuple[float, int, SimulatedEngine]] = []
        self._pools = {role: _RolePool() for role in options.roles}
        self._held_requests: dict[Role, list[SimulatedRequest]] = {
            role: [] for role in options.roles
        }
        for role, count in replicas.items():
            self._pools[role].ready = [self._make_engine(role, now) for _ in range(count)]

    def add_request(self, request: SimulatedRequest, now: float) -> None:
        """Give a request to the engine with the least queued prefill."""
        self.advance_to(now)
        self._place_request(self.options.roles[0], request)

    def scale_role(self, role: Role, replicas: int, now: float) -> None:
        """Start engines, or drain those with the fewest requests."""
        assert replicas >= 0
        self.advance_to(now)
        pool = self._pools[role]
        more = replicas - len(pool.ready) - len(pool.starting)
        pool.starting += [now + self.options.startup_s] * max(0, more)
        for _ in range(max(0, -more)):
            if pool.starting:
                # The newest start-up is withdrawn first, as it has the longest way to go.
                pool.starting.pop()
            elif pool.ready:
                least = min(pool.ready, key=lambda each: (each.live_requests, each.queued_tokens))
                pool.ready.remove(least)
                pool.draining.append((least, now + self.options.drain_s))
        self._clear_drained(now)

    def read_replicas(self) -> dict[Role, RoleReplicas]:
        """Return the replicas as a connector would."""
        result = {}
        for role, pool in self._pools.items():
            ready, pending = len(pool.ready), len(pool.starting)
            result[role] = RoleReplicas(
                ready=ready,
                expected=ready + pending,
                pending=pending,
                in_progress=bool(pending or pool.draining),
                startup_only=bool(pending) and not pool.draining,
                draining=len(pool.draining),
                limits=self.options.limits[role],
            )
        return result

    def current_passes(self) -> dict[Role, tuple[ForwardPass, ...]]:
        """Return the current iterations of engines that take requests."""
        return {
            role: tuple(each.current_pass(self._now) for each in pool.ready)
            for role, pool in self._pools.items()
        }

    def count_gpus(self) -> int:
        """Return the GPUs of engines that start, run or drain."""
        return sum(
            (len(pool.ready) + len(pool.starting) + len(pool.draining))
            * (self.options.limits[role].num_gpu or 1)
            for role, pool in self._pools.items()
        )

    def count_held(self) -> int:
        """Return the number of requests that wait for an engine."""
        return sum(map(len, self._held_requests.values()))

    def advance_to(self, now: float) -> None:
        """Advance the time to `now`, through all events."""
        while True:
            event = self._events[0][0] if self._events else inf
            # Events of engines come first at equal times, so that a request can end before its
            # drain expires.
            due = min(event, self._next_move())
            if due > now:
                break
            self._add_gpu_time(due)
            if due == event:
                self._process_event()
            else:
                self._start_due(due)
                self._clear_drained(due)
        self._add_gpu_time(now)

    def _next_move(self) -> float:
        """Return the time of the next completed start or expired drain."""
        due = inf
        for pool in self._pools.values():
            if pool.starting:
                due = min(due, min(pool.starting))
            if pool.draining:
                due = min(due, min(at for _, at in pool.draining))
        return due

    def _add_gpu_time(self, now: float) -> None:
        """Add the GPU seconds: engines cost from the begin of the start to the end of the drain."""
        passed = now - self._now
        if passed > 0.0:
            self.gpu_s += passed * self.count_gpus()
            self._now = now

    def _process_event(self) -> None:
        """Process the next event of an engine."""
        at, _, engine = heappop(self._events)
        # Events are not removed when they become outdated; a later entry for the engine exists.
        if at != engine.next_at:
            return  # outdated
        prefilled, done = engine.advance_to(at)
        self.done += done
        for request in prefilled:
            self._continue_request(engine, request)
        self._queue_event(engine)
        if done:
            self._clear_drained(at)

    def _continue_request(self, engine: SimulatedEngine, request: SimulatedRequest) -> None:
        """Continue after the first token: on the same engine, or on one of the other role."""
        if request.osl < 2:
            request.done_s = self._now
            self.done.append(request)
        elif len(self.options.roles) == 1:
            self._give_to_engine(engine, engine.queue_decode, request)
        else:
            self._place_request(self.options.roles[1], request)

    def _place_request(self, role: Role, request: SimulatedRequest) -> None:
        """Give a request to an engine of a role, or hold it."""
        ready = self._pools[role].ready
        if not ready:
            self._held_requests[role].append(request)
        elif request.first_s is None:
            engine = min(ready, key=lambda each: each.queued_tokens + each.live_requests)
            if engine.queued_tokens > self.options.queue_tokens_max:
                self.rejected.append(request)
            else:
                self._give_to_engine(engine, engine.queue_prefill, request)
        else:
            engine = min(ready, key=lambda each: each.kv_tokens)
            self._give_to_engine(engine, engine.queue_decode, request)

    def _give_to_engine(
        self,
        engine: SimulatedEngine,
        give: Callable[[SimulatedRequest, float], None],
        request: SimulatedRequest,
    ) -> None:
        """Give a request to an engine."""
        give(request, self._now)
        self._queue_event(engine)

    def _queue_event(self, engine: SimulatedEngine) -> None:
        """Queue the next event of an engine."""
        if engine.next_at < inf:
            self._made += 1
            heappush(self._events, (engine.next_at, self._made, engine))

    def _start_due(self, now: float) -> None:
        """Complete the starts that are due, and place held requests."""
        for role, pool in self._pools.items():
            due = sum(at <= now for at in pool.starting)
            pool.starting = [at for at in pool.starting if at > now]
            pool.ready += [self._make_engine(role, now) for _ in range(due)]
            if due:
                held, self._held_requests[role] = self._held_requests[role], []
                for request in held:
                    self._place_request(role, request)

    def _clear_drained(self, now: float) -> None:
        """Remove drained engines, and stop engines after the maximum drain."""
        for pool in self._pools.values():
            if not pool.draining:
                continue
            left = []
            for engine, end in pool.draining:
                if end <= now and not engine.is_idle:
                    self.failed += engine.drop_requests()
                elif not engine.is_idle:
                    left.append((engine, end))
            pool.draining = left

    def _make_engine(self, role: Role, now: float) -> SimulatedEngine:
        """Create an engine."""
        self._made += 1
        name = f"{role}-{self._made}"
        return SimulatedEngine(name, self.options.speed[role], self.options.limits[role], now)
