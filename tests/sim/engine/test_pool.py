"""Tests of the compiled pool against a naive pool of a dictionary and a list of idle blocks."""

from collections import OrderedDict

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from select_service.sim.engine.kv_block_pool import KvBlockPool, RemovedBlocks, StoredBlocks

PLACES, N_BLOCKS = 12, 40
CHAINS = [
    np.array([*range(shared), *range(start, start + 6)], np.int32)
    for shared, start in ((0, 5), (5, 11), (5, 17), (3, 23), (0, 29))
]


class Naive:
    def __init__(self):
        self.references, self.idle, self.tails = {}, OrderedDict(), 0

    def cached_blocks(self):
        return self.references.keys() | self.idle.keys()

    def make_place(self):
        if len(self.cached_blocks()) + self.tails < PLACES:
            return True
        if not self.idle:
            return False
        self.idle.popitem(last=False)
        return True

    def take(self, chain, end):
        for at in range(end):
            block = int(chain[at])
            if block in self.idle:
                del self.idle[block]
            elif block not in self.references and not self.make_place():
                return at
            self.references[block] = self.references.get(block, 0) + 1
        return end

    def release(self, chain, held):
        for at in reversed(range(held)):
            block = int(chain[at])
            self.references[block] -= 1
            if not self.references[block]:
                del self.references[block]
                self.idle[block] = None
        self.tails -= 1


class PoolMatchesNaive(RuleBasedStateMachine):
    taken = Bundle("taken")

    def __init__(self):
        super().__init__()
        self.pool, self.naive, self.told = KvBlockPool(N_BLOCKS, PLACES), Naive(), set()

    @rule(target=taken, chain=st.sampled_from(CHAINS), share=st.floats(0, 1))
    def take(self, chain, share):
        has_tail = self.pool.take_tail()
        assert has_tail == self.naive.make_place()
        if not has_tail:
            return None
        self.naive.tails += 1
        end = round(share * len(chain))
        held = self.pool.take_blocks(chain, 0, end)
        assert held == self.naive.take(chain, end)
        return chain, held

    @rule(item=consumes(taken))
    def release(self, item):
        if item is not None:
            self.pool.release_blocks(*item)
            self.naive.release(*item)

    @rule(more=st.integers(0, 60))
    def grow(self, more):
        self.pool.grow_to(N_BLOCKS + more)

    @rule(chain=st.sampled_from(CHAINS), found=st.integers(0, 6), new=st.integers(0, PLACES))
    def has_room(self, chain, found, new):
        pinned = len(self.naive.references) + self.naive.tails
        pinned += sum(int(block) in self.naive.idle for block in chain[:found])
        assert self.pool.has_room(new, chain[:found]) == (pinned + new <= PLACES)

    @invariant()
    def both_hold_the_same(self):
        self.pool.check_invariants()
        assert self.pool.cached_blocks() == self.naive.cached_blocks()
        for chain in CHAINS:
            hits = self.pool.count_cached(chain)
            assert all(int(block) in self.naive.cached_blocks() for block in chain[:hits])
            assert hits == len(chain) or int(chain[hits]) not in self.naive.cached_blocks()

    @invariant()
    def changes_lead_to_the_cached_blocks(self):
        for change in self.pool.changes:
            if isinstance(change, RemovedBlocks):
                gone = set(change.blocks.tolist())
                assert gone <= self.told
                self.told -= gone
            else:
                assert isinstance(change, StoredBlocks)
                self.told |= set(change.chain[change.first : change.end].tolist())
        self.pool.changes = []
        assert self.told == self.naive.cached_blocks()


TestPool = PoolMatchesNaive.TestCase
