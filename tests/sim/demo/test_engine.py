"""The simulated cache against a naive twin, and its events against what it really holds."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from select_service.sim.demo.prefix_cache import (
    CacheJob,
    KvEvent,
    PrefixCache,
    RunningJob,
    VllmBlockRemoved,
    VllmBlockStored,
    chain_keys,
)
from tests.hypothesis_profiles import explored
from tests.sim.demo.caches import cached_keys

BLOCK_SIZE = 2
BLOCKS_MAX = 12


def a_job(tokens: list[int], output_blocks: int) -> CacheJob:
    """The job of a prompt of all but the last `output_blocks * BLOCK_SIZE` tokens."""
    stream = np.array(tokens, dtype=np.uint32)
    prompt_tokens = len(tokens) - output_blocks * BLOCK_SIZE
    return CacheJob(
        keys=chain_keys(stream, BLOCK_SIZE),
        tokens=stream,
        prompt_blocks=prompt_tokens // BLOCK_SIZE,
        output_blocks=output_blocks,
        has_tail=prompt_tokens % BLOCK_SIZE != 0,
    )


@st.composite
def jobs(draw: st.DrawFn) -> CacheJob:
    """Few distinct tokens, so that prompts share prefixes often."""
    output_blocks = draw(st.integers(1, 2))
    prompt = draw(st.lists(st.integers(0, 1), min_size=1, max_size=9))
    answer = draw(
        st.lists(st.integers(0, 1), min_size=output_blocks * 2, max_size=output_blocks * 2)
    )
    return a_job(prompt + answer, output_blocks)


class NaiveCache:
    """The obvious model: who runs, and a list of finished blocks, oldest first."""

    def __init__(self) -> None:
        self.running: list[tuple[CacheJob, int]] = []
        self.idle: list[int] = []

    def busy(self) -> set[int]:
        return {key for job, full in self.running for key in job.keys[:full]}

    def promised(self) -> int:
        return sum(job.places - full for job, full in self.running)

    def held(self, keys: list[int]) -> int:
        cached = self.busy() | set(self.idle)
        return next((i for i, key in enumerate(keys) if key not in cached), len(keys))

    def has_room(self, job: CacheJob) -> bool:
        hits = job.keys[: self.held(list(job.keys[: job.prompt_blocks]))]
        return len(self.busy() | set(hits)) + self.promised() + job.places - len(hits) <= BLOCKS_MAX

    def admit(self, job: CacheJob) -> int:
        hits = self.held(list(job.keys[: job.prompt_blocks]))
        self.running.append((job, job.prompt_blocks))
        self.idle = [key for key in self.idle if key not in self.busy()]
        excess = len(self.busy()) + self.promised() + len(self.idle) - BLOCKS_MAX
        self.idle = self.idle[max(0, excess) :]
        return hits

    def grow(self, position: int) -> None:
        job, full = self.running[position]
        self.running[position] = (job, full + 1)
        self.idle = [key for key in self.idle if key not in self.busy()]

    def finish(self, position: int) -> None:
        job, full = self.running.pop(position)
        self.idle += [key for key in reversed(job.keys[:full]) if key not in self.busy()]


class EngineMatchesNaiveCache(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.engine = PrefixCache(BLOCKS_MAX, BLOCK_SIZE, hash_seed=0xABCDEF)
        self.naive = NaiveCache()
        self.running: list[RunningJob] = []
        self.announced: dict[int, int | None] = {}

    @rule(job=jobs())
    def admit(self, job: CacheJob) -> None:
        assert self.engine.has_room(job) == self.naive.has_room(job)
        if self.engine.has_room(job):
            running, hits = self.engine.admit_job(job)
            assert hits == self.naive.admit(job)
            self.running.append(running)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def grow_or_finish(self, data: st.DataObject) -> None:
        position = data.draw(st.integers(0, len(self.running) - 1))
        running = self.running[position]
        if running.full_blocks < running.job.prompt_blocks + running.job.output_blocks:
            self.engine.fill_output_block(running)
            self.naive.grow(position)
        else:
            self.engine.release_job(self.running.pop(position))
            self.naive.finish(position)

    @precondition(lambda self: self.running)
    @rule()
    def abort_the_oldest(self) -> None:
        self.engine.release_job(self.running.pop(0))
        self.naive.finish(0)

    @invariant()
    def holds_what_the_naive_cache_holds(self) -> None:
        self.engine.check_invariants()
        assert cached_keys(self.engine) == self.naive.busy() | set(self.naive.idle)

    @invariant()
    def events_add_up_to_the_cache_and_no_block_outlives_its_parent(self) -> None:
        for event in self.engine.take_events():
            apply(event, self.announced)
        held = {self.engine.engine_hash(key) for key in cached_keys(self.engine)}
        assert self.announced.keys() == held
        assert all(parent is None or parent in held for parent in self.announced.values())


def apply(event: KvEvent, announced: dict[int, int | None]) -> None:
    """What a reader of the event stream concludes: block -> parent."""
    match event:
        case VllmBlockStored():
            assert len(event.token_ids) == len(event.block_hashes) * event.block_size
            parents = [event.parent_block_hash, *event.block_hashes[:-1]]
            for block, parent in zip(event.block_hashes, parents, strict=True):
                assert block not in announced
                announced[block] = parent
        case VllmBlockRemoved():
            for block in event.block_hashes:
                del announced[block]


TestEngineMatchesNaiveCache = explored(EngineMatchesNaiveCache)


def test_equal_prefixes_have_equal_keys_and_later_blocks_depend_on_earlier_ones() -> None:
    one = chain_keys(np.array([1, 2, 3, 4, 5], dtype=np.uint32), 2)
    other = chain_keys(np.array([1, 2, 3, 9], dtype=np.uint32), 2)
    shifted = chain_keys(np.array([9, 9, 3, 4], dtype=np.uint32), 2)
    assert len(one) == 2
    assert one[0] == other[0]
    assert one[1] != other[1]
    assert one[1] != shifted[1]


def test_a_second_request_reuses_the_whole_prompt_of_the_first() -> None:
    engine = PrefixCache(BLOCKS_MAX, BLOCK_SIZE)
    first, hits = engine.admit_job(a_job([1, 2, 3, 4, 5, 6], output_blocks=1))
    assert hits == 0
    engine.fill_output_block(first)
    engine.release_job(first)
    _, hits = engine.admit_job(a_job([1, 2, 3, 4, 5, 6, 7, 8], output_blocks=1))
    assert hits == 3


def test_the_least_recently_used_block_is_evicted_first() -> None:
    engine = PrefixCache(4, BLOCK_SIZE)
    old, new = a_job([1, 1, 2, 2], 1), a_job([3, 3, 4, 4], 1)
    for job in (old, new):
        running, _ = engine.admit_job(job)
        engine.fill_output_block(running)
        engine.release_job(running)
    engine.admit_job(a_job([5, 5, 6, 6], 1))
    assert engine.count_cached(old.keys) == 0
    assert engine.count_cached(new.keys) == 2


def test_a_job_does_not_fit_beside_running_ones_that_fill_the_cache() -> None:
    engine = PrefixCache(3, BLOCK_SIZE)
    running, _ = engine.admit_job(a_job([1, 1, 2, 2, 3, 3], 1))
    waiting = a_job([7, 7, 8, 8], 1)
    assert not engine.has_room(waiting)
    engine.release_job(running)
    assert engine.has_room(waiting)
