"""Virtual time: simulated ranks working off a workload, whoever decides where requests go.

Pure.  `next_step` hands out what happens next, in order of virtual time, and the caller reacts: it
must answer a CHOOSE with `assign`; the other steps only tell.  The same world is driven through a
running service (`drive`) and by the baselines (`baselines`), so that they differ in the choice
alone.

The time model, all of it:

* a rank computes one prompt at a time, first come first served; that takes PREFILL_FIXED_S plus
  PREFILL_TOKEN_S for each token of the prompt that is not a cached full block;
* a request whose blocks do not fit waits at the head of its rank's line until running ones finish;
* an answer grows by one block each DECODE_TOKEN_S * block_size, however many run beside it;
* the next turn of a conversation comes `think_s` after the answer to the one before.

The numbers are those of a mid-size model on one GPU, rounded; only their ratio matters here.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from select_service.simulator.engine import Engine, Job, KvEvent, Running
from select_service.simulator.workload import Session, Workload

PREFILL_FIXED_S = 0.005
PREFILL_TOKEN_S = 0.0001
DECODE_TOKEN_S = 0.01


class Step(Enum):
    """What happened to a request."""

    CHOOSE = auto()
    PREFILL_DONE = auto()
    OUTPUT_BLOCK = auto()
    FINISHED = auto()


@dataclass(slots=True)
class SimRequest:
    """One turn on its way through the fleet.  Times are virtual seconds."""

    name: str
    session: Session
    turn_index: int
    job: Job
    arrived_s: float
    rank_index: int | None = None
    running: Running | None = None
    output_blocks_done: int = 0

    @property
    def prompt(self) -> list[int]:
        """The token ids of the prompt."""
        prompt_tokens = self.session.turns[self.turn_index].prompt_tokens
        prompt: list[int] = self.session.tokens[:prompt_tokens].tolist()
        return prompt

    @property
    def prompt_keys(self) -> Sequence[int]:
        """The chain keys of the prompt's full blocks."""
        return self.job.keys[: self.job.prompt_blocks]


class Happening(NamedTuple):
    """One step of one request."""

    step: Step
    request: SimRequest


@dataclass(slots=True)
class RankLine:
    """One rank: its cache, its waiting line and what it has done so far."""

    engine: Engine
    waiting: deque[SimRequest] = field(default_factory=deque)
    prefilling: bool = False
    live_requests: int = 0
    requests: int = 0
    prefill_s: float = 0.0


@dataclass(slots=True)
class Tally:
    """What a run measured.  Blocks are full prompt blocks; hits were in the cache at admission."""

    requests: int = 0
    prompt_blocks: int = 0
    hit_blocks: int = 0
    reachable_blocks: int = 0
    first_token_s: list[float] = field(default_factory=list)


def ignore_events(rank_index: int, events: Sequence[KvEvent]) -> None:
    """The outlet of a world that nobody listens to."""


class World:
    """Requests, ranks and the virtual clock.  `emit` gets a rank's KV events as they happen."""

    def __init__(
        self,
        workload: Workload,
        engines: Sequence[Engine],
        emit: Callable[[int, list[KvEvent]], None] = ignore_events,
    ) -> None:
        self.now_s = 0.0
        self.lines = tuple(RankLine(engine) for engine in engines)
        self.tally = Tally()
        self._workload = workload
        self._emit = emit
        self._seen_keys: set[int] = set()
        self._agenda: list[tuple[float, int, Happening]] = []
        self._order = 0
        for session in workload.sessions:
            self._arrive(session, 0, session.start_s)

    def next_step(self) -> Happening | None:
        """Advance to the next step and carry it out.  None: every request has been answered."""
        if not self._agenda:
            return None
        self.now_s, _, happening = heapq.heappop(self._agenda)
        match happening.step:
            case Step.PREFILL_DONE:
                self._prefill_done(happening.request)
            case Step.OUTPUT_BLOCK:
                self._output_block(happening.request)
            case Step.FINISHED:
                self._finished(happening.request)
        return happening

    def assign(self, request: SimRequest, rank_index: int) -> None:
        """The answer to CHOOSE: the request joins the line of that rank."""
        assert request.rank_index is None
        request.rank_index = rank_index
        line = self.lines[rank_index]
        line.waiting.append(request)
        line.live_requests += 1
        line.requests += 1
        self._start_next(rank_index)

    def held(self, rank_index: int, request: SimRequest) -> int:
        """How many leading prompt blocks that rank's cache holds now."""
        return self.lines[rank_index].engine.held(request.prompt_keys)

    def _arrive(self, session: Session, turn_index: int, at_s: float) -> None:
        job = self._workload.job(session, turn_index)
        request = SimRequest(f"{session.name}-{turn_index}", session, turn_index, job, at_s)
        self._schedule(at_s, Step.CHOOSE, request)

    def _schedule(self, at_s: float, step: Step, request: SimRequest) -> None:
        self._order += 1
        heapq.heappush(self._agenda, (at_s, self._order, Happening(step, request)))

    def _start_next(self, rank_index: int) -> None:
        line = self.lines[rank_index]
        if line.prefilling or not line.waiting or not line.engine.has_room(line.waiting[0].job):
            return
        request = line.waiting.popleft()
        request.running, hits = line.engine.admit(request.job)
        self._emit(rank_index, line.engine.take_events())
        self._count(request, hits)
        prompt_tokens = request.session.turns[request.turn_index].prompt_tokens
        computed_tokens = prompt_tokens - hits * line.engine.block_size
        cost_s = PREFILL_FIXED_S + PREFILL_TOKEN_S * computed_tokens
        line.prefilling = True
        line.prefill_s += cost_s
        self._schedule(self.now_s + cost_s, Step.PREFILL_DONE, request)

    def _count(self, request: SimRequest, hits: int) -> None:
        keys = request.prompt_keys
        self.tally.requests += 1
        self.tally.prompt_blocks += len(keys)
        self.tally.hit_blocks += hits
        self.tally.reachable_blocks += sum(1 for key in keys if key in self._seen_keys)
        self._seen_keys.update(keys)

    def _prefill_done(self, request: SimRequest) -> None:
        rank_index, line = self._line_of(request)
        line.prefilling = False
        self.tally.first_token_s.append(self.now_s - request.arrived_s)
        self._schedule(self.now_s + self._block_s(line), Step.OUTPUT_BLOCK, request)
        self._start_next(rank_index)

    def _output_block(self, request: SimRequest) -> None:
        rank_index, line = self._line_of(request)
        assert request.running is not None
        self._seen_keys.add(request.job.keys[request.running.full_blocks])
        line.engine.grow(request.running)
        self._emit(rank_index, line.engine.take_events())
        request.output_blocks_done += 1
        if request.output_blocks_done < request.job.output_blocks:
            self._schedule(self.now_s + self._block_s(line), Step.OUTPUT_BLOCK, request)
        else:
            self._schedule(self.now_s, Step.FINISHED, request)

    def _finished(self, request: SimRequest) -> None:
        rank_index, line = self._line_of(request)
        assert request.running is not None
        line.engine.finish(request.running)
        line.live_requests -= 1
        turn = request.session.turns[request.turn_index]
        if request.turn_index + 1 < len(request.session.turns):
            self._arrive(request.session, request.turn_index + 1, self.now_s + turn.think_s)
        self._start_next(rank_index)

    def _line_of(self, request: SimRequest) -> tuple[int, RankLine]:
        assert request.rank_index is not None
        return request.rank_index, self.lines[request.rank_index]

    def _block_s(self, line: RankLine) -> float:
        return DECODE_TOKEN_S * line.engine.block_size
