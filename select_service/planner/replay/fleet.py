"""Simulated engines of one deployment that start, drain and stop as somebody scales them."""

from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from math import inf

from msgspec import Struct

from select_service.planner.core.inputs import ForwardPass, Limits, Replicas, Role
from select_service.planner.replay.engine import Engine, Request, Speed


class FleetOptions(Struct, frozen=True, kw_only=True):
    """What engines are like, and how long they need to be there."""

    roles: tuple[Role, ...]
    """With prefill and decode requests pass from one to the other; with one, it does both."""
    speed: Mapping[Role, Speed]
    limits: Mapping[Role, Limits]
    startup_s: float = 120.0
    drain_s: float = 300.0
    """After this an engine that still has requests is stopped, and they fail."""
    queue_tokens_max: float = inf
    """Prefill that may wait on every engine before a request is rejected."""


class _Pool:
    """The engines of one role."""

    def __init__(self) -> None:
        self.ready: list[Engine] = []
        self.starting: list[float] = []
        self.draining: list[tuple[Engine, float]] = []


class Fleet:
    """Belongs to one simulation; all times in its seconds, which never go back."""

    def __init__(self, options: FleetOptions, replicas: Mapping[Role, int], now: float) -> None:
        self.options = options
        self.done: list[Request] = []
        """Since somebody took them away."""
        self.rejected: list[Request] = []
        """The same."""
        self.failed = 0
        self.gpu_s = 0.0
        self._now = now
        self._made = 0
        self._events: list[tuple[float, int, Engine]] = []
        self._pools = {role: _Pool() for role in options.roles}
        self._held: dict[Role, list[Request]] = {role: [] for role in options.roles}
        for role, count in replicas.items():
            self._pools[role].ready = [self._engine(role, now) for _ in range(count)]

    def arrive(self, request: Request, now: float) -> None:
        """A request for the fleet, to the engine with the least prefill before it."""
        self.advance(now)
        self._begin(self.options.roles[0], request)

    def scale(self, role: Role, replicas: int, now: float) -> None:
        """Start engines, or let those with the least to do run out."""
        assert replicas >= 0
        self.advance(now)
        pool = self._pools[role]
        more = replicas - len(pool.ready) - len(pool.starting)
        pool.starting += [now + self.options.startup_s] * max(0, more)
        for _ in range(max(0, -more)):
            if pool.starting:
                pool.starting.pop()
            elif pool.ready:
                least = min(pool.ready, key=lambda each: (each.live, each.queued_tokens))
                pool.ready.remove(least)
                pool.draining.append((least, now + self.options.drain_s))
        self._clear_drained(now)

    def replicas(self) -> dict[Role, Replicas]:
        """What a connector would read."""
        result = {}
        for role, pool in self._pools.items():
            ready, pending = len(pool.ready), len(pool.starting)
            result[role] = Replicas(
                ready=ready,
                expected=ready + pending,
                pending=pending,
                in_progress=bool(pending or pool.draining),
                startup_only=bool(pending) and not pool.draining,
                limits=self.options.limits[role],
            )
        return result

    def passes(self) -> dict[Role, tuple[ForwardPass, ...]]:
        """The iterations that run now on engines that take requests."""
        return {
            role: tuple(each.seen(self._now) for each in pool.ready)
            for role, pool in self._pools.items()
        }

    def gpus(self) -> int:
        """Of engines that start, run or drain."""
        return sum(
            (len(pool.ready) + len(pool.starting) + len(pool.draining))
            * (self.options.limits[role].num_gpu or 1)
            for role, pool in self._pools.items()
        )

    def held(self) -> int:
        """Requests that wait because there is no engine for them."""
        return sum(map(len, self._held.values()))

    def advance(self, now: float) -> None:
        """Let everything happen until `now`."""
        while True:
            event = self._events[0][0] if self._events else inf
            due = min(event, self._next_move())
            if due > now:
                break
            self._pass(due)
            if due == event:
                self._happen()
            else:
                self._start_due(due)
                self._clear_drained(due)
        self._pass(now)

    def _next_move(self) -> float:
        """When an engine is started or drained for too long."""
        due = inf
        for pool in self._pools.values():
            if pool.starting:
                due = min(due, min(pool.starting))
            if pool.draining:
                due = min(due, min(at for _, at in pool.draining))
        return due

    def _pass(self, now: float) -> None:
        """GPU seconds: engines cost from the beginning of their start to the end of their drain."""
        passed = now - self._now
        if passed > 0.0:
            self.gpu_s += passed * self.gpus()
            self._now = now

    def _happen(self) -> None:
        at, _, engine = heappop(self._events)
        if at != engine.next_at:
            return  # something came between, and there is another entry
        prefilled, done = engine.advance(at)
        self.done += done
        for request in prefilled:
            self._continue(engine, request)
        self._note(engine)
        if done:
            self._clear_drained(at)

    def _continue(self, engine: Engine, request: Request) -> None:
        """After the first token: on the same engine, or on one of the other role."""
        if request.osl < 2:
            request.done_s = self._now
            self.done.append(request)
        elif len(self.options.roles) == 1:
            self._on(engine, engine.decode, request)
        else:
            self._begin(self.options.roles[1], request)

    def _begin(self, role: Role, request: Request) -> None:
        ready = self._pools[role].ready
        if not ready:
            self._held[role].append(request)
        elif request.first_s is None:
            engine = min(ready, key=lambda each: each.queued_tokens + each.live)
            if engine.queued_tokens > self.options.queue_tokens_max:
                self.rejected.append(request)
            else:
                self._on(engine, engine.prefill, request)
        else:
            engine = min(ready, key=lambda each: each.kv_tokens)
            self._on(engine, engine.decode, request)

    def _on(self, engine: Engine, give: Callable[[Request, float], None], request: Request) -> None:
        give(request, self._now)
        self._note(engine)

    def _note(self, engine: Engine) -> None:
        if engine.next_at < inf:
            self._made += 1
            heappush(self._events, (engine.next_at, self._made, engine))

    def _start_due(self, now: float) -> None:
        for role, pool in self._pools.items():
            due = sum(at <= now for at in pool.starting)
            pool.starting = [at for at in pool.starting if at > now]
            pool.ready += [self._engine(role, now) for _ in range(due)]
            if due:
                held, self._held[role] = self._held[role], []
                for request in held:
                    self._begin(role, request)

    def _clear_drained(self, now: float) -> None:
        for pool in self._pools.values():
            if not pool.draining:
                continue
            left = []
            for engine, end in pool.draining:
                if end <= now and not engine.is_idle:
                    self.failed += engine.stop()
                elif not engine.is_idle:
                    left.append((engine, end))
            pool.draining = left

    def _engine(self, role: Role, now: float) -> Engine:
        self._made += 1
        name = f"{role}-{self._made}"
        return Engine(name, self.options.speed[role], self.options.limits[role], now)
