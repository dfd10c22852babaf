"""A fleet of simulated engines under health checks, in virtual time."""

from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random

from select_service.core.dirty_partitions import DirtyPartitions
from select_service.core.health.answers.answer_check import CanaryAnswer
from select_service.core.health.checks.canary_prompts import default_prompts
from select_service.core.health.checks.check_state import Attempt, CheckedWorker
from select_service.core.health.checks.hash_mixing import draw_numbers
from select_service.core.health.health_effects import StateChanged
from select_service.core.health.health_kinds import AttemptResult, RankHealthState
from select_service.core.health.health_monitor import HealthMonitor
from select_service.core.health.health_rules import HealthRules
from select_service.core.identity import PartitionKey, Rank
from select_service.core.split_mix import mix_bits

KEY = PartitionKey("model", "default")
STEP_S = 0.05


@dataclass
class Engine:
    """Simulated engine.

    fault: kind of fault
    model: number that selects the weights
    noise: standard deviation of the log-probabilities
    repeats: whether the noise depends on the seed alone
    drift: shift of the log-probabilities under the fault "drift"
    host_ms: milliseconds that a busy host may have added
    """

    rng: Random
    model: int = 1
    noise: float = 0.002
    latency_s: float = 0.05
    fault: str = ""
    weight_version: str = ""
    repeats: bool = False
    drift: float = -1.0
    host_ms: float = 0.0
    asked: list = field(default_factory=list)

    def attempt(self, prompt, now, seed):
        """Return seconds and result of an attempt."""
        self.asked.append(now)
        took = self.latency_s
        match self.fault:
            case "connect":
                return 0.001, Attempt(AttemptResult.CONNECT)
            case "hang":
                return 5.0, Attempt(AttemptResult.TIMEOUT)
            case "500":
                return took, Attempt(AttemptResult.HTTP_5XX)
            case "truncated":
                return took, Attempt(AttemptResult.MALFORMED)
            case "busy":
                return took, Attempt(AttemptResult.BUSY)
            case "refuses":
                return took, Attempt(AttemptResult.MISCONFIGURED, why="400 no such field")
            case "slow":
                took += 1.0
        latency_ms = 1000 * took * self.rng.uniform(0.9, 1.1)
        answer = self.answer(prompt, seed)
        attempt = Attempt(AttemptResult.ANSWER, latency_ms, answer, "vllm", self.weight_version)
        return took, attempt._replace(host_ms=self.host_ms)

    def answer(self, prompt, seed):
        numbers = draw_numbers(mix_bits(self.model * 1000 + len(prompt.prompt)), 0, 1 << 32)
        tokens = [next(numbers) % 1000 for _ in range(16)]
        logprobs = [-(next(numbers) % 2000) / 1000 for _ in range(16)]
        if self.fault == "wrong":
            tokens[3] += 1
        if self.fault == "drift":
            logprobs = [p + self.drift for p in logprobs]
        if self.fault == "nan":
            logprobs = [None] * 16
        rng = Random(seed) if self.repeats else self.rng
        noisy = [None if p is None else p + rng.gauss(0, self.noise) for p in logprobs]
        return CanaryAnswer(tokens, noisy, [{t: p} for t, p in zip(tokens, logprobs, strict=True)])


class FleetScene:
    def __init__(self, n_ranks, seed=0, rules=None, spares=(), dp=1):
        """Start workers 0, 1, ... of `dp` ranks each; every worker is an endpoint."""
        self.now, self.dp, self.spares = 0.0, dp, spares
        self.booked = Counter()
        self.rules = rules or HealthRules()
        self.wakes = 0
        self.monitor = HealthMonitor(
            self.rules,
            lambda key: default_prompts(),
            self.booked.__getitem__,
            DirtyPartitions(self.wake),
        )
        self.engines, self.out_at, self.current_effects, self.in_flight = {}, {}, [], 0
        self._events, self._numbers = [], count()
        self.rng = Random(seed)
        self.crowded, self.slowed, self.connected = (), 0, []
        for worker_id in range(n_ranks // dp):
            self.join(worker_id)

    def wake(self):
        self.wakes += 1

    def join(self, worker_id, fault=""):
        for dp_rank in range(self.dp):
            engine = Engine(Random(self.rng.random()), fault=fault)
            self.engines[Rank(worker_id, dp_rank)] = engine
        is_spare, endpoint = worker_id in self.spares, f"http://{worker_id}"
        worker = CheckedWorker(worker_id, KEY, range(self.dp), endpoint, is_spare)
        self.monitor.register_worker(worker, self.now)

    def break_ranks(self, fault, *ranks):
        for rank in ranks:
            self.engines[rank].fault = fault

    def crowd(self, ranks):
        """Make these ranks a second slower while other checks run; `slowed` counts the cases."""
        self.crowded = ranks

    @property
    def ranks(self):
        return list(self.engines)

    def state(self, rank):
        return self.monitor.record_of(rank).state

    def states(self):
        return Counter(self.state(rank) for rank in self.engines)

    def run(self, seconds):
        end = self.now + seconds
        while self.now < end:
            self.step()
        self.monitor.check_invariants()

    def step(self):
        self.now = round(self.now + STEP_S, 6)
        while self._events and self._events[0][0] <= self.now:
            at, _, order, attempt, seed = heappop(self._events)
            if attempt is None:
                self._resume_position(order, at, seed)
            else:
                self._ended(order, attempt, at, seed)
        while (order := self.monitor.next_due_check(self.now)) is not None:
            self.in_flight += 1
            self._ask(order, self.now, order.seed)
        assert self.in_flight <= 32
        while (endpoint := self.monitor.next_connection_probe()) is not None:
            ranks = [rank for rank in self.engines if f"http://{rank.worker_id}" == endpoint]
            is_open = any(self.engines[rank].fault != "connect" for rank in ranks)
            self.connected.append((self.now, endpoint))
            self.monitor.process_connection(endpoint, is_open, self.now)
        if self.now % 1.0 < STEP_S:
            self.monitor.advance_timers(self.now)
        self._take()

    def _ask(self, order, at, seed):
        took, attempt = self.engines[order.rank].attempt(order.prompt, at, seed)
        if order.rank in self.crowded and self.in_flight > 2:
            took, attempt = took + 1.0, attempt._replace(latency_ms=attempt.latency_ms + 1000)
            self.slowed += 1
        heappush(self._events, (at + took, next(self._numbers), order, attempt, seed))

    def _ended(self, order, attempt, at, seed):
        pause_s = self.monitor.process_attempt(order, attempt, at)
        self.in_flight -= 1
        if pause_s is not None:
            heappush(self._events, (at + pause_s, next(self._numbers), order, None, seed + 1))

    def _resume_position(self, order, at, seed):
        """Continue a check after the pause."""
        if self.monitor.may_continue(order):
            self.in_flight += 1
            assert self.in_flight <= 32
            self._ask(order, at, seed)
        else:
            heappush(self._events, (self.now + STEP_S, next(self._numbers), order, None, seed))

    def _take(self):
        for effect in self.monitor.take_effects():
            self.current_effects.append(effect)
            if isinstance(effect, StateChanged) and effect.state is RankHealthState.UNHEALTHY:
                self.out_at.setdefault(effect.rank, self.now)
