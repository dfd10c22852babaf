"""Simulated engines behind a real selector, started and stopped by a real planner.

Time runs `speedup` times faster: a start of 120 s takes 120 / speedup.
"""

import asyncio
import time
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from itertools import count
from math import inf
from typing import Any, NamedTuple

import aiohttp
from msgspec import Struct

from select_service.planner.core.tick_input import EngineLimits
from select_service.planner.replay.least_gpu_hours import ServicePromise
from select_service.planner.replay.simulated_engine import (
    EngineSpeed,
    SimulatedEngine,
    SimulatedRequest,
)

MODEL, BLOCK_SIZE = "m", 64
DECISION_WAIT_MS = 2_000
REST_S = 0.05
"""Real time between two readings of generated tokens, in seconds."""
RETRY_S = 0.25
STALL_S = 0.25
REGISTER_S = 1.5
"""Real time between the registrations of two engines, in seconds: longer than traffic windows."""
DRAIN_S = 300.0
END_S = 900.0
"""Simulated time for the requests after the last arrival, in seconds."""


class EngineFleetSpec(Struct, frozen=True, kw_only=True):
    """Properties of the engines, in seconds of the simulation."""

    speed: EngineSpeed
    limits: EngineLimits
    startup_s: float
    replicas: int
    promise: ServicePromise


class PlatformWorker:
    """An engine and the state of its requests at the callers."""

    def __init__(self, worker_id: int, engine: SimulatedEngine) -> None:
        self.worker_id, self.engine = worker_id, engine
        self.leaves_at = inf
        """Latest time of its stop; infinite means no stop."""
        self.blocks: dict[int, int] = {}
        """Reported output blocks by request."""


class _RunningRequest(NamedTuple):
    """A sent request.  ended: set by the last token, or by the end of the engine"""

    name: str
    worker: PlatformWorker
    ended: asyncio.Future[None]

    def end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class PlatformTotals(Struct):
    """Totals of a run.

    kept: requests that met both promises;  gpus_most: largest number at any time
    """

    requests: int = 0
    done: int = 0
    failed: int = 0
    waited: int = 0
    """Answers with a request to retry later."""
    ttft_kept: int = 0
    itl_kept: int = 0
    kept: int = 0
    gpu_s: float = 0.0
    gpus_most: int = 0
    stalled_s: float = 0.0
    """Real seconds without progress of this process; misses in them are the machine's."""


class SimulatedPlatform:
    """A fleet. Belongs to one event loop."""

    def __init__(self, fleet: EngineFleetSpec, selector: str, planner: str, speedup: float) -> None:
        self.fleet, self.speedup = fleet, speedup
        self.totals = PlatformTotals()
        self.samples: list[tuple[float, int, int]] = []
        """(seconds, ready engines, engines with a GPU) at every change."""
        self.decisions: list[tuple[int, int]] = []
        """Numbers and replicas of executed or started decisions."""
        self._selector, self._planner = selector, planner
        self._began = time.monotonic()
        self._counted_s = 0.0
        self._ids = count(1)
        self._workers: dict[int, PlatformWorker] = {}
        self._starting: set[asyncio.Task[None]] = set()
        self._acting: asyncio.Task[None] | None = None
        """Task that executes the newest decision."""
        self._reports: set[asyncio.Task[Any]] = set()
        self._serving: dict[int, _RunningRequest] = {}
        self._wake = asyncio.Event()
        self._http: aiohttp.ClientSession | None = None

    def now(self) -> float:
        """Return the seconds of the simulation."""
        return (time.monotonic() - self._began) * self.speedup

    @property
    def ready(self) -> int:
        return sum(worker.leaves_at == inf for worker in self._workers.values())

    async def create_first_engines(self) -> None:
        """Create the first engines, which exist when time begins."""
        self._http = aiohttp.ClientSession()
        for _ in range(self.fleet.replicas):
            await self._join()

    async def run_traffic(self, requests: Iterable[SimulatedRequest]) -> None:
        """Send all requests at their times and wait for the last end."""
        self._began = time.monotonic()
        self._record_sample()
        own = (self._run_engines(), self._execute_newest_decision(), self._watch())
        helpers = [asyncio.create_task(each) for each in own]
        served = []
        for number, request in enumerate(requests):
            await asyncio.sleep(max(0.0, (request.arrived_s - self.now()) / self.speedup))
            served.append(asyncio.create_task(self._serve(f"r{number}", request)))
        _, late = await asyncio.wait(served, timeout=END_S / self.speedup)
        self.totals.failed += len(late)
        self._record_sample()
        ending = [*helpers, *self._starting, *late]
        if self._acting is not None:
            ending.append(self._acting)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        assert self._http is not None
        await self._http.close()

    # Callers

    async def _serve(self, name: str, request: SimulatedRequest) -> None:
        """Repeat a request until a rank is chosen, run the request, and count its promises."""
        self.totals.requests += 1
        worker = await self._selected(name, request)
        ended = asyncio.get_running_loop().create_future()
        self._serving[id(request)] = _RunningRequest(name, worker, ended)
        worker.engine.queue_prefill(request, self._caught_up_now(worker.engine))
        self._wake.set()
        await ended
        del self._serving[id(request)]
        self._count(request)

    async def _selected(self, name: str, request: SimulatedRequest) -> PlatformWorker:
        blocks = max(1, -(-request.isl // BLOCK_SIZE))
        # Distinct per request: no prompt shares blocks with another.
        base = (hash(name) & 0x3FFFFFFF) << 20
        hashes = list(range(base, base + blocks))
        body = {
            "model_name": MODEL,
            "reservation_id": name,
            "block_hashes": hashes,
            "sequence_hashes": hashes,
            "isl_tokens": request.isl,
        }
        while True:
            answer = await self._call("POST", f"{self._selector}/select_and_reserve", body)
            worker = None if answer is None else self._workers.get(answer["worker_id"])
            if worker is not None:
                return worker
            self.totals.waited += 1
            if answer is not None:  # an engine that was just stopped
                await self._call("DELETE", f"{self._selector}/reservations/{name}")
            await asyncio.sleep(RETRY_S)

    def _count(self, request: SimulatedRequest) -> None:
        totals, promise = self.totals, self.fleet.promise
        if request.done_s is None:
            totals.failed += 1
            return
        totals.done += 1
        ttft = request.ttft_s is not None and request.ttft_s <= promise.ttft_s
        itl = request.itl_s is None or request.itl_s <= promise.itl_s
        totals.ttft_kept += ttft
        totals.itl_kept += itl
        totals.kept += ttft and itl

    # Engines

    async def _run_engines(self) -> None:
        while True:
            for worker in list(self._workers.values()):
                self._advance(worker)
                self._report_blocks(worker)
            due = min((w.engine.next_at for w in self._workers.values()), default=inf)
            # Cleared before the wait, so a request that arrives now is not missed.
            self._wake.clear()
            wait_s = min(REST_S, max(0.0, (due - self.now()) / self.speedup))
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()

    async def _watch(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(REST_S)
            late_s = time.monotonic() - before - REST_S
            if late_s >= STALL_S:
                self.totals.stalled_s += late_s

    def _caught_up_now(self, engine: SimulatedEngine) -> float:
        """Return the current time, after all earlier events of the engine."""
        now = self.now()
        for worker in self._workers.values():
            if worker.engine is engine:
                self._advance(worker)
        return max(now, engine.now)

    def _advance(self, worker: PlatformWorker) -> None:
        """Process events at their own times, even after a late wake-up."""
        engine, now = worker.engine, self.now()
        # Each event at its own time, so a late wake-up does not shift the simulation.
        while engine.next_at <= now:
            at = engine.next_at
            prefilled, done = engine.advance_to(at)
            for request in prefilled:
                self._report(request, "prefill_complete")
                if request.osl > 1:
                    engine.queue_decode(request, at)
                else:
                    request.done_s = at
                    done.append(request)
            for request in done:
                worker.blocks.pop(id(request), None)
                self._report(request, None)

    def _report_blocks(self, worker: PlatformWorker) -> None:
        for request, tokens in worker.engine.generated_tokens(self._caught_up_now(worker.engine)):
            whole = tokens // BLOCK_SIZE
            for _ in range(worker.blocks.get(id(request), 0), whole):
                self._report(request, "output_block")
            worker.blocks[id(request)] = whole

    def _report(self, request: SimulatedRequest, verb: str | None) -> None:
        """Report progress; None means that the request has ended."""
        served = self._serving[id(request)]
        path = f"{self._selector}/reservations/{served.name}"
        if verb is None:
            self._begin(self._call("DELETE", path))
            served.end()
        else:
            self._begin(self._call("POST", f"{path}/{verb}"))

    # Platform

    async def _execute_newest_decision(self) -> None:
        """Execute the newest decision and report its end."""
        after = -1
        while True:
            url = f"{self._planner}/v1/decision?after={after}&timeout_ms={DECISION_WAIT_MS}"
            decision = await self._call("GET", url)
            if decision is None:
                await asyncio.sleep(RETRY_S)
                continue
            if decision["decision_id"] <= after:
                continue
            after = decision["decision_id"]
            self.decisions.append((after, decision["num_decode"]))
            if self._acting is not None:
                self._acting.cancel()
            self._acting = asyncio.create_task(
                self._carry_out(after, decision["num_decode"], decision["victims"])
            )

    async def _carry_out(self, number: int, wanted: int, victims: Sequence[int]) -> None:
        more = wanted - self.ready - len(self._starting)
        for _ in range(max(0, more)):
            task = asyncio.create_task(self._start())
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)
        for _ in range(max(0, -more)):
            if self._starting:
                # A start that is under way costs nothing to stop.
                self._starting.pop().cancel()
            else:
                self._mark_leaving(victims)
        self._record_sample()
        while self._starting or any(w.leaves_at < inf for w in self._workers.values()):
            await self._stop_drained()
            await asyncio.sleep(REST_S)
        url = f"{self._planner}/v1/decision/{number}/complete"
        while await self._call("POST", url, {"num_decode": self.ready}) is None:
            await asyncio.sleep(RETRY_S)

    async def _start(self) -> None:
        await asyncio.sleep(self.fleet.startup_s / self.speedup)
        await self._join()

    async def _join(self) -> None:
        number = next(self._ids)
        await self._register(number)
        engine = SimulatedEngine(f"e{number}", self.fleet.speed, self.fleet.limits, self.now())
        self._workers[number] = PlatformWorker(number, engine)
        task = asyncio.current_task()
        if task is not None:
            self._starting.discard(task)
        self._record_sample()

    async def _register(self, number: int) -> None:
        limits = self.fleet.limits
        kv_tokens = limits.max_kv_tokens or 0
        body = {
            "worker_id": number,
            "model_name": MODEL,
            "endpoint": "http://127.0.0.1:9",
            "block_size": BLOCK_SIZE,
            "max_num_batched_tokens": limits.max_num_batched_tokens,
            "total_kv_blocks": kv_tokens // BLOCK_SIZE,
        }
        while await self._call("POST", f"{self._selector}/workers", body) is None:
            await asyncio.sleep(RETRY_S)

    async def register_again(self) -> None:
        """Register all engines at a restarted selector, one after the other."""
        staying = [worker for worker in self._workers.values() if worker.leaves_at == inf]
        for worker in staying:
            await self._register(worker.worker_id)
            await asyncio.sleep(REGISTER_S)

    def _mark_leaving(self, victims: Sequence[int]) -> None:
        """Let an engine leave: one that the planner drained, else the least loaded."""
        staying = [worker for worker in self._workers.values() if worker.leaves_at == inf]
        if staying:
            worker = min(
                staying,
                key=lambda w: (
                    w.worker_id not in victims,
                    w.engine.live_requests,
                    w.engine.queued_tokens,
                ),
            )
            # A bound, because a drained engine may have very long answers.
            worker.leaves_at = self.now() + DRAIN_S

    async def _stop_drained(self) -> None:
        for worker in list(self._workers.values()):
            if worker.leaves_at == inf:
                continue
            if worker.engine.is_idle or self.now() >= worker.leaves_at:
                await self._call("DELETE", f"{self._selector}/workers/{worker.worker_id}")
                del self._workers[worker.worker_id]
                self._stop(worker)
                self._record_sample()

    def _stop(self, worker: PlatformWorker) -> None:
        """Stop an engine; its unfinished requests fail."""
        worker.engine.drop_requests()
        for served in self._serving.values():
            if served.worker is worker:
                served.end()

    def _record_sample(self) -> None:
        """Add the GPU seconds until now and note the new number of engines."""
        now = self.now()
        held = len(self._workers) + len(self._starting)
        before = self.samples[-1][2] if self.samples else 0
        self.totals.gpu_s += before * max(0.0, now - self._counted_s)
        self._counted_s = now
        self.totals.gpus_most = max(self.totals.gpus_most, held)
        self.samples.append((now, self.ready, held))

    # HTTP

    def _begin(self, call: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(call)
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    async def _call(self, method: str, url: str, body: Any = None) -> Any:
        """Return the answer; None means refused or no answer."""
        assert self._http is not None
        try:
            async with self._http.request(method, url, json=body) as answer:
                found = await answer.json(content_type=None)
                return found if answer.status < 300 else None
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None
