"""Tests of the fluid engine against an engine that simulates every iteration."""

from collections import deque
from dataclasses import dataclass, field
from random import Random

import pytest

from select_service.planner.core.tick_input import EngineLimits
from select_service.planner.replay.simulated_engine import (
    EngineSpeed,
    SimulatedEngine,
    SimulatedRequest,
)

LIMITS = EngineLimits(max_num_batched_tokens=2048, max_num_seqs=64, max_kv_tokens=100_000)
SPEED = EngineSpeed()


@dataclass
class IteratedEngine:
    """Engine with chunked prefill and decode, simulated by iteration."""

    now: float = 0.0
    prefills: deque[list[float | SimulatedRequest]] = field(default_factory=deque)
    waiting: deque[SimulatedRequest] = field(default_factory=deque)
    live: list[list[float | SimulatedRequest]] = field(default_factory=list)

    def kv(self) -> float:
        return sum(request.isl + got for request, got in self.live)

    def run(self, requests: list[SimulatedRequest]) -> None:
        coming = deque(requests)
        while coming or self.prefills or self.waiting or self.live:
            if not (self.prefills or self.waiting or self.live):
                self.now = max(self.now, coming[0].arrived_s)
            while coming and coming[0].arrived_s <= self.now:
                request = coming.popleft()
                self.prefills.append([request, float(max(1, request.uncached))])
            self.iterate()

    def iterate(self) -> None:
        room = float(max(1, 2048 - len(self.live)))
        begun, chunk = [], 0.0
        while self.prefills and room > 0:
            head = self.prefills[0]
            part = min(room, head[1])
            head[1] -= part
            room -= part
            chunk += part
            if head[1] > 0:
                break
            begun.append(self.prefills.popleft()[0])
        self.now += (
            SPEED.base_s
            + SPEED.per_prefill_token_s * chunk
            + SPEED.per_kv_token_s * self.kv()
            + SPEED.per_request_s * len(self.live)
        )
        for one in self.live:
            one[1] += 1
        for request, got in self.live:
            if got >= request.osl:
                request.done_s = self.now
        self.live = [one for one in self.live if one[0].done_s is None]
        for request in begun:
            request.first_s = self.now
            self.waiting.append(request)
        while self.waiting and len(self.live) < 64:
            if self.live and self.kv() + self.waiting[0].isl > 100_000:
                break
            self.live.append([self.waiting.popleft(), 0.0])


def fluid(requests: list[SimulatedRequest]) -> None:
    engine, coming = SimulatedEngine("e", SPEED, LIMITS, 0.0), deque(requests)
    while coming or not engine.is_idle:
        if coming and coming[0].arrived_s <= engine.next_at:
            request = coming.popleft()
            engine.queue_prefill(request, request.arrived_s)
        else:
            now = engine.next_at
            for request in engine.advance_to(now)[0]:
                engine.queue_decode(request, now)


def random_requests(seed: int, rate: float, count: int) -> list[SimulatedRequest]:
    rng, now, result = Random(seed), 0.0, []
    for _ in range(count):
        now += rng.expovariate(rate)
        isl = rng.randint(100, 3000)
        result.append(SimulatedRequest(now, isl, rng.randint(2, 200), rng.randint(1, isl)))
    return result


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize(("seed", "rate"), [(1, 1.0), (2, 4.0), (3, 7.0)])
def test_latencies_are_those_of_an_engine_that_iterates(seed: int, rate: float) -> None:
    ours, exact = random_requests(seed, rate, 400), random_requests(seed, rate, 400)
    fluid(ours)
    IteratedEngine().run(exact)
    for name, tolerance in (("ttft_s", 0.2), ("itl_s", 0.1)):
        pairs = [(getattr(a, name), getattr(b, name)) for a, b in zip(ours, exact, strict=True)]
        assert mean([a for a, _ in pairs]) == pytest.approx(
            mean([b for _, b in pairs]), rel=tolerance
        )


def test_everything_that_comes_ends_and_nothing_is_left() -> None:
    requests = random_requests(5, 20.0, 500)
    engine, ended = SimulatedEngine("e", SPEED, LIMITS, 0.0), 0
    for request in requests:
        while engine.next_at <= request.arrived_s:
            now = engine.next_at
            prefilled, done = engine.advance_to(now)
            ended += len(done)
            for each in prefilled:
                engine.queue_decode(each, now)
        engine.queue_prefill(request, request.arrived_s)
    while not engine.is_idle:
        now = engine.next_at
        prefilled, done = engine.advance_to(now)
        ended += len(done)
        for each in prefilled:
            engine.queue_decode(each, now)
    assert ended == len(requests)
    assert (engine.kv_tokens, engine.queued_tokens, engine.live_requests) == (0.0, 0.0, 0)
    for each in requests:
        assert each.ttft_s is not None
        assert each.done_s is not None
        assert each.arrived_s < (each.first_s or 0) < each.done_s
