"""Virtual time: clients, engines, and events with their delays.

A client requests a rank from a router, sends its prompt there at once, and reports the first token,
every full block of the answer and the end, as in docs/reference/api.md. The next turn of a session
comes after the end. KV events are sent after their step and arrive some milliseconds later.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple, Protocol

from select_service.sim.replay.block_streams import ReplayRequest, ReplaySession, ReplayWorkload
from select_service.sim.replay.gpu_hardware import BLOCK_TOKENS, Fleet
from select_service.sim.replay.kv_block_pool import Chain, Change
from select_service.sim.replay.scheduler_engine import EngineJob, EngineTotals, SchedulerEngine

EVENT_DELAY_S = 0.005
"""Delay from the end of a step to the index, in seconds: publishing, network, reading."""


class RankRequest(NamedTuple):
    """Request of a client for a rank. chain: full blocks of the prompt; session: number of the
    session.
    """

    number: int
    chain: Chain
    prompt_tokens: int
    session: int


class ReplayRouter(Protocol):
    """A router. Requests and ranks are numbers; `now` is in seconds."""

    def choose(self, ask: RankRequest, now: float) -> int | None:
        """Return a rank; None means that the request waits until `released` returns it."""

    def first_token(self, number: int, now: float) -> None: ...
    def output_block(self, number: int, now: float) -> None: ...
    def finished(self, number: int, now: float) -> None: ...

    def changed(self, rank: int, changes: Sequence[Change], now: float) -> None:
        """Receive the KV events of a step."""

    def released(self, now: float) -> Iterable[tuple[int, int]]:
        """Return requests that stop waiting, with their ranks; called after each release."""


@dataclass(slots=True)
class RequestHistory:
    """History of a request.

    Times in seconds; the first token and the end are -1 before they occur.
    """

    turn: ReplayRequest
    arrived_s: float
    rank: int = -1
    first_s: float = -1.0
    end_s: float = -1.0
    cached: int = 0
    preempted: int = 0


@dataclass(slots=True)
class RunRecord:
    """History of all requests in order of arrival, and totals of each engine."""

    histories: list[RequestHistory] = field(default_factory=list)
    work: list[EngineTotals] = field(default_factory=list)


class ReplayWorld:
    """State of a run."""

    def __init__(
        self, workload: ReplayWorkload, fleet: Fleet, event_delay_s: float = EVENT_DELAY_S
    ):
        self.time = 0.0
        self.engines = [SchedulerEngine(hardware, workload.n_blocks) for hardware in fleet]
        self.record = RunRecord(work=[engine.work for engine in self.engines])
        self._workload = workload
        self._event_delay_s = event_delay_s
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()
        self._began: list[float | None] = [None] * len(fleet)
        self._stretch = [0] * len(fleet)
        self._completing = -1
        self._turns: list[tuple[ReplaySession, int, int]] = []
        self._backlog: deque[int] = deque()
        self._unfinished = workload.requests
        self._live = 0
        self._live_max = 0

    # Time

    def schedule_at(self, when: float, what: Callable[..., None], *arguments: Any) -> None:
        # The counter resolves ties by insertion and keeps functions from being compared.
        heapq.heappush(self._due, (when, next(self._order), what, arguments))

    def schedule_every(
        self, seconds: float, what: Callable[..., None], *arguments: Any, first: float = 0.0
    ) -> None:
        """Call a function periodically until all requests have ended."""
        self.schedule_at(self.time + first, self._run_and_reschedule, seconds, what, arguments)

    def _run_and_reschedule(
        self, seconds: float, what: Callable[..., None], arguments: tuple[Any, ...]
    ) -> None:
        what(*arguments)
        if self._unfinished:
            self.schedule_at(
                self.time + seconds, self._run_and_reschedule, seconds, what, arguments
            )

    def run_open(self, chooser: ReplayRouter, sessions_per_s: float) -> RunRecord:
        """Run with sessions that start at their own times, independent of the load."""
        self._chooser = chooser
        starts = self._workload.timed(self._workload.units, sessions_per_s)
        for number, start in enumerate(starts.tolist()):
            self.schedule_at(start, self._request_rank, number, 0)
        self._run_events()
        return self.record

    def run_closed(self, chooser: ReplayRouter, live_max: int) -> RunRecord:
        """Run with a new session whenever fewer than `live_max` requests are live."""
        self._chooser = chooser
        self._live_max = live_max
        self._backlog.extend(range(len(self._workload.sessions)))
        self._start_more()
        self._run_events()
        return self.record

    def _run_events(self) -> None:
        while self._due:
            when, _, what, arguments = heapq.heappop(self._due)
            self.pass_time(when)
            what(*arguments)

    def pass_time(self, until: float) -> None:
        """Set the time; overridden where virtual time waits for a clock."""
        self.time = until

    # Clients

    def _start_more(self) -> None:
        while self._backlog and self._live < self._live_max:
            self._request_rank(self._backlog.popleft(), 0)

    def _request_rank(self, session: int, turn_number: int) -> None:
        turn = self._workload.sessions[session][turn_number]
        number = len(self.record.histories)
        self.record.histories.append(RequestHistory(turn, self.time))
        self._turns.append((self._workload.sessions[session], session, turn_number))
        self._live += 1
        chain = turn.chain[: turn.prompt_tokens // BLOCK_TOKENS]
        rank = self._chooser.choose(
            RankRequest(number, chain, turn.prompt_tokens, session), self.time
        )
        if rank is not None:
            self._send_to_rank(number, rank)

    def _send_to_rank(self, number: int, rank: int) -> None:
        life = self.record.histories[number]
        life.rank = rank
        turn = life.turn
        self.engines[rank].add_job(
            EngineJob(number, turn.chain, turn.prompt_tokens, turn.output_tokens)
        )
        began = self._began[rank]
        if rank == self._completing:
            return  # the end of the step plans again
        if began is None:
            self._plan_stretch(rank)
        else:
            ends = began + self.engines[rank].cut_stretch(self.time - began)
            self._end_stretch_at(rank, max(ends, self.time))

    def send_released(self) -> None:
        """Send the requests that stop waiting."""
        for number, rank in self._chooser.released(self.time):
            self._send_to_rank(number, rank)

    # Engines

    def _plan_stretch(self, rank: int) -> None:
        engine = self.engines[rank]
        seconds = engine.plan_stretch()
        self._began[rank] = None if seconds is None else self.time
        if seconds is not None:
            self._end_stretch_at(rank, self.time + seconds)

    def _end_stretch_at(self, rank: int, when: float) -> None:
        """Schedule the end of a stretch; an earlier end invalidates the planned end."""
        # Invalidates the event of the former end, which stays in the heap.
        self._stretch[rank] += 1
        self.schedule_at(when, self._complete_stretch, rank, self._stretch[rank])

    def _complete_stretch(self, rank: int, stretch: int) -> None:
        # A stretch that was cut left this event in the heap.
        if stretch != self._stretch[rank]:
            return
        engine, self._completing = self.engines[rank], rank
        progress = engine.complete_stretch()
        if engine.pool.changes:
            self.schedule_at(
                self.time + self._event_delay_s, self._deliver_events, rank, engine.pool.changes
            )
            # A new list: the old list travels with the event.
            engine.pool.changes = []
        for job in progress.first_tokens:
            self._record_first_token(job)
        for job in progress.blocks:
            self._chooser.output_block(job.number, self.time)
        for job in progress.finished:
            self._record_finish(job)
        self.send_released()
        self._completing = -1
        self._plan_stretch(rank)

    def _deliver_events(self, rank: int, changes: Sequence[Change]) -> None:
        self._chooser.changed(rank, changes, self.time)
        self.send_released()

    def _record_first_token(self, job: EngineJob) -> None:
        life = self.record.histories[job.number]
        life.first_s, life.cached = self.time, job.cached
        self._chooser.first_token(job.number, self.time)

    def _record_finish(self, job: EngineJob) -> None:
        life = self.record.histories[job.number]
        life.end_s = self.time
        self._chooser.finished(job.number, self.time)
        self._live -= 1
        self._unfinished -= 1
        session, session_number, turn_number = self._turns[job.number]
        if turn_number + 1 < len(session):
            when = self.time + life.turn.think_s
            self.schedule_at(when, self._request_rank, session_number, turn_number + 1)
        self._start_more()
