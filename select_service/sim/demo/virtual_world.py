"""Virtual time: simulated ranks execute a workload under any policy.

Pure. `next_step` returns the next step in virtual time, and the caller reacts: the answer to CHOOSE
is `assign_rank`; the other steps are notifications. The same world is driven through a running
service (`workload_driver`) and by the baselines (`baselines`), which differ only in the choices.

The complete time model:

* a rank computes one prompt at a time, first come first served; a prompt takes PREFILL_FIXED_S plus
  PREFILL_TOKEN_S for each token outside of cached full blocks;
* a request without enough room waits at the head of its rank's line for running ones to finish;
* an answer grows by one block each DECODE_TOKEN_S * block_size, independent of the batch;
* the next turn of a conversation comes `think_s` after the previous answer.

The numbers are rounded values of a mid-size model on one GPU; only their ratio matters here.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from select_service.sim.demo.conversations import ConversationWorkload, DemoConversation
from select_service.sim.demo.prefix_cache import CacheJob, KvEvent, PrefixCache, RunningJob

PREFILL_FIXED_S = 0.005
PREFILL_TOKEN_S = 0.0001
DECODE_TOKEN_S = 0.01


class RequestStep(Enum):
    """Step of a request."""

    CHOOSE = auto()
    PREFILL_DONE = auto()
    OUTPUT_BLOCK = auto()
    FINISHED = auto()


@dataclass(slots=True)
class DemoRequest:
    """A turn on its way through the fleet. Times are virtual seconds."""

    name: str
    session: DemoConversation
    turn_index: int
    job: CacheJob
    arrived_s: float
    rank_index: int | None = None
    running: RunningJob | None = None
    output_blocks_done: int = 0

    @property
    def prompt(self) -> list[int]:
        """Token ids of the prompt."""
        prompt_tokens = self.session.turns[self.turn_index].prompt_tokens
        prompt: list[int] = self.session.tokens[:prompt_tokens].tolist()
        return prompt

    @property
    def prompt_keys(self) -> Sequence[int]:
        """Chain keys of the full prompt blocks."""
        return self.job.keys[: self.job.prompt_blocks]


class StepEvent(NamedTuple):
    """A step of a request."""

    step: RequestStep
    request: DemoRequest


@dataclass(slots=True)
class SimulatedRank:
    """A rank: its cache, its waiting line and its totals."""

    engine: PrefixCache
    waiting: deque[DemoRequest] = field(default_factory=deque)
    prefilling: bool = False
    live_requests: int = 0
    requests: int = 0
    prefill_s: float = 0.0


@dataclass(slots=True)
class RunTally:
    """Measurements of a run. Blocks are full prompt blocks; hits were cached at admission."""

    requests: int = 0
    prompt_blocks: int = 0
    hit_blocks: int = 0
    reachable_blocks: int = 0
    first_token_s: list[float] = field(default_factory=list)


def ignore_events(rank_index: int, events: Sequence[KvEvent]) -> None:
    """Discard the events of a world without subscribers."""


class VirtualWorld:
    """Requests, ranks and the virtual clock. `emit` receives the KV events of a rank at once."""

    def __init__(
        self,
        workload: ConversationWorkload,
        engines: Sequence[PrefixCache],
        emit: Callable[[int, list[KvEvent]], None] = ignore_events,
    ) -> None:
        self.now_s = 0.0
        self.lines = tuple(SimulatedRank(engine) for engine in engines)
        self.tally = RunTally()
        self._workload = workload
        self._emit = emit
        self._seen_keys: set[int] = set()
        self._agenda: list[tuple[float, int, StepEvent]] = []
        self._order = 0
        for session in workload.sessions:
            self._schedule_arrival(session, 0, session.start_s)

    def next_step(self) -> StepEvent | None:
        """Advance to the next step and execute it.  None means that all requests are answered."""
        if not self._agenda:
            return None
        self.now_s, _, happening = heapq.heappop(self._agenda)
        match happening.step:
            case RequestStep.PREFILL_DONE:
                self._finish_prefill(happening.request)
            case RequestStep.OUTPUT_BLOCK:
                self._finish_output_block(happening.request)
            case RequestStep.FINISHED:
                self._finish_request(happening.request)
        return happening

    def assign_rank(self, request: DemoRequest, rank_index: int) -> None:
        """Answer CHOOSE: put the request into the line of a rank."""
        assert request.rank_index is None
        request.rank_index = rank_index
        line = self.lines[rank_index]
        line.waiting.append(request)
        line.live_requests += 1
        line.requests += 1
        self._start_next(rank_index)

    def count_cached(self, rank_index: int, request: DemoRequest) -> int:
        """Return how many leading prompt blocks the rank caches now."""
        return self.lines[rank_index].engine.count_cached(request.prompt_keys)

    def _schedule_arrival(self, session: DemoConversation, turn_index: int, at_s: float) -> None:
        job = self._workload.job_of_turn(session, turn_index)
        request = DemoRequest(f"{session.name}-{turn_index}", session, turn_index, job, at_s)
        self._schedule_step(at_s, RequestStep.CHOOSE, request)

    def _schedule_step(self, at_s: float, step: RequestStep, request: DemoRequest) -> None:
        # Ties in time are resolved by insertion, so that runs are reproducible.
        self._order += 1
        heapq.heappush(self._agenda, (at_s, self._order, StepEvent(step, request)))

    def _start_next(self, rank_index: int) -> None:
        line = self.lines[rank_index]
        # Only the head of the line is examined: requests never overtake.
        if line.prefilling or not line.waiting or not line.engine.has_room(line.waiting[0].job):
            return
        request = line.waiting.popleft()
        request.running, hits = line.engine.admit_job(request.job)
        self._emit(rank_index, line.engine.take_events())
        self._count_admission(request, hits)
        prompt_tokens = request.session.turns[request.turn_index].prompt_tokens
        computed_tokens = prompt_tokens - hits * line.engine.block_size
        cost_s = PREFILL_FIXED_S + PREFILL_TOKEN_S * computed_tokens
        line.prefilling = True
        line.prefill_s += cost_s
        self._schedule_step(self.now_s + cost_s, RequestStep.PREFILL_DONE, request)

    def _count_admission(self, request: DemoRequest, hits: int) -> None:
        keys = request.prompt_keys
        self.tally.requests += 1
        self.tally.prompt_blocks += len(keys)
        self.tally.hit_blocks += hits
        # Hits of one endless cache for the whole fleet: an upper bound for every policy.
        self.tally.reachable_blocks += sum(1 for key in keys if key in self._seen_keys)
        self._seen_keys.update(keys)

    def _finish_prefill(self, request: DemoRequest) -> None:
        rank_index, line = self._line_of(request)
        line.prefilling = False
        self.tally.first_token_s.append(self.now_s - request.arrived_s)
        self._schedule_step(self.now_s + self._block_s(line), RequestStep.OUTPUT_BLOCK, request)
        self._start_next(rank_index)

    def _finish_output_block(self, request: DemoRequest) -> None:
        rank_index, line = self._line_of(request)
        assert request.running is not None
        self._seen_keys.add(request.job.keys[request.running.full_blocks])
        line.engine.fill_output_block(request.running)
        self._emit(rank_index, line.engine.take_events())
        request.output_blocks_done += 1
        if request.output_blocks_done < request.job.output_blocks:
            self._schedule_step(self.now_s + self._block_s(line), RequestStep.OUTPUT_BLOCK, request)
        else:
            # A step of its own, so that the caller sees the last output block first.
            self._schedule_step(self.now_s, RequestStep.FINISHED, request)

    def _finish_request(self, request: DemoRequest) -> None:
        rank_index, line = self._line_of(request)
        assert request.running is not None
        line.engine.release_job(request.running)
        line.live_requests -= 1
        turn = request.session.turns[request.turn_index]
        if request.turn_index + 1 < len(request.session.turns):
            self._schedule_arrival(
                request.session, request.turn_index + 1, self.now_s + turn.think_s
            )
        self._start_next(rank_index)

    def _line_of(self, request: DemoRequest) -> tuple[int, SimulatedRank]:
        assert request.rank_index is not None
        return request.rank_index, self.lines[request.rank_index]

    def _block_s(self, line: SimulatedRank) -> float:
        return DECODE_TOKEN_S * line.engine.block_size
