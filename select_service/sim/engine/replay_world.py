"""Virtual time: clients, engines, and events with their delays.

A client requests a rank from a router, sends its prompt there at once, and reports the first token,
every full block of the answer and the end, as in docs/reference/api.md. The next turn of a session
comes after the end. KV events are sent after their step and arrive some milliseconds later.

The world yields one step after the other and its driver reacts: `run_open` and `run_closed` call a
router, the demo calls a running service.
"""

import heapq
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count
from typing import Any, NamedTuple, Protocol

from select_service.sim.engine.block_streams import ReplayRequest, ReplayWorkload
from select_service.sim.engine.gpu_hardware import Fleet
from select_service.sim.engine.kv_block_pool import Chain, Change
from select_service.sim.engine.scheduler_engine import (
    EngineJob,
    EngineTotals,
    SchedulerEngine,
    StretchResult,
)

EVENT_DELAY_S = 0.005
"""Delay from the end of a step to the index, in seconds: publishing, network, reading."""


class RankRequest(NamedTuple):
    """Request of a client for a rank. chain: full blocks of the prompt; session: number or label
    of the session.
    """

    number: int
    chain: Chain
    prompt_tokens: int
    session: int


class ReplayRouter(Protocol):
    """A router, by default without interest in reports and KV events.

    Requests and ranks are numbers; `now` is in seconds.
    """

    def choose(self, ask: RankRequest, now: float) -> int | None:
        """Return a rank; None means that the request waits until `released` returns it."""

    def finished(self, number: int, now: float) -> None: ...

    def first_token(self, number: int, now: float) -> None:
        return

    def output_block(self, number: int, now: float) -> None:
        return

    def changed(self, rank: int, changes: Sequence[Change], now: float) -> None:
        """Receive the KV events of a step."""
        return

    def released(self, now: float) -> Iterable[tuple[int, int]]:
        """Return requests that stop waiting, with their ranks; called after each release."""
        return ()


@dataclass(slots=True)
class RequestHistory:
    """History of a request.

    Times in seconds; the first token and the end are -1 before they occur.
    prefill_rank: rank that computes the prompt for `rank`; -1 means that `rank` does both
    moved: tokens of the prompt that moved from there
    """

    turn: ReplayRequest
    arrived_s: float
    rank: int = -1
    first_s: float = -1.0
    end_s: float = -1.0
    cached: int = 0
    preempted: int = 0
    prefill_rank: int = -1
    moved: int = 0


@dataclass(slots=True)
class RunRecord:
    """History of all requests in order of arrival, and totals of each engine."""

    histories: list[RequestHistory] = field(default_factory=list)
    work: list[EngineTotals] = field(default_factory=list)


class StepKind(Enum):
    """Kind of a step, with the number in the step.

    CHOOSE, FIRST_TOKEN, OUTPUT_BLOCK, FINISHED: step of a request, with its number
    PREFILL_COMPLETE: a prefill rank has computed a prompt for another rank
    KV_EVENTS: changes of a rank, with its number
    RELEASED: requests may stop waiting for a rank
    """

    CHOOSE = auto()
    PREFILL_COMPLETE = auto()
    FIRST_TOKEN = auto()
    OUTPUT_BLOCK = auto()
    FINISHED = auto()
    KV_EVENTS = auto()
    RELEASED = auto()


class WorldStep(NamedTuple):
    """A step of a run."""

    kind: StepKind
    number: int = -1
    changes: Sequence[Change] = ()


WorldSteps = Iterator[WorldStep]


class ReplayWorld:
    """State of a run.

    event_delay_s: delay of KV events after their step; None means at the allocation of the blocks
    engines:       idle engines of an earlier run; None means new engines
    """

    def __init__(
        self,
        workload: ReplayWorkload,
        fleet: Fleet,
        event_delay_s: float | None = EVENT_DELAY_S,
        engines: Sequence[SchedulerEngine] | None = None,
    ):
        self.time = 0.0
        self.engines = engines or [SchedulerEngine(each, workload.n_blocks) for each in fleet]
        self.record = RunRecord(work=[engine.work for engine in self.engines])
        self._workload = workload
        self._event_delay_s = event_delay_s
        self._due: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._order = count()
        self._began: list[float | None] = [None] * len(fleet)
        self._stretch = [0] * len(fleet)
        self._completing = -1
        self._block_tokens = fleet[0].block_tokens
        self._turns: list[tuple[int, int]] = []
        self._assigned: list[int] = []
        self._backlog: deque[int] = deque()
        self._unfinished = workload.requests
        self._live = 0
        self._live_max = 0

    # Time

    def schedule_at(self, when: float, what: Callable[..., object], *arguments: Any) -> None:
        """Call a function at a time; the steps of a generator function become steps of the run."""
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

    def pass_time(self, until: float) -> None:
        """Set the time; overridden where virtual time waits for a clock."""
        self.time = until

    # Runs

    def run_open(self, chooser: ReplayRouter, sessions_per_s: float) -> RunRecord:
        """Run with sessions that start at their own times, independent of the load."""
        return self._follow_router(chooser, self.open_steps(sessions_per_s))

    def run_closed(self, chooser: ReplayRouter, live_max: int) -> RunRecord:
        """Run with a new session whenever fewer than `live_max` requests are live."""
        self._live_max = live_max
        self._backlog.extend(range(len(self._workload.sessions)))
        self.schedule_at(0.0, self._start_more)
        return self._follow_router(chooser, self._run_events())

    def open_steps(self, sessions_per_s: float) -> WorldSteps:
        """Yield the steps of `run_open`; the reaction to CHOOSE is `assign_rank`."""
        starts = self._workload.timed(self._workload.units, sessions_per_s)
        for number, start in enumerate(starts.tolist()):
            self.schedule_at(start, self._request_rank, number, 0)
        return self._run_events()

    def _run_events(self) -> WorldSteps:
        while self._due:
            when, _, what, arguments = heapq.heappop(self._due)
            self.pass_time(when)
            steps = what(*arguments)
            if isinstance(steps, Generator):
                yield from steps

    def _follow_router(self, chooser: ReplayRouter, steps: WorldSteps) -> RunRecord:
        for step in steps:
            self._follow_step(chooser, step)
        return self.record

    def _follow_step(self, chooser: ReplayRouter, step: WorldStep) -> None:
        kind, number, changes = step
        match kind:
            case StepKind.CHOOSE:
                rank = chooser.choose(self.rank_request(number), self.time)
                if rank is not None:
                    self.assign_rank(number, rank)
            case StepKind.FIRST_TOKEN:
                chooser.first_token(number, self.time)
            case StepKind.OUTPUT_BLOCK:
                chooser.output_block(number, self.time)
            case StepKind.FINISHED:
                chooser.finished(number, self.time)
            case StepKind.KV_EVENTS:
                chooser.changed(number, changes, self.time)
            case StepKind.RELEASED:
                for released, rank in chooser.released(self.time):
                    self.assign_rank(released, rank)

    # Clients

    def rank_request(self, number: int) -> RankRequest:
        """Return the request of a client for a rank."""
        turn = self.record.histories[number].turn
        chain = turn.chain[: turn.prompt_tokens // self._block_tokens]
        session = self._turns[number][0]
        if self._workload.labels:
            session = self._workload.labels[session]
        return RankRequest(number, chain, turn.prompt_tokens, session)

    def turn_of(self, number: int) -> tuple[int, int]:
        """Return the session of a request and the number of its turn."""
        return self._turns[number]

    def assign_rank(self, number: int, rank: int) -> None:
        """Answer CHOOSE or RELEASED: the request goes to the rank before the next step."""
        self.record.histories[number].rank = rank
        self._assigned.append(number)

    def _start_more(self) -> WorldSteps:
        while self._backlog and self._live < self._live_max:
            yield from self._request_rank(self._backlog.popleft(), 0)

    def _request_rank(self, session: int, turn_number: int) -> WorldSteps:
        turn = self._workload.sessions[session][turn_number]
        number = len(self.record.histories)
        self.record.histories.append(RequestHistory(turn, self.time))
        self._turns.append((session, turn_number))
        self._live += 1
        yield WorldStep(StepKind.CHOOSE, number)
        yield from self._send_assigned()

    def send_released(self) -> WorldSteps:
        """Send the requests that stop waiting."""
        yield WorldStep(StepKind.RELEASED)
        yield from self._send_assigned()

    def _send_assigned(self) -> WorldSteps:
        assigned, self._assigned = self._assigned, []
        for number in assigned:
            yield from self._send_to_rank(number)

    def _send_to_rank(self, number: int) -> WorldSteps:
        turn, rank = self.record.histories[number].turn, self.record.histories[number].rank
        job = EngineJob(number, turn.chain, turn.prompt_tokens, turn.output_tokens)
        yield from self._add_job(rank, job)

    def _add_job(self, rank: int, job: EngineJob) -> WorldSteps:
        self.engines[rank].add_job(job)
        yield from self._plan_again(rank)

    def _plan_again(self, rank: int) -> WorldSteps:
        """Let an engine look at its jobs again, after the present step."""
        began = self._began[rank]
        if rank == self._completing:
            return  # the end of the step plans again
        if began is None:
            yield from self._plan_stretch(rank)
        else:
            ends = began + self.engines[rank].cut_stretch(self.time - began)
            self._end_stretch_at(rank, max(ends, self.time))

    # Engines

    def _plan_stretch(self, rank: int) -> WorldSteps:
        seconds = self.engines[rank].plan_stretch()
        self._began[rank] = None if seconds is None else self.time
        if seconds is not None:
            self._end_stretch_at(rank, self.time + seconds)
        if self._event_delay_s is None:
            yield from self._send_events(rank)

    def _end_stretch_at(self, rank: int, when: float) -> None:
        """Schedule the end of a stretch; an earlier end invalidates the planned end."""
        # Invalidates the event of the former end, which stays in the heap.
        self._stretch[rank] += 1
        self.schedule_at(when, self._complete_stretch, rank, self._stretch[rank])

    def _complete_stretch(self, rank: int, stretch: int) -> WorldSteps:
        # A stretch that was cut left this event in the heap.
        if stretch != self._stretch[rank]:
            return
        self._completing = rank
        progress = self.engines[rank].complete_stretch()
        yield from self._send_events(rank)
        yield from self._report_progress(rank, progress)
        yield from self.send_released()
        self._completing = -1
        yield from self._plan_stretch(rank)

    def _report_progress(self, rank: int, progress: StretchResult) -> WorldSteps:
        """Report what the clients of an engine see."""
        for job in progress.first_tokens:
            history = self.record.histories[job.number]
            history.first_s, history.cached = self.time, job.cached
            yield WorldStep(StepKind.FIRST_TOKEN, job.number)
        for job in progress.blocks:
            yield WorldStep(StepKind.OUTPUT_BLOCK, job.number)
        for job in progress.finished:
            yield from self._finish_request(job.number)

    def _send_events(self, rank: int) -> WorldSteps:
        """Send the KV events of a rank, at once or after their delay."""
        pool = self.engines[rank].pool
        changes, pool.changes = pool.changes, []
        if not changes:
            return
        if self._event_delay_s is None:
            yield WorldStep(StepKind.KV_EVENTS, rank, changes)
        else:
            self.schedule_at(self.time + self._event_delay_s, self._deliver_events, rank, changes)

    def _deliver_events(self, rank: int, changes: Sequence[Change]) -> WorldSteps:
        yield WorldStep(StepKind.KV_EVENTS, rank, changes)
        yield from self.send_released()

    def _finish_request(self, number: int) -> WorldSteps:
        history = self.record.histories[number]
        history.end_s = self.time
        yield WorldStep(StepKind.FINISHED, number)
        self._live -= 1
        self._unfinished -= 1
        session, turn_number = self._turns[number]
        if turn_number + 1 < len(self._workload.sessions[session]):
            when = self.time + history.turn.think_s
            self.schedule_at(when, self._request_rank, session, turn_number + 1)
        yield from self._start_more()
