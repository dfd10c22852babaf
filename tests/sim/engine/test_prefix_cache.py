"""Tests of a rank's events against the content of its cache, and of block numbers."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from select_service.sim.engine.block_catalog import BlockCatalog, chain_keys
from select_service.sim.engine.kv_block_pool import KvBlockPool
from select_service.sim.engine.prefix_cache import (
    KvEvent,
    PrefixCache,
    VllmBlockRemoved,
    VllmBlockStored,
)
from tests.builders.hypothesis_profiles import explored

BLOCK_SIZE = 2
PLACES = 12
SEED = 0xABCDEF
FEW_TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=9)
"""Prompts of few distinct tokens, which often share prefixes."""


def tokens(*ids: int) -> np.ndarray:
    return np.array(ids, np.uint32)


def a_cache(places: int = PLACES, hash_seed: int = 0) -> PrefixCache:
    return PrefixCache(KvBlockPool(0, places), BlockCatalog(BLOCK_SIZE), hash_seed)


def apply(event: KvEvent, announced: dict[int, int | None]) -> None:
    """Apply an event as a reader of the stream does to `announced`, a map from block to parent."""
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


class EventsMatchCache(RuleBasedStateMachine):
    running = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.cache = a_cache(hash_seed=SEED)
        self.announced: dict[int, int | None] = {}
        self.live = 0

    @rule(target=running, prompt=FEW_TOKENS)
    def admit(self, prompt: list[int]):
        chain = self.cache.number_blocks(tokens(*prompt))
        cached = self.cache.pool.count_cached(chain)
        if (found := self.cache.admit_prompt(chain)) is None:
            return None
        assert found == cached
        self.live += 1
        return chain

    @rule(chain=consumes(running))
    def release(self, chain) -> None:
        if chain is not None:
            self.cache.pool.release_blocks(chain, len(chain))
            self.live -= 1

    @rule(prompt=FEW_TOKENS)
    def pass_through(self, prompt: list[int]) -> None:
        if self.cache.cache_tokens(tokens(*prompt)):
            chain = self.cache.number_blocks(tokens(*prompt))
            assert self.cache.pool.count_cached(chain) == len(chain)

    @rule()
    def recycle(self) -> None:
        if not self.live:
            self.cache.catalog.recycle_numbers([self.cache.pool])

    @invariant()
    def events_add_up_to_the_cache_and_no_block_outlives_its_parent(self) -> None:
        self.cache.pool.check_invariants()
        for event in self.cache.take_events():
            apply(event, self.announced)
        held = {self.cache.block_hash(block) for block in self.cache.pool.cached_blocks()}
        assert self.announced.keys() == held
        assert all(parent is None or parent in held for parent in self.announced.values())


TestEventsMatchCache = explored(EventsMatchCache)


def test_equal_prefixes_have_equal_keys_and_later_blocks_depend_on_earlier_ones() -> None:
    one, other = chain_keys(tokens(1, 2, 3, 4, 5), 2), chain_keys(tokens(1, 2, 3, 9), 2)
    shifted = chain_keys(tokens(9, 9, 3, 4), 2)
    assert len(one) == 2
    assert one[0] == other[0]
    assert one[1] != other[1]
    assert one[1] != shifted[1]


def test_the_least_recently_used_block_is_evicted_first() -> None:
    cache = a_cache(places=5)
    old, new, last = tokens(1, 1, 2, 2), tokens(3, 3, 4, 4), tokens(5, 5, 6, 6)
    assert all(cache.cache_tokens(each) for each in (old, new, last))
    held = [cache.pool.count_cached(cache.number_blocks(each)) for each in (old, new, last)]
    assert held == [0, 2, 2]


def test_a_prompt_does_not_fit_beside_running_ones_that_fill_the_cache() -> None:
    cache = a_cache(places=4)
    chain, waiting = (cache.number_blocks(tokens(*[n] * 6)) for n in (1, 7))
    assert cache.admit_prompt(chain) == 0
    assert cache.admit_prompt(waiting) is None
    cache.pool.release_blocks(chain, len(chain))
    assert cache.admit_prompt(waiting) == 0


def test_numbers_of_forgotten_blocks_are_used_again() -> None:
    cache = a_cache(places=4)
    for n in range(50):
        assert cache.cache_tokens(tokens(n, n, n, n))
        cache.catalog.recycle_numbers([cache.pool])
    assert cache.catalog.size <= 2 * cache.pool.places
