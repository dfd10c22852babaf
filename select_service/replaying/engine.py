"""One simulated rank: the scheduler of vLLM, as far as waiting and caching are concerned.

* A step has a budget of tokens.  Running requests come first: one token each for those that decode,
  then the rest of prompts that have begun, then new ones in the order of arrival; so a long prompt
  is computed in chunks, and all of it shares the step with those that decode.
* What is cached of a prompt is found when the engine takes it up, all but its last token.
* Blocks are taken when they are scheduled, and can be found by others from then on.  When there is
  no place, the request that was taken up last loses all of its blocks and waits at the head of the
  queue again: preemption.  What it had is computed again, but for what is still cached.
* Answers become cache, block by block.

Pure and in virtual time.  `plan` says how long the next stretch takes, a number of steps with the
same batch; `cut` ends it after the step in which somebody arrives; `complete` says what it brought.
Source: vllm/v1/core/sched/scheduler.py and kv_cache_manager.py, 0.11.
"""

import heapq
from collections import deque
from dataclasses import dataclass, field
from math import ceil

from select_service.replaying.hardware import BLOCK_TOKENS, Hardware
from select_service.replaying.pool import Chain, Pool

FILLING_STEPS = 8
"""Blocks that answers fill are noted every so many steps, so that a stretch is some steps long."""


@dataclass(eq=False, slots=True)
class Job:
    """One request in the engine.

    chain:     blocks of prompt and answer that will be full
    generated: tokens of the answer at iteration `since`
    computed:  tokens that its blocks and its tail hold, while the prompt is computed
    held:      blocks that it refers to
    cached:    tokens of the prompt that were found, when it was first taken up; -1: not yet
    epoch:     raised when the job loses its blocks, so that what was planned for it is void
    """

    number: int
    chain: Chain
    prompt_tokens: int
    output_tokens: int
    generated: int = 0
    since: int = 0
    computed: int = 0
    held: int = 0
    cached: int = -1
    decoding: bool = False
    running: bool = False
    epoch: int = 0

    @property
    def goal(self) -> int:
        """Tokens that must be computed before the next one can be."""
        return self.prompt_tokens + self.generated


@dataclass(slots=True)
class Progress:
    """What a stretch brought.  blocks: jobs whose answer has filled another block."""

    first_tokens: list[Job] = field(default_factory=list)
    blocks: list[Job] = field(default_factory=list)
    finished: list[Job] = field(default_factory=list)


@dataclass(slots=True)
class Work:
    """Sums over the life of an engine.  prompt_tokens: computed, again after preemption too."""

    steps: int = 0
    busy_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    lost_tokens: int = 0


class Engine:
    def __init__(self, hardware: Hardware, n_blocks: int) -> None:
        self.hardware = hardware
        self.pool = Pool(n_blocks, hardware.kv_blocks)
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.work = Work()
        self._prefilling: list[Job] = []
        self._decoding = 0
        self._contexts = 0
        self._iteration = 0
        self._due: list[tuple[int, int, int, Job]] = []
        self._pushed = 0
        self._chunks: list[tuple[Job, int]] = []
        self._steps = 0
        self._step_s = 0.0

    def add(self, job: Job) -> None:
        assert job.prompt_tokens + job.output_tokens < (self.pool.places - 1) * BLOCK_TOKENS
        self.waiting.append(job)

    # --- a stretch

    def plan(self) -> float | None:
        """Plan the next stretch; its seconds, None when there is nothing to do."""
        budget = self._continue_prompts(self.hardware.batch_tokens - self._decoding)
        self._take_up(budget)
        if not self._chunks and not self._decoding:
            assert not self.waiting
            return None
        self._steps = 1 if self._chunks else self._until_due()
        self._step_s = self._seconds_of_step()
        return self._steps * self._step_s

    def cut(self, elapsed_s: float) -> float:
        """End the stretch with the step that is under way; returns its seconds from its begin."""
        done = max(1, ceil(elapsed_s / self._step_s - 1e-9))
        self._steps = min(self._steps, done)
        return self._steps * self._step_s

    def complete(self) -> Progress:
        """The planned stretch is over."""
        self._iteration += self._steps
        self._contexts += self._decoding * self._steps
        self._account()
        done = Progress()
        while self._due and self._due[0][0] <= self._iteration:
            _, _, epoch, job = heapq.heappop(self._due)
            if job.epoch == epoch:
                job.generated += self._iteration - job.since
                self._advance(job, done)
        chunks, self._chunks = self._chunks, []
        for job, _ in chunks:
            if job.running and job.computed >= job.goal:
                self._begin_decoding(job, done)
        return done

    def _account(self) -> None:
        self.work.steps += self._steps
        self.work.busy_s += self._steps * self._step_s
        self.work.output_tokens += self._steps * self._decoding
        self.work.prompt_tokens += sum(n for _, n in self._chunks)

    def _seconds_of_step(self) -> float:
        """The mean over the stretch, in which contexts grow."""
        tokens = sum(n for _, n in self._chunks)
        before = sum(n * (job.computed - n / 2) for job, n in self._chunks)
        contexts = self._contexts + self._decoding * (self._steps - 1) / 2
        base = self.hardware.step_s(tokens, before, self._decoding)
        return base + contexts * self.hardware.context_s

    def _until_due(self) -> int:
        while self._due[0][3].epoch != self._due[0][2]:
            heapq.heappop(self._due)
        return self._due[0][0] - self._iteration

    # --- prompts

    def _continue_prompts(self, budget: int) -> int:
        """Go on with prompts that have begun; returns what is left of the budget."""
        for job in list(self._prefilling):
            if budget > 0 and job.running:
                n = min(budget, job.goal - job.computed)
                if self._claim(job, (job.computed + n) // BLOCK_TOKENS):
                    self._schedule(job, n)
                    budget -= n
        return budget

    def _take_up(self, budget: int) -> None:
        """Begin prompts that wait, in their order, while there are budget and places."""
        while budget > 0 and self.waiting and len(self.running) < self.hardware.running_max:
            job = self.waiting[0]
            found = self._found(job)
            n = min(budget, job.goal - found * BLOCK_TOKENS)
            end = (found * BLOCK_TOKENS + n) // BLOCK_TOKENS
            if not self.pool.has_room(end - found + 1, job.chain[:found]):
                return
            self.waiting.popleft()
            self._admit(job, found)
            assert self._claim(job, end)
            self._schedule(job, n)
            budget -= n

    def _found(self, job: Job) -> int:
        """Leading blocks of a job that are cached and spare computing."""
        return self.pool.hits(job.chain[: (job.goal - 1) // BLOCK_TOKENS])

    def _admit(self, job: Job, found: int) -> None:
        job.running = True
        job.computed = found * BLOCK_TOKENS
        if job.cached < 0:
            job.cached = job.computed
        self.running.append(job)
        self._prefilling.append(job)
        job.held = self.pool.take(job.chain, 0, found)
        assert job.held == found
        assert self.pool.take_tail()

    def _schedule(self, job: Job, n: int) -> None:
        job.computed += n
        self._chunks.append((job, n))

    def _begin_decoding(self, job: Job, done: Progress) -> None:
        """Its prompt is computed, and with it the next token."""
        if not job.generated:
            done.first_tokens.append(job)
        self._prefilling.remove(job)
        job.decoding = True
        job.generated += 1
        self._decoding += 1
        self._contexts += job.goal
        self.work.output_tokens += 1
        self._advance(job, done)

    # --- answers

    def _advance(self, job: Job, done: Progress) -> None:
        """Decoding begins, or a block is full, or the answer is complete."""
        job.since = self._iteration
        full = min(job.goal // BLOCK_TOKENS, len(job.chain))
        if full > job.held:
            done.blocks.append(job)
            if not self._claim(job, full):
                return
        if job.generated >= job.output_tokens:
            self._drop(job)
            done.finished.append(job)
            return
        ends = self._iteration + job.output_tokens - job.generated
        fills = self._iteration + BLOCK_TOKENS - job.goal % BLOCK_TOKENS
        self._pushed += 1
        due = min(ends, -(-fills // FILLING_STEPS) * FILLING_STEPS)
        heapq.heappush(self._due, (due, self._pushed, job.epoch, job))

    # --- memory

    def _claim(self, job: Job, blocks: int) -> bool:
        """Hold so many leading blocks; others lose theirs for it.  False when the job lost out."""
        while job.held < blocks:
            job.held = self.pool.take(job.chain, job.held, blocks)
            if job.held < blocks and self._preempt() is job:
                return False
        return True

    def _preempt(self) -> Job:
        """The last one that was taken up begins anew later."""
        job = self.running[-1]
        if job.decoding:
            job.generated += self._iteration - job.since
        self._chunks = [(other, n) for other, n in self._chunks if other is not job]
        self.work.preemptions += 1
        self.work.lost_tokens += job.goal if job.decoding else job.computed
        self._drop(job)
        self.waiting.appendleft(job)
        return job

    def _drop(self, job: Job) -> None:
        self.running.remove(job)
        self.pool.release(job.chain, job.held)
        if job.decoding:
            self._decoding -= 1
            self._contexts -= job.goal
        else:
            self._prefilling.remove(job)
        job.held = job.computed = 0
        job.decoding = job.running = False
        job.epoch += 1

    def check_invariants(self) -> None:
        """For tests."""
        self.pool.check_invariants()
        decoding = [job for job in self.running if job.decoding]
        assert self._decoding == len(decoding)
        contexts = sum(job.goal + self._iteration - job.since for job in decoding)
        assert self._contexts == contexts
        assert set(self._prefilling) == set(self.running) - set(decoding)
