"""Fleet in virtual time with more load than capacity.

The selector is the service's own; engines, clients and the clock are simulated, and everything
follows from one seed. A client requests a rank, and sends its prompt to this rank. After a
refusal the client retries: not before Retry-After, later with every attempt, and never at a
fixed delay. A client without its whole answer in time gives up and retries, too; after
ATTEMPTS_MAX attempts the request is lost.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

import numpy as np

from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import Tier
from select_service.base.errors import SelectError
from select_service.core.admission.waiting_ticket import WaitingTicket
from select_service.core.identity import Rank
from select_service.core.placement.router_config import RouterConfig
from select_service.core.selector import SelectorCore
from select_service.core.selector_builder import SelectorConfig, build_selector
from select_service.core.views.rank_views import list_loads
from select_service.schemas.selection import SelectAndReserveRequest
from tests.builders import a_worker
from tests.builders.ticks import ticked
from tests.simulation.overload_engine import BLOCK_TOKENS, Engine, Job, Progress
from tests.simulation.overload_record import WARM_MINUTES, Minute, Record, Sample, figures
from tests.simulation.overload_rules import Controller, Fleet, Rules
from tests.simulation.overload_traffic import Conversation, Traffic, Turn

PATIENCE_S = (45.0, 75.0)
"""Range of the uniform time in s from the request for a rank to the end of the answer."""
ATTEMPTS_MAX = 4
BACKOFF_S = 1.0
"""First backoff in s, doubled with every attempt.

The client waits for the longer of backoff and Retry-After, and up to as long again.
"""
ALIVE_PER_RANK = 40
STRICT = {"premium": 2, "standard": 1, "best_effort": 0}


@dataclass(eq=False, slots=True)
class Request:
    """Request of a client over all its attempts."""

    conversation: Conversation
    turn: Turn
    attempts: int = 0
    reservation_id: str = ""
    rank: Rank | None = None
    job: Job | None = None
    ticket: WaitingTicket | None = None
    accepted_at: float = 0.0
    asked_at: float = 0.0
    has_token: bool = False


class World:
    """World in virtual time, which runs scheduled actions in order of time."""

    def __init__(
        self, fleet: Fleet, rules: Rules, seed: int, patience_s: tuple[float, float] = PATIENCE_S
    ) -> None:
        self.time = 0.0
        self.record = Record()
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()
        self._rng = Random(seed)
        self.traffic = Traffic(seed, ALIVE_PER_RANK * fleet.n_ranks)
        self.selector = self._new_selector(fleet, rules, seed)
        self.controller = Controller(self.selector) if rules.is_shedding else None
        (self.partition,) = self.selector.fleet.partitions.values()
        self.engines = {rank: Engine(fleet.speed) for rank in self.partition.table.sorted_ranks()}
        self._jobs: dict[Job, Request] = {}
        self._stepping: set[Rank] = set()
        self._ids = count(1)
        self._patience_s = patience_s
        self._on_end: Callable[[], None] = lambda: None
        self.open = 0
        self._ends_at = 0.0

    def _new_selector(self, fleet: Fleet, rules: Rules, seed: int) -> SelectorCore:
        selector = build_selector(
            SelectorConfig(
                RouterConfig(policy=rules.policy), admission=rules.admission(), use_kv_events=False
            ),
            lambda: PrefixIndex(2 * fleet.n_ranks * fleet.speed.kv_blocks),
            rng=Random(seed),
            wake=lambda: self.at(self.time, lambda: self.selector.run_pending(self.time)),
        )
        for worker_id, dp_size in enumerate(fleet.dp_sizes):
            selector.register_worker(
                a_worker(
                    worker_id,
                    block_size=BLOCK_TOKENS,
                    data_parallel_size=dp_size,
                    total_kv_blocks=fleet.speed.kv_blocks,
                    max_num_batched_tokens=fleet.speed.batch_tokens,
                )
            )
        return selector

    # --- time

    def at(self, when: float, what: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._due, (when, next(self._order), what, args))

    def run_open(self, per_s: float, seconds: float) -> Record:
        """Run with random arrivals at a rate of `per_s` until the last request has ended."""
        self._ends_at = seconds
        self._arrive(per_s)
        self._tick()
        self._run()
        return self._closed()

    def run_closed(self, clients: int, seconds: float) -> Record:
        """Run with `clients` clients that each send the next request right after an answer."""
        self._ends_at = seconds
        self._on_end = self._begin
        for _ in range(clients):
            self._begin()
        self._tick()
        self._run()
        return self._closed()

    def _run(self) -> None:
        while self._due:
            self.time, _, what, args = heapq.heappop(self._due)
            what(*args)

    def _closed(self) -> Record:
        self.record.preemptions = sum(engine.preemptions for engine in self.engines.values())
        return self.record

    def _arrive(self, per_s: float) -> None:
        when = self.time + self._rng.expovariate(per_s)
        if when < self._ends_at:
            self.at(when, self._begin)
            self.at(when, self._arrive, per_s)

    def _tick(self) -> None:
        """Run the selector's periodic work each second while requests are open or arriving."""
        ticked(self.selector, self.time)
        if self.controller is not None:
            self.controller.tick()
        if self.time < self._ends_at:
            self.record.samples.append(self._take_sample())
        if self.open or self.time < self._ends_at:
            self.at(self.time + 1.0, self._tick)

    def _take_sample(self) -> Sample:
        (shown,) = list_loads(self.partition, 0, 0)
        return Sample(
            at=self.time,
            prefill_tokens=tuple(row.potential_prefill_tokens for row in shown.loads),
            active_blocks=tuple(row.potential_decode_blocks for row in shown.loads),
            running=sum(len(engine.running) for engine in self.engines.values()),
            waiting=sum(len(engine.waiting) for engine in self.engines.values()),
            queue_length=self.selector.gate.waiting.requests,
            busy_ranks=self.selector.gate.busy_check.count_busy(self.partition).ranks,
            shed_tier=self.selector.gate.shedding.tiers.shed_tier,
            attempts=self.record.attempts,
        )

    # --- clients

    @property
    def _minute(self) -> Minute:
        return self.record.minute(self.time)

    def _begin(self) -> None:
        if self.time >= self._ends_at:
            return
        conversation = self.traffic.next()
        request = Request(conversation, conversation.turns[0])
        self.open += 1
        self.record.arrivals += 1
        self._ask(request)

    def _ask(self, request: Request) -> None:
        request.attempts += 1
        request.reservation_id = str(next(self._ids))
        request.rank = request.job = request.ticket = None
        request.has_token = False
        request.asked_at = self.time
        self.record.attempts += 1
        self._minute.attempts[request.turn.tier] += 1
        patience_s = self._rng.uniform(*self._patience_s)
        try:
            answer = self.selector.select_and_reserve(_body(request), self.time)
        except SelectError as error:
            self._refused(request, error)
            return
        self.at(self.time + patience_s, self._give_up, request, request.reservation_id)
        if isinstance(answer, WaitingTicket):
            request.ticket = answer
            answer.on_settled = lambda: self._settled(request)
        else:
            self._accepted(request, answer)

    def _settled(self, request: Request) -> None:
        """Process the outcome of a queued request while its client still waits."""
        assert request.ticket is not None
        outcome, request.ticket = request.ticket.outcome, None
        if isinstance(outcome, SelectError):
            self._refused(request, outcome)
        else:
            self._minute.queued_s.append(self.time - request.asked_at)
            self._accepted(request, outcome)

    def _refused(self, request: Request, error: SelectError) -> None:
        request.reservation_id = ""
        self._minute.refused[request.turn.tier] += 1
        self._again(request, error.retry_after_s or 0)

    def _again(self, request: Request, retry_after_s: float) -> None:
        """Retry a request, or give up after the last attempt."""
        if request.attempts >= ATTEMPTS_MAX:
            self._minute.lost[request.turn.tier] += 1
            self._end(request, answered=False)
            return
        pause_s = max(retry_after_s, BACKOFF_S * 2 ** (request.attempts - 1))
        self.at(self.time + pause_s * self._rng.uniform(1.0, 2.0), self._ask, request)

    def _accepted(self, request: Request, decision: Any) -> None:
        chosen = decision.selection
        request.accepted_at = self.time
        request.rank = Rank(chosen.worker_id, chosen.dp_rank)
        request.job = request.turn.job()
        self._jobs[request.job] = request
        self._minute.accepted[request.turn.tier] += 1
        self.engines[request.rank].add(request.job)
        self._step(request.rank)

    def _give_up(self, request: Request, reservation_id: str) -> None:
        """End an attempt after its time, unless the attempt has ended already."""
        if request.reservation_id != reservation_id:
            return
        request.reservation_id = ""
        self._minute.timed_out += 1
        if request.ticket is not None:
            ticket, request.ticket = request.ticket, None
            ticket.on_settled = lambda: None
            self.selector.gate.remove_disconnected(ticket)
        else:
            assert request.job is not None
            assert request.rank is not None
            if not request.has_token:
                self._waited(request)
            self.engines[request.rank].cancel(request.job)
            del self._jobs[request.job]
            self.selector.free_reservation(reservation_id, self.time)
            self._apply_events(request.rank)
        self._again(request, 0.0)

    def _waited(self, request: Request) -> None:
        """Record the time from acceptance to the first token, or until the client gave up."""
        self.record.minute(request.accepted_at).waits_s.append(self.time - request.accepted_at)

    def _end(self, request: Request, answered: bool) -> None:
        self.open -= 1
        self.traffic.ended(request.conversation, answered)
        self._on_end()

    # --- engines

    def _step(self, rank: Rank) -> None:
        if rank in self._stepping:
            return
        engine = self.engines[rank]
        seconds = engine.step()
        self._apply_events(rank)
        if seconds is not None:
            self._stepping.add(rank)
            self.at(self.time + seconds, self._stepped, rank)

    def _stepped(self, rank: Rank) -> None:
        self._stepping.discard(rank)
        self._report_progress(self.engines[rank].complete())
        self._step(rank)

    def _report_progress(self, done: Progress) -> None:
        for job in done.first_tokens:
            request = self._jobs[job]
            request.has_token = True
            self._waited(request)
            self.selector.complete_prefill(request.reservation_id, self.time)
        for job in done.blocks:
            self.selector.add_output_block(self._jobs[job].reservation_id, None, self.time)
        for job in done.finished:
            request = self._jobs.pop(job)
            self.selector.free_reservation(request.reservation_id, self.time)
            request.reservation_id = ""
            self._minute.answered[request.turn.tier] += 1
            self._minute.answered_tokens += request.turn.output_tokens
            self._end(request, answered=True)

    def _apply_events(self, rank: Rank) -> None:
        """Apply the KV events of a rank to the index directly, without sockets."""
        pool, writer = self.engines[rank].pool, self.partition.table.writer_of(rank)
        for change in pool.changes:
            blocks = np.array(change.keys, np.uint64)
            if change.is_stored:
                writer.store(Tier.GPU, change.parent, blocks, blocks)
            else:
                writer.remove(Tier.GPU, blocks)
        pool.changes.clear()


def _body(request: Request) -> SelectAndReserveRequest:
    turn = request.turn
    keys = turn.keys[: turn.prompt_blocks]
    return SelectAndReserveRequest(
        model_name="m",
        block_hashes=keys,
        sequence_hashes=keys,
        isl_tokens=turn.prompt_blocks * BLOCK_TOKENS,
        reservation_id=request.reservation_id,
        priority_tier=turn.tier,
        strict_priority=STRICT[turn.tier],
    )


CLIENTS_PER_RANK = (36, 40)
"""Numbers of clients per rank around the highest throughput.

Fewer clients leave the batch small; more fill the KV cache until requests preempt each other.
"""


def capacity(fleet: Fleet, seed: int, minutes: int, policy: str) -> float:
    """Return the largest rate of answers per second, with constant clients and no limits."""
    return max(
        figures(
            World(fleet, Rules(policy=policy), seed).run_closed(n * fleet.n_ranks, 60.0 * minutes),
            WARM_MINUTES,
            minutes,
        ).answers_per_s
        for n in CLIENTS_PER_RANK
    )
