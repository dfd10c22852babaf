"""Simulated rank: vLLM's scheduler, as far as waiting and caching are concerned.

* A step has a token budget. Running requests come first: one token for each decoding request, then
  the rest of started prompts, then new prompts in order of arrival. A long prompt is computed in
  chunks that share steps with decoding requests.
* The cached part of a prompt is looked up at the admission, without the last token.
* Blocks are allocated when scheduled and visible to other requests from then on. Without a free
  place the latest admitted request loses all blocks and returns to the head of the queue:
  preemption. All tokens are computed again, except tokens still cached.
* Answers enter the cache block by block.
* With a host tier, evicted blocks stay there; a prompt loads the blocks behind the cached part,
which makes the step longer.
* Prefill and decode apart: the engine of the prefill keeps the blocks until all are copied; the
engine of the decode takes the places first, and computes the last token of the prompt when all
blocks have arrived (NIXL).

Pure and in virtual time. `plan_stretch` returns the duration of the next stretch, a number of steps
with the same batch; `cut_stretch` ends the stretch after the step of a new arrival;
`complete_stretch` returns the results.
Source: vllm/v1/core/sched/scheduler.py and kv_cache_manager.py, 0.11.
"""

import heapq
from collections import Counter, deque
from dataclasses import dataclass, field
from math import ceil

from select_service.sim.engine.gpu_hardware import Hardware
from select_service.sim.engine.host_cache import HostCache
from select_service.sim.engine.kv_block_pool import Chain, KvBlockPool

FILLING_STEPS = 8
"""Steps between two records of filled answer blocks, so that a stretch covers several steps."""


@dataclass(eq=False, slots=True)
class EngineJob:
    """A request in the engine.

    chain:     full blocks of prompt and answer
    generated: tokens of the answer at iteration `since`
    computed:  tokens in blocks and tail, while the prompt is computed
    held:      referenced blocks
    cached:    cached tokens of the prompt at the first admission; -1 before
    epoch:     incremented when the job loses all blocks, which invalidates planned events
    is_remote: whether another engine computes the prompt, until the blocks have arrived
    is_kept:   whether the blocks stay after the end, until `release_kept`
    """

    number: int
    chain: Chain
    prompt_tokens: int
    output_tokens: int
    generated: int = 0
    since: int = 0
    computed: int = 0
    held_blocks: int = 0
    cached: int = -1
    decoding: bool = False
    running: bool = False
    epoch: int = 0
    is_remote: bool = False
    is_kept: bool = False

    @property
    def goal(self) -> int:
        """Tokens to compute before the next token."""
        return self.prompt_tokens + self.generated


@dataclass(slots=True)
class StretchResult:
    """Results of a stretch. blocks: jobs with another full answer block."""

    first_tokens: list[EngineJob] = field(default_factory=list)
    blocks: list[EngineJob] = field(default_factory=list)
    finished: list[EngineJob] = field(default_factory=list)


@dataclass(slots=True)
class EngineTotals:
    """Totals of an engine. prompt_tokens: computed tokens, including repetitions after
    preemption.
    """

    steps: int = 0
    busy_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    lost_tokens: int = 0


class SchedulerEngine:
    def __init__(self, hardware: Hardware, n_blocks: int) -> None:
        self.hardware = hardware
        self.pool = KvBlockPool(n_blocks, hardware.kv_blocks)
        self.host = HostCache(hardware.host_blocks) if hardware.host_blocks else None
        if self.host is not None:
            self.pool.on_evicted = self.host.store_blocks
        self.waiting: deque[EngineJob] = deque()
        self.running: list[EngineJob] = []
        self.work = EngineTotals()
        self._block_tokens = hardware.block_tokens
        self._prefilling: list[EngineJob] = []
        self._decoding = 0
        self._contexts = 0
        self._iteration = 0
        self._due: list[tuple[int, int, int, EngineJob]] = []
        self._pushed = 0
        self._chunks: list[tuple[EngineJob, int]] = []
        self._loading = 0
        """Tokens that the planned step loads from the host tier."""
        self.begun_moves: list[EngineJob] = []
        """Remote jobs with places taken since the list was read; `cached` are there."""
        self._moving_blocks: Counter[int] = Counter()
        self._n_moving = 0
        self._kept: set[int] = set()
        self._steps = 0
        self._step_s = 0.0

    def add_job(self, job: EngineJob) -> None:
        assert job.prompt_tokens + job.output_tokens < (self.pool.places - 1) * self._block_tokens
        self.waiting.append(job)

    # Stretches of equal steps

    def plan_stretch(self) -> float | None:
        """Plan the next stretch and return its seconds; None means no work."""
        # Decoding requests are served first, with a token each.
        budget = self._continue_prompts(self.hardware.batch_tokens - self._decoding)
        self._admit_waiting(budget)
        if not self._chunks and not self._decoding:
            # Only blocks that are to be copied may leave no room for anything else.
            assert not self.waiting or self._n_moving or self._kept
            return None
        # Chunks change the batch at every step; pure decoding allows long stretches.
        self._steps = 1 if self._chunks else self._until_due()
        self._step_s = self._seconds_of_step()
        return self._steps * self._step_s

    def cut_stretch(self, elapsed_s: float) -> float:
        """End the stretch with the current step; return the seconds of the whole stretch."""
        # The tolerance keeps rounding from adding a step at an exact step boundary.
        done = max(1, ceil(elapsed_s / self._step_s - 1e-9))
        self._steps = min(self._steps, done)
        return self._steps * self._step_s

    def complete_stretch(self) -> StretchResult:
        """End the planned stretch and return the results."""
        self._iteration += self._steps
        # Each decoding request grows by a token per step.
        self._contexts += self._decoding * self._steps
        self._add_to_totals()
        done = StretchResult()
        while self._due and self._due[0][0] <= self._iteration:
            _, _, epoch, job = heapq.heappop(self._due)
            # Entries of preempted jobs stay in the heap; the epoch invalidates them.
            if job.epoch == epoch:
                job.generated += self._iteration - job.since
                self._advance_answer(job, done)
        chunks, self._chunks = self._chunks, []
        self._loading = 0
        for job, _ in chunks:
            if job.running and job.computed >= job.goal:
                self._begin_decoding(job, done)
        return done

    def _add_to_totals(self) -> None:
        self.work.steps += self._steps
        self.work.busy_s += self._steps * self._step_s
        self.work.output_tokens += self._steps * self._decoding
        self.work.prompt_tokens += sum(n for _, n in self._chunks)

    def _seconds_of_step(self) -> float:
        """Return the mean over the stretch, during which contexts grow."""
        tokens = sum(n for _, n in self._chunks)
        before = sum(n * (job.computed - n / 2) for job, n in self._chunks)
        contexts = self._contexts + self._decoding * (self._steps - 1) / 2
        base = self.hardware.step_s(tokens, before, self._decoding)
        loading = self._loading * self.hardware.host_load_s
        return base + contexts * self.hardware.context_s + loading

    def _until_due(self) -> int:
        # A preemption may have outdated the next planned event.
        while self._due[0][3].epoch != self._due[0][2]:
            heapq.heappop(self._due)
        return self._due[0][0] - self._iteration

    # Prompts

    def _continue_prompts(self, budget: int) -> int:
        """Continue started prompts; returns the rest of the budget."""
        for job in list(self._prefilling):
            if budget > 0 and job.running:
                n = min(budget, job.goal - job.computed)
                if self._claim_blocks(job, (job.computed + n) // self._block_tokens):
                    self._schedule_chunk(job, n)
                    budget -= n
        return budget

    def _admit_waiting(self, budget: int) -> None:
        """Admit waiting prompts in order while budget and places last."""
        running_max = self.hardware.running_max
        while budget > 0 and self.waiting and len(self.running) + self._n_moving < running_max:
            job = self.waiting[0]
            if job.is_remote:
                if not self._begin_move(job):
                    return
                continue
            found = self._count_cached(job)
            reached = self._count_loadable(job, found)
            n = min(budget, job.goal - reached * self._block_tokens)
            end = (reached * self._block_tokens + n) // self._block_tokens
            # Strictly first come first served: a later small prompt does not overtake.
            if not self.pool.has_room(end - found + 1, job.chain[:found]):
                return
            self.waiting.popleft()
            self._admit_job(job, found, reached)
            assert self._claim_blocks(job, end)
            self._schedule_chunk(job, n)
            budget -= n

    def _count_cached(self, job: EngineJob) -> int:
        """Return the leading cached blocks of a job that save computation."""
        return self._count_there(job.chain[: (job.goal - 1) // self._block_tokens])

    def _count_there(self, chain: Chain) -> int:
        """Return the leading cached blocks, up to the first block that is still being moved."""
        found = self.pool.count_cached(chain)
        if self._n_moving:
            for at, block in enumerate(chain[:found].tolist()):
                if block in self._moving_blocks:
                    return at
        return found

    def _count_loadable(self, job: EngineJob, found: int) -> int:
        """Return the end of the prompt's part that follows `found` blocks on device or host."""
        if self.host is None:
            return found
        for block in job.chain[found : (job.goal - 1) // self._block_tokens].tolist():
            if block not in self.host and not self.pool.is_cached(block):
                break
            found += 1
        return found

    def _admit_job(self, job: EngineJob, found: int, reached: int) -> None:
        """Admit a job with `found` blocks on the device; further blocks to `reached` are loaded."""
        job.running = True
        job.computed = reached * self._block_tokens
        self._loading += (reached - found) * self._block_tokens
        # Only the first admission counts as a hit; a preempted job finds the blocks it computed.
        if job.cached < 0:
            job.cached = job.computed
        self.running.append(job)
        self._prefilling.append(job)
        job.held_blocks = self.pool.take_blocks(job.chain, 0, found)
        assert job.held_blocks == found
        assert self.pool.take_tail()

    def _schedule_chunk(self, job: EngineJob, n: int) -> None:
        job.computed += n
        self._chunks.append((job, n))

    def _begin_decoding(self, job: EngineJob, done: StretchResult) -> None:
        """Start decoding: the last chunk of the prompt also produces the next token."""
        if not job.generated:
            done.first_tokens.append(job)
        self._prefilling.remove(job)
        job.decoding = True
        job.generated += 1
        self._decoding += 1
        self._contexts += job.goal
        self.work.output_tokens += 1
        self._advance_answer(job, done)

    # Prefill and decode apart

    def _begin_move(self, job: EngineJob) -> bool:
        """Take the places of a remote prompt; False without room."""
        prompt = job.chain[: job.prompt_tokens // self._block_tokens]
        found = self._count_there(prompt)
        # One more place for the tail: the last token and the answer need a block of their own.
        if not self.pool.has_room(len(prompt) - found + 1, prompt[:found]):
            return False
        self.waiting.popleft()
        job.cached = found * self._block_tokens
        job.held_blocks = self.pool.take_blocks(prompt, 0, len(prompt))
        assert job.held_blocks == len(prompt)
        assert self.pool.take_tail()
        self._n_moving += 1
        self._moving_blocks.update(prompt[found:].tolist())
        self.begun_moves.append(job)
        return True

    def complete_move(self, job: EngineJob) -> None:
        """Start a job after the arrival of its remote prompt; the last token is computed here."""
        found = job.cached // self._block_tokens
        self._moving_blocks.subtract(job.chain[found : job.held_blocks].tolist())
        self._moving_blocks += Counter()  # drops zeros
        self._n_moving -= 1
        # After a preemption the prompt is computed here.
        job.is_remote, job.running, job.computed = False, True, job.goal - 1
        self.running.append(job)
        self._prefilling.append(job)

    def release_kept(self, job: EngineJob) -> None:
        """Release the blocks of an ended job, which have been copied."""
        self._kept.remove(job.number)
        self.pool.release_blocks(job.chain, job.held_blocks)

    # Answers

    def _advance_answer(self, job: EngineJob, done: StretchResult) -> None:
        """Handle the begin of decoding, a full block or the end of the answer."""
        job.since = self._iteration
        full = min(job.goal // self._block_tokens, len(job.chain))
        if full > job.held_blocks:
            done.blocks.append(job)
            if not self._claim_blocks(job, full):
                return
        if job.generated >= job.output_tokens:
            if job.is_kept:
                self._kept.add(job.number)
            self._drop_job(job, is_kept=job.is_kept)
            done.finished.append(job)
            return
        ends = self._iteration + job.output_tokens - job.generated
        fills = self._iteration + self._block_tokens - job.goal % self._block_tokens
        self._pushed += 1
        # Rounded up to a multiple, so that the jobs of a batch fall due together.
        due = min(ends, -(-fills // FILLING_STEPS) * FILLING_STEPS)
        heapq.heappush(self._due, (due, self._pushed, job.epoch, job))

    # Memory

    def _claim_blocks(self, job: EngineJob, blocks: int) -> bool:
        """Reference `blocks` leading blocks, preempting other jobs; False if the job lost."""
        while job.held_blocks < blocks:
            job.held_blocks = self.pool.take_blocks(job.chain, job.held_blocks, blocks)
            if job.held_blocks < blocks and self._preempt_latest() is job:
                return False
        return True

    def _preempt_latest(self) -> EngineJob:
        """Preempt the latest admitted job, which starts again later."""
        job = self.running[-1]
        if job.decoding:
            job.generated += self._iteration - job.since
        self._chunks = [(other, n) for other, n in self._chunks if other is not job]
        self.work.preemptions += 1
        self.work.lost_tokens += job.goal if job.decoding else job.computed
        self._drop_job(job)
        # At the head, as in vLLM, so that a preempted request is the next to run.
        self.waiting.appendleft(job)
        return job

    def _drop_job(self, job: EngineJob, is_kept: bool = False) -> None:
        self.running.remove(job)
        if not is_kept:
            self.pool.release_blocks(job.chain, job.held_blocks)
        if job.decoding:
            self._decoding -= 1
            self._contexts -= job.goal
        else:
            self._prefilling.remove(job)
        if not is_kept:
            job.held_blocks = 0
        job.computed = 0
        job.decoding = job.running = False
        job.epoch += 1

    def check_invariants(self) -> None:
        """Check the incremental state.  For tests."""
        self.pool.check_invariants()
        decoding = [job for job in self.running if job.decoding]
        assert self._decoding == len(decoding)
        contexts = sum(job.goal + self._iteration - job.since for job in decoding)
        assert self._contexts == contexts
        assert set(self._prefilling) == set(self.running) - set(decoding)
