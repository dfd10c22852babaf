"""One simulated engine with continuous batching, moved from event to event.

An iteration takes `base + a * prefill tokens + b * KV tokens + c * decoding requests` seconds.
Between two events (an arrival, a finished prefill, a finished request) that time is held constant,
so that an event costs some microseconds whatever lies between it and the next one: a fluid model,
whose prefill flows at `batch / iteration` tokens a second, and whose live requests each get a token
an iteration.
"""

from collections import deque
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from msgspec import Struct

from select_service.planner.core.inputs import ForwardPass, Limits

MAX_NUM_BATCHED_TOKENS = 8192
MAX_NUM_SEQS = 256
MAX_KV_TOKENS = 400_000
"""Of engines whose limits say nothing."""
_NOTHING_LEFT = 1e-6
"""Tokens that rounding may leave of a prefill or of an answer."""


class Speed(NamedTuple):
    """Seconds of one iteration: alone, and more for each token or request in it."""

    base_s: float = 0.008
    per_prefill_token_s: float = 5e-5
    per_kv_token_s: float = 3e-8
    per_request_s: float = 1e-4


class Request(Struct, eq=False):
    """One prompt. Times are seconds of the simulation; None: not yet."""

    arrived_s: float
    isl: int
    osl: int
    uncached: int
    first_s: float | None = None
    done_s: float | None = None
    ahead_tokens: float = 0.0
    """Prefill that waited on its engine when it came there."""

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_s is None else self.first_s - self.arrived_s

    @property
    def itl_s(self) -> float | None:
        """Mean time between two tokens; None as well for an answer of one token."""
        if self.done_s is None or self.first_s is None or self.osl < 2:
            return None
        return (self.done_s - self.first_s) / (self.osl - 1)


class Engine:
    """Prefill, decode or both, as requests are given to it. Time never goes back."""

    def __init__(self, name: str, speed: Speed, limits: Limits, now: float) -> None:
        self.name = name
        self.now = now
        self.next_at = inf
        """When the next event is due, if nothing comes before."""
        self.queued_tokens = 0.0
        self.kv_tokens = 0.0
        self.busy_s = 0.0
        self._speed = speed
        self._mbt = limits.max_num_batched_tokens or MAX_NUM_BATCHED_TOKENS
        self._seqs_max = limits.max_num_seqs or MAX_NUM_SEQS
        self._kv_max = limits.max_kv_tokens or MAX_KV_TOKENS
        self._prefills: deque[tuple[Request, float]] = deque()
        self._head_left = 0.0
        self._batch = 0.0
        """Prefill tokens of an iteration, since the queue changed."""
        self._waiting: deque[Request] = deque()
        self._live: list[tuple[float, int, Request]] = []
        self._tokens = 0.0
        """That every request got which is live from the beginning on: its own clock."""
        self._booked = 0

    @property
    def is_idle(self) -> bool:
        return not (self._prefills or self._live or self._waiting)

    @property
    def live(self) -> int:
        return len(self._live)

    def prefill(self, request: Request, now: float) -> None:
        """Queue the prompt; `advance` returns it when its first token is there."""
        self._flow(now)
        request.ahead_tokens = self.queued_tokens
        tokens = float(max(1, request.uncached))
        if not self._prefills:
            self._head_left = tokens
        self._prefills.append((request, tokens))
        self.queued_tokens += tokens
        self._fill_batch()
        self._plan()

    def decode(self, request: Request, now: float) -> None:
        """Go on with a prompt whose prefill is done; `advance` returns it when it is complete."""
        self._flow(now)
        self._waiting.append(request)
        self._admit()
        self._plan()

    def advance(self, now: float) -> tuple[list[Request], list[Request]]:
        """Prefills and whole requests that end at `now`, which is at most `next_at`."""
        self._flow(now)
        prefilled, done = [], []
        while self._prefills and self._head_left <= _NOTHING_LEFT:
            request, _ = self._prefills.popleft()
            self.queued_tokens = max(0.0, self.queued_tokens - self._head_left)
            self._head_left = self._prefills[0][1] if self._prefills else 0.0
            request.first_s = now
            prefilled.append(request)
            self._fill_batch()
        while self._live and self._live[0][0] - self._tokens <= _NOTHING_LEFT:
            request = heappop(self._live)[2]
            self.kv_tokens -= request.isl + request.osl
            request.done_s = now
            done.append(request)
        if not self._live:
            self.kv_tokens = 0.0
        if not self._prefills:
            self.queued_tokens = self._batch = 0.0
        if done:
            self._admit()
        self._plan()
        return prefilled, done

    def generated(self, now: float) -> list[tuple[Request, int]]:
        """Live requests, and how many tokens each has been given after its first."""
        self._flow(now)
        self._plan()
        return [
            (request, int(max(1, request.osl) - max(0.0, target - self._tokens)))
            for target, _, request in self._live
        ]

    def stop(self) -> int:
        """Requests that it had, and that fail."""
        lost = len(self._prefills) + len(self._waiting) + len(self._live)
        self._prefills.clear()
        self._waiting.clear()
        self._live.clear()
        self.queued_tokens = self.kv_tokens = self._batch = 0.0
        self.next_at = inf
        return lost

    def seen(self, now: float) -> ForwardPass:
        """The iteration that runs now, and what waits beside it."""
        self._flow(now)
        prefills = self._prefills_of_batch()
        return ForwardPass(
            worker=self.name,
            wall_s=0.0 if self.is_idle else self._iteration_s(),
            prefill_requests=prefills,
            prefill_tokens=round(self._batch),
            decode_requests=len(self._live),
            decode_kv_tokens=round(self.kv_tokens),
            queued_prefill_requests=len(self._prefills) - prefills,
            queued_prefill_tokens=round(max(0.0, self.queued_tokens - self._batch)),
            queued_decode_requests=len(self._waiting),
            queued_decode_kv_tokens=sum(each.isl for each in self._waiting),
        )

    def _prefills_of_batch(self) -> int:
        """Prompts of which this iteration computes something."""
        room = self._batch - self._head_left
        count = 0
        for at, (_, tokens) in enumerate(self._prefills):
            if at > 0:
                if room <= 0.0:
                    break
                room -= tokens
            count += 1
        return count

    def _fill_batch(self) -> None:
        """As much prefill as decoding leaves room for."""
        self._batch = min(max(1.0, self._mbt - len(self._live)), self.queued_tokens)

    def _iteration_s(self) -> float:
        speed = self._speed
        return (
            speed.base_s
            + speed.per_prefill_token_s * self._batch
            + speed.per_kv_token_s * self.kv_tokens
            + speed.per_request_s * len(self._live)
        )

    def _flow(self, now: float) -> None:
        """Let time pass in which nothing ends."""
        passed = now - self.now
        self.now = now
        if passed <= 0.0 or not (self._prefills or self._live):
            return
        self.busy_s += passed
        iterations = passed / self._iteration_s()
        if self._prefills:
            flowed = min(self._head_left, iterations * self._batch)
            self._head_left -= flowed
            self.queued_tokens -= flowed
        if self._live:
            self._tokens += iterations
            self.kv_tokens += iterations * len(self._live)

    def _plan(self) -> None:
        """Set `next_at`."""
        if not (self._prefills or self._live):
            self.next_at = inf
            return
        iteration_s = self._iteration_s()
        due = inf
        if self._prefills:
            due = max(0.0, self._head_left / self._batch) * iteration_s
        if self._live:
            due = min(due, max(0.0, self._live[0][0] - self._tokens) * iteration_s)
        self.next_at = self.now + due

    def _admit(self) -> None:
        """Waiting requests join the batch in their order while there is room for them."""
        while self._waiting and len(self._live) < self._seqs_max:
            request = self._waiting[0]
            if self._live and self.kv_tokens + request.isl > self._kv_max:
                return
            self._waiting.popleft()
            self.kv_tokens += request.isl
            self._booked += 1
            target = self._tokens + max(1, request.osl)
            heappush(self._live, (target, self._booked, request))
