"""Simulated engines behind a real selector, started and stopped on a real planner's word.

Time runs `speedup` times faster: an engine that starts for 120 s is there after 120 / speedup.
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

from select_service.planner.core.inputs import Limits
from select_service.planner.replay.engine import Engine, Request, Speed
from select_service.planner.replay.least import Promise

MODEL, BLOCK_SIZE = "m", 64
DECISION_WAIT_MS = 2_000
REST_S = 0.05
"""Between two looks at what engines have generated, in real time."""
RETRY_S = 0.25
STALL_S = 0.25
REGISTER_S = 1.5
"""Between two engines that register again, in real time: longer than windows of traffic are."""
DRAIN_S = 300.0
END_S = 900.0
"""Of the simulation, for what is still under way after the last arrival."""


class Fleet(Struct, frozen=True, kw_only=True):
    """What engines are like, in seconds of the simulation."""

    speed: Speed
    limits: Limits
    startup_s: float
    replicas: int
    promise: Promise


class Worker:
    """One engine, and what callers know of its requests."""

    def __init__(self, worker_id: int, engine: Engine) -> None:
        self.worker_id, self.engine = worker_id, engine
        self.leaves_at = inf
        """When it is stopped at the latest; infinite: it stays."""
        self.blocks: dict[int, int] = {}
        """Output blocks that were reported, by request."""


class _Served(NamedTuple):
    """A request that has been sent.  ended: with its last token, or with its engine"""

    name: str
    worker: Worker
    ended: asyncio.Future[None]

    def end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class Totals(Struct):
    """kept: requests that met both promises;  gpus_most: at any time"""

    requests: int = 0
    done: int = 0
    failed: int = 0
    waited: int = 0
    """Answers that said to come again."""
    ttft_kept: int = 0
    itl_kept: int = 0
    kept: int = 0
    gpu_s: float = 0.0
    gpus_most: int = 0
    stalled_s: float = 0.0
    """Real seconds in which this process did not get on: what was missed then is the machine's."""


class Platform:
    """One fleet. Belongs to one event loop."""

    def __init__(self, fleet: Fleet, selector: str, planner: str, speedup: float) -> None:
        self.fleet, self.speedup = fleet, speedup
        self.totals = Totals()
        self.samples: list[tuple[float, int, int]] = []
        """(seconds, ready, all that hold a GPU) at every change."""
        self.decisions: list[tuple[int, int]] = []
        """Numbers and replicas of those that were carried out, or begun."""
        self._selector, self._planner = selector, planner
        self._began = time.monotonic()
        self._counted_s = 0.0
        self._ids = count(1)
        self._workers: dict[int, Worker] = {}
        self._starting: set[asyncio.Task[None]] = set()
        self._acting: asyncio.Task[None] | None = None
        """What carries out the newest decision."""
        self._reports: set[asyncio.Task[Any]] = set()
        self._serving: dict[int, _Served] = {}
        self._wake = asyncio.Event()
        self._http: aiohttp.ClientSession | None = None

    def now(self) -> float:
        """Seconds of the simulation."""
        return (time.monotonic() - self._began) * self.speedup

    @property
    def ready(self) -> int:
        return sum(worker.leaves_at == inf for worker in self._workers.values())

    async def prepare(self) -> None:
        """The first engines, which are there when time begins."""
        self._http = aiohttp.ClientSession()
        for _ in range(self.fleet.replicas):
            await self._join()

    async def live(self, requests: Iterable[Request]) -> None:
        """Let all come at their times; ends when the last one has ended."""
        self._began = time.monotonic()
        self._note()
        own = (self._run_engines(), self._obey(), self._watch())
        helpers = [asyncio.create_task(each) for each in own]
        served = []
        for number, request in enumerate(requests):
            await asyncio.sleep(max(0.0, (request.arrived_s - self.now()) / self.speedup))
            served.append(asyncio.create_task(self._serve(f"r{number}", request)))
        _, late = await asyncio.wait(served, timeout=END_S / self.speedup)
        self.totals.failed += len(late)
        self._note()
        ending = [*helpers, *self._starting, *late]
        if self._acting is not None:
            ending.append(self._acting)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        assert self._http is not None
        await self._http.close()

    # --- callers

    async def _serve(self, name: str, request: Request) -> None:
        """Ask until there is a rank, run there, and count what was promised."""
        self.totals.requests += 1
        worker = await self._selected(name, request)
        ended = asyncio.get_running_loop().create_future()
        self._serving[id(request)] = _Served(name, worker, ended)
        worker.engine.prefill(request, self._at(worker.engine))
        self._wake.set()
        await ended
        del self._serving[id(request)]
        self._count(request)

    async def _selected(self, name: str, request: Request) -> Worker:
        blocks = max(1, -(-request.isl // BLOCK_SIZE))
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
            if answer is not None:  # an engine that has just been stopped
                await self._call("DELETE", f"{self._selector}/reservations/{name}")
            await asyncio.sleep(RETRY_S)

    def _count(self, request: Request) -> None:
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

    # --- engines

    async def _run_engines(self) -> None:
        while True:
            for worker in list(self._workers.values()):
                self._advance(worker)
                self._report_blocks(worker)
            due = min((w.engine.next_at for w in self._workers.values()), default=inf)
            self._wake.clear()
            wait_s = min(REST_S, max(0.0, (due - self.now()) / self.speedup))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), wait_s)

    async def _watch(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(REST_S)
            late_s = time.monotonic() - before - REST_S
            if late_s >= STALL_S:
                self.totals.stalled_s += late_s

    def _at(self, engine: Engine) -> float:
        """Now, after everything that should have happened on the engine before."""
        now = self.now()
        for worker in self._workers.values():
            if worker.engine is engine:
                self._advance(worker)
        return max(now, engine.now)

    def _advance(self, worker: Worker) -> None:
        """At the times of the events, however late we look."""
        engine, now = worker.engine, self.now()
        while engine.next_at <= now:
            at = engine.next_at
            prefilled, done = engine.advance(at)
            for request in prefilled:
                self._report(request, "prefill_complete")
                if request.osl > 1:
                    engine.decode(request, at)
                else:
                    request.done_s = at
                    done.append(request)
            for request in done:
                worker.blocks.pop(id(request), None)
                self._report(request, None)

    def _report_blocks(self, worker: Worker) -> None:
        for request, tokens in worker.engine.generated(self._at(worker.engine)):
            whole = tokens // BLOCK_SIZE
            for _ in range(worker.blocks.get(id(request), 0), whole):
                self._report(request, "output_block")
            worker.blocks[id(request)] = whole

    def _report(self, request: Request, verb: str | None) -> None:
        """None: it has ended."""
        served = self._serving[id(request)]
        path = f"{self._selector}/reservations/{served.name}"
        if verb is None:
            self._begin(self._call("DELETE", path))
            served.end()
        else:
            self._begin(self._call("POST", f"{path}/{verb}"))

    # --- platform

    async def _obey(self) -> None:
        """Carry out the newest decision, and say so when it is done."""
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
                self._starting.pop().cancel()
            else:
                self._leave(victims)
        self._note()
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
        engine = Engine(f"e{number}", self.fleet.speed, self.fleet.limits, self.now())
        self._workers[number] = Worker(number, engine)
        task = asyncio.current_task()
        if task is not None:
            self._starting.discard(task)
        self._note()

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
        """As engines do at a selector that has begun anew: one after the other."""
        staying = [worker for worker in self._workers.values() if worker.leaves_at == inf]
        for worker in staying:
            await self._register(worker.worker_id)
            await asyncio.sleep(REGISTER_S)

    def _leave(self, victims: Sequence[int]) -> None:
        """One that the planner has drained, else the one with the least to do."""
        staying = [worker for worker in self._workers.values() if worker.leaves_at == inf]
        if staying:
            worker = min(
                staying,
                key=lambda w: (w.worker_id not in victims, w.engine.live, w.engine.queued_tokens),
            )
            worker.leaves_at = self.now() + DRAIN_S

    async def _stop_drained(self) -> None:
        for worker in list(self._workers.values()):
            if worker.leaves_at == inf:
                continue
            if worker.engine.is_idle or self.now() >= worker.leaves_at:
                await self._call("DELETE", f"{self._selector}/workers/{worker.worker_id}")
                del self._workers[worker.worker_id]
                self._stop(worker)
                self._note()

    def _stop(self, worker: Worker) -> None:
        """What is still there fails: it ends without having been done."""
        worker.engine.stop()
        for served in self._serving.values():
            if served.worker is worker:
                served.end()

    def _note(self) -> None:
        """GPU seconds until now, and how many engines there are from here on."""
        now = self.now()
        held = len(self._workers) + len(self._starting)
        before = self.samples[-1][2] if self.samples else 0
        self.totals.gpu_s += before * max(0.0, now - self._counted_s)
        self._counted_s = now
        self.totals.gpus_most = max(self.totals.gpus_most, held)
        self.samples.append((now, self.ready, held))

    # --- HTTP

    def _begin(self, call: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(call)
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    async def _call(self, method: str, url: str, body: Any = None) -> Any:
        """The answer; None: it was refused, or nobody answered."""
        assert self._http is not None
        try:
            async with self._http.request(method, url, json=body) as answer:
                found = await answer.json(content_type=None)
                return found if answer.status < 300 else None
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None
