"""Simulated rank under load: prefill in chunks, batched decoding, and preemption.

The engine is pure and in virtual time: `step` returns the duration of the next step, and
`complete` its results. The scheduler is that of vLLM as far as overload is concerned:

- Running requests come first, with one token each per iteration. The rest of the token budget
  goes to prompts in the order of arrival, so that a long prompt is computed in chunks.
- Memory is allocated block by block, on demand. Without free memory, the request that was
  admitted last loses all its blocks and returns to the head of the queue: preemption. Its work
  is computed again, except for blocks that are still cached then.
- An unreferenced block stays cached until its place is needed; the oldest block goes first.

Every size is in whole blocks of BLOCK_TOKENS, except for the tokens of an answer.
"""

import heapq
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

BLOCK_TOKENS = 64
ITERATIONS_MAX = 4
"""Iterations per step of pure decoding; a new prompt may wait for the end of the step."""


class Speed(NamedTuple):
    """Speed of the hardware.

    An iteration takes iteration_s + sequence_s for each answer in the batch + its prompt tokens
    divided by prefill_tokens_per_s. So the time per token grows with the batch.
    """

    kv_blocks: int = 1600
    batch_tokens: int = 1024
    running_max: int = 96
    prefill_tokens_per_s: float = 8000.0
    iteration_s: float = 0.025
    sequence_s: float = 0.0005


@dataclass(eq=False, slots=True)
class Job:
    """Request in the engine.

    keys: blocks of the prompt, then of the answer
    generated: tokens of the answer at iteration `since`
    held: number of leading keys that the job references
    epoch: counter that grows when the job loses its memory and thereby voids its planned events
    """

    keys: list[int]
    prompt_blocks: int
    output_tokens: int
    generated: int = 0
    since: int = 0
    held: int = 0
    decoding: bool = False
    epoch: int = 0

    @property
    def goal(self) -> int:
        """Number of blocks that must be computed before the next token."""
        return self.prompt_blocks + self.generated // BLOCK_TOKENS


@dataclass(slots=True)
class Change:
    """KV event.

    parent: block before the first of `keys`; None means that `keys` begin a prompt
    """

    is_stored: bool
    parent: int | None
    keys: list[int]


class Pool:
    """KV cache: referenced blocks, and idle blocks that are still cached."""

    def __init__(self, blocks_max: int) -> None:
        self.blocks_max = blocks_max
        self.references: dict[int, int] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()
        self.changes: list[Change] = []
        self._evicted: list[int] = []
        self._stored: list[Change] = []

    def count_cached(self, keys: list[int]) -> int:
        """Return the number of leading keys that are cached."""
        return sum(1 for _ in takewhile(lambda k: k in self.references or k in self.idle, keys))

    def has_room(self, new: int, found: list[int]) -> bool:
        """Return whether `new` blocks fit, in addition to the cached blocks `found`."""
        pinned = len(self.references) + sum(1 for key in found if key in self.idle)
        return pinned + new <= self.blocks_max

    def take(self, key: int, parent: int | None) -> bool:
        """Reference a block; return False if the block is new and no place is free."""
        if key in self.references:
            self.references[key] += 1
            return True
        if key in self.idle:
            del self.idle[key]
        elif len(self.references) >= self.blocks_max:
            return False
        elif len(self.references) + len(self.idle) >= self.blocks_max:
            self._evicted.append(self.idle.popitem(last=False)[0])
            self._store(parent, key)
        else:
            self._store(parent, key)
        self.references[key] = 1
        return True

    def _store(self, parent: int | None, key: int) -> None:
        if self._stored and self._stored[-1].keys[-1] == parent:
            self._stored[-1].keys.append(key)
        else:
            self._stored.append(Change(True, parent, [key]))

    def publish_changes(self) -> None:
        """Publish the changes after a request has its blocks.

        Evictions come before stores: a new block may take the place of a block evicted a moment
        ago, never the other way round.
        """
        if self._evicted:
            self.changes.append(Change(False, None, self._evicted))
            self._evicted = []
        self.changes += self._stored
        self._stored = []

    def release(self, keys: list[int]) -> None:
        """Release blocks in reverse order, so that no block outlives its parent in the cache."""
        for key in reversed(keys):
            self.references[key] -= 1
            if not self.references[key]:
                del self.references[key]
                self.idle[key] = None


@dataclass(slots=True)
class Progress:
    """Results of a step."""

    first_tokens: list[Job] = field(default_factory=list)
    blocks: list[Job] = field(default_factory=list)
    finished: list[Job] = field(default_factory=list)


class Engine:
    """Scheduler of a rank."""

    def __init__(self, speed: Speed) -> None:
        self.speed = speed
        self.pool = Pool(speed.kv_blocks)
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.preemptions = 0
        self.prefilled_blocks = 0
        self._iteration = 0
        self._decoding = 0
        self._growing: list[Job] = []
        self._events: list[tuple[int, int, int, Job]] = []
        self._pushed = 0
        self._chunks: list[tuple[Job, int]] = []
        self._iterations = 0

    def add(self, job: Job) -> None:
        self.waiting.append(job)

    def cancel(self, job: Job) -> None:
        """Free the memory of a job at once, because the client has gone."""
        if job in self.running:
            self._drop(job)
        else:
            self.waiting.remove(job)

    def step(self) -> float | None:
        """Plan the next step, and return its duration in s; None means that no work is left."""
        preempted = self.preemptions
        growing, self._growing = self._growing, []
        for job in growing:
            if job.decoding:
                self._claim(job, job.goal + 1)
        self._plan_prompts(may_admit=self.preemptions == preempted)
        if not self._chunks and not self._decoding:
            self._plan_prompts(may_admit=True)
        blocks = sum(n for _, n in self._chunks)
        self.prefilled_blocks += blocks
        if not blocks and not self._decoding:
            return None
        self._iterations = 1 if blocks else min(ITERATIONS_MAX, self._until_event())
        each_s = self.speed.iteration_s + self.speed.sequence_s * self._decoding
        prefill_s = blocks * BLOCK_TOKENS / self.speed.prefill_tokens_per_s
        return self._iterations * each_s + prefill_s

    def complete(self) -> Progress:
        """Complete the planned step, and return its results."""
        self._iteration += self._iterations
        done = Progress()
        while self._events and self._events[0][0] <= self._iteration:
            _, _, epoch, job = heapq.heappop(self._events)
            if job.epoch == epoch:
                job.generated += self._iteration - job.since
                self._advance(job, done)
        for job, _ in self._chunks:
            if job in self.running and job.held >= job.goal:
                if not job.generated:
                    done.first_tokens.append(job)
                job.decoding = True
                job.generated += 1
                self._decoding += 1
                self._advance(job, done)
        self._chunks = []
        return done

    def _advance(self, job: Job, done: Progress) -> None:
        """Handle the start of decoding, a full block of the answer, or the end of the answer."""
        job.since = self._iteration
        if job.generated % BLOCK_TOKENS == 0:
            done.blocks.append(job)
        if job.generated >= job.output_tokens:
            self._drop(job)
            done.finished.append(job)
            return
        self._growing.append(job)
        left = min(BLOCK_TOKENS - job.generated % BLOCK_TOKENS, job.output_tokens - job.generated)
        self._pushed += 1
        heapq.heappush(self._events, (self._iteration + left, self._pushed, job.epoch, job))

    def _until_event(self) -> int:
        while self._events[0][3].epoch != self._events[0][2]:
            heapq.heappop(self._events)
        return self._events[0][0] - self._iteration

    def _plan_prompts(self, may_admit: bool) -> None:
        """Distribute the token budget: first to prompts in progress, then to waiting prompts."""
        preempted = self.preemptions
        budget = (self.speed.batch_tokens - self._decoding) // BLOCK_TOKENS
        for job in list(self.running):
            if budget and not job.decoding and job in self.running:
                chunk = min(budget, job.goal - job.held)
                if self._claim(job, job.held + chunk):
                    self._chunks.append((job, chunk))
                    budget -= chunk
        while budget and self.waiting and may_admit and self.preemptions == preempted:
            job = self.waiting[0]
            found = min(self.pool.count_cached(job.keys[: job.goal]), job.goal - 1)
            chunk = min(budget, job.goal - found)
            full = len(self.running) >= self.speed.running_max
            if full or not self.pool.has_room(chunk, job.keys[:found]):
                break
            self.running.append(self.waiting.popleft())
            assert self._claim(job, found + chunk)
            self._chunks.append((job, chunk))
            budget -= chunk

    def _claim(self, job: Job, blocks: int) -> bool:
        """Reference the first `blocks` keys, preempting other jobs for room.

        Return False if the job itself was preempted.
        """
        while job.held < blocks:
            parent = job.keys[job.held - 1] if job.held else None
            if self.pool.take(job.keys[job.held], parent):
                job.held += 1
            elif self._preempt_latest() is job:
                break
        self.pool.publish_changes()
        return job.held >= blocks

    def _preempt_latest(self) -> Job:
        """Preempt the job that was admitted last, and return this job."""
        job = self.running[-1]
        if job.decoding:
            job.generated += self._iteration - job.since
        self._chunks = [(other, n) for other, n in self._chunks if other is not job]
        self._drop(job)
        self.waiting.appendleft(job)
        self.preemptions += 1
        return job

    def _drop(self, job: Job) -> None:
        self.running.remove(job)
        self.pool.release(job.keys[: job.held])
        self._decoding -= job.decoding
        job.held, job.decoding = 0, False
        job.epoch += 1
