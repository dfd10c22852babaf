"""Virtual time: clients that ask, engines that answer, and events that take their time.

A client asks a chooser for a rank, sends its prompt there at once, reports the first token, every
full block of the answer and the end, as docs/api.md says.  The next turn of a session comes after
its end.  What an engine has stored and removed is told after the step in which it did, and arrives
some milliseconds later.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple, Protocol

from select_service.replaying.engine import Engine, Job, Work
from select_service.replaying.hardware import BLOCK_TOKENS, Fleet
from select_service.replaying.pool import Chain, Change
from select_service.replaying.streams import Session, Turn, Workload

EVENT_DELAY_S = 0.005
"""From the end of a step to the index: publishing, the network, reading."""


class Ask(NamedTuple):
    """A client asks for a rank.  chain: the full blocks of its prompt;  session: its number"""

    number: int
    chain: Chain
    prompt_tokens: int
    session: int


class Chooser(Protocol):
    """Who chooses.  Requests and ranks are numbers; `now` is in seconds."""

    def choose(self, ask: Ask, now: float) -> int | None:
        """A rank; None: the request waits until `released` names it."""

    def first_token(self, number: int, now: float) -> None: ...
    def output_block(self, number: int, now: float) -> None: ...
    def finished(self, number: int, now: float) -> None: ...

    def changed(self, rank: int, changes: Sequence[Change], now: float) -> None:
        """The KV events of a step have arrived."""

    def released(self, now: float) -> Iterable[tuple[int, int]]:
        """Requests that wait no more, with their ranks; asked after whatever may free a rank."""


@dataclass(slots=True)
class Life:
    """One request.  Times in seconds; the first token and the end are -1 before they are there."""

    turn: Turn
    asked_s: float
    rank: int = -1
    first_s: float = -1.0
    end_s: float = -1.0
    cached: int = 0
    preempted: int = 0


@dataclass(slots=True)
class Record:
    """All requests in the order in which they were asked, and what each engine did."""

    lives: list[Life] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)


class World:
    """One run."""

    def __init__(self, workload: Workload, fleet: Fleet, event_delay_s: float = EVENT_DELAY_S):
        self.time = 0.0
        self.engines = [Engine(hardware, workload.n_blocks) for hardware in fleet]
        self.record = Record(work=[engine.work for engine in self.engines])
        self._workload = workload
        self._event_delay_s = event_delay_s
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()
        self._began: list[float | None] = [None] * len(fleet)
        self._stretch = [0] * len(fleet)
        self._completing = -1
        self._turns: list[tuple[Session, int, int]] = []
        self._backlog: deque[int] = deque()
        self._unfinished = workload.requests
        self._live = 0
        self._live_max = 0

    # --- time

    def at(self, when: float, what: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._due, (when, next(self._order), what, arguments))

    def every(
        self, seconds: float, what: Callable[..., None], *arguments: Any, first: float = 0.0
    ) -> None:
        """Again and again, until all requests have ended."""
        self.at(self.time + first, self._recur, seconds, what, arguments)

    def _recur(self, seconds: float, what: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        what(*arguments)
        if self._unfinished:
            self.at(self.time + seconds, self._recur, seconds, what, arguments)

    def run_open(self, chooser: Chooser, sessions_per_s: float) -> Record:
        """Sessions start when they do, however long others take."""
        self._chooser = chooser
        starts = self._workload.timed(self._workload.units, sessions_per_s)
        for number, start in enumerate(starts.tolist()):
            self.at(start, self._ask, number, 0)
        self._run()
        return self.record

    def run_closed(self, chooser: Chooser, live_max: int) -> Record:
        """A session starts whenever fewer than so many requests are live."""
        self._chooser = chooser
        self._live_max = live_max
        self._backlog.extend(range(len(self._workload.sessions)))
        self._start_more()
        self._run()
        return self.record

    def _run(self) -> None:
        while self._due:
            when, _, what, arguments = heapq.heappop(self._due)
            self.pass_time(when)
            what(*arguments)

    def pass_time(self, until: float) -> None:
        """Overridden where virtual time waits for a clock."""
        self.time = until

    # --- clients

    def _start_more(self) -> None:
        while self._backlog and self._live < self._live_max:
            self._ask(self._backlog.popleft(), 0)

    def _ask(self, session: int, turn_number: int) -> None:
        turn = self._workload.sessions[session][turn_number]
        number = len(self.record.lives)
        self.record.lives.append(Life(turn, self.time))
        self._turns.append((self._workload.sessions[session], session, turn_number))
        self._live += 1
        chain = turn.chain[: turn.prompt_tokens // BLOCK_TOKENS]
        rank = self._chooser.choose(Ask(number, chain, turn.prompt_tokens, session), self.time)
        if rank is not None:
            self._send(number, rank)

    def _send(self, number: int, rank: int) -> None:
        life = self.record.lives[number]
        life.rank = rank
        turn = life.turn
        self.engines[rank].add(Job(number, turn.chain, turn.prompt_tokens, turn.output_tokens))
        began = self._began[rank]
        if rank == self._completing:
            return  # it plans anew in a moment
        if began is None:
            self._plan(rank)
        else:
            ends = began + self.engines[rank].cut(self.time - began)
            self._end_stretch_at(rank, max(ends, self.time))

    def let_go(self) -> None:
        """Send what the chooser lets wait no more."""
        for number, rank in self._chooser.released(self.time):
            self._send(number, rank)

    # --- engines

    def _plan(self, rank: int) -> None:
        engine = self.engines[rank]
        seconds = engine.plan()
        self._began[rank] = None if seconds is None else self.time
        if seconds is not None:
            self._end_stretch_at(rank, self.time + seconds)

    def _end_stretch_at(self, rank: int, when: float) -> None:
        """A stretch that was cut ends earlier than planned: what was planned is void."""
        self._stretch[rank] += 1
        self.at(when, self._stretched, rank, self._stretch[rank])

    def _stretched(self, rank: int, stretch: int) -> None:
        if stretch != self._stretch[rank]:
            return
        engine, self._completing = self.engines[rank], rank
        progress = engine.complete()
        if engine.pool.changes:
            self.at(self.time + self._event_delay_s, self._tell, rank, engine.pool.changes)
            engine.pool.changes = []
        for job in progress.first_tokens:
            self._first_token(job)
        for job in progress.blocks:
            self._chooser.output_block(job.number, self.time)
        for job in progress.finished:
            self._finished(job)
        self.let_go()
        self._completing = -1
        self._plan(rank)

    def _tell(self, rank: int, changes: Sequence[Change]) -> None:
        self._chooser.changed(rank, changes, self.time)
        self.let_go()

    def _first_token(self, job: Job) -> None:
        life = self.record.lives[job.number]
        life.first_s, life.cached = self.time, job.cached
        self._chooser.first_token(job.number, self.time)

    def _finished(self, job: Job) -> None:
        life = self.record.lives[job.number]
        life.end_s = self.time
        self._chooser.finished(job.number, self.time)
        self._live -= 1
        self._unfinished -= 1
        session, session_number, turn_number = self._turns[job.number]
        if turn_number + 1 < len(session):
            when = self.time + life.turn.think_s
            self.at(when, self._ask, session_number, turn_number + 1)
        self._start_more()
