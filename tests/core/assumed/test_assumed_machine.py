"""Tests of the assumed blocks of a partition against their naive twin."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from indexer.tiers import Tier
from select_service.core.assumed.assumed_blocks import AssumedBlocks, AssumedRank
from select_service.core.assumed.assumed_size import AssumedSize
from select_service.core.identity import Rank
from select_service.core.load.new_reservation import NewReservation
from select_service.core.placement.router_config import RouterConfig
from tests.builders import a_selector, a_worker
from tests.builders.hypothesis_profiles import explored
from tests.models.assumed_model import AssumedModel

BLOCK_SIZE, N_RANKS = 4, 3

ranks = st.integers(0, N_RANKS - 1)
prompts = st.lists(st.integers(1, 3), min_size=0, max_size=9)
"""Prompts of few different blocks, so that most share a beginning."""


def array_of(prompt):
    return np.array(prompt, np.uint64)


class AssumedMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now = 10.0
        self.selector = a_selector(RouterConfig(policy="reference"), blocks_max=1 << 12)
        for worker_id in range(N_RANKS):
            self.selector.register_worker(a_worker(worker_id, block_size=BLOCK_SIZE))
        (self.partition,) = self.selector.fleet.partitions.values()
        self.blocks = AssumedBlocks(self.partition.index, self.partition.load)
        self.slots = [self.partition.table.find_slot(Rank(w, 0)) for w in range(N_RANKS)]
        self.models, self.live, self.ended, self.sizes = {}, {}, 0, {}
        for rank, slot in enumerate(self.slots):
            self.sizes[rank] = AssumedSize(6 + rank, BLOCK_SIZE)
            self.blocks.set_rank(slot, AssumedRank(self.sizes[rank], ttl_s=5.0))
            self.models[rank] = AssumedModel(6 + rank)

    def names(self, prompt):
        return self.blocks.name_prompt(array_of(prompt), array_of(prompt))

    def live_on(self, rank):
        return [prompt for where, prompt in self.live.values() if where == rank]

    @rule(rank=ranks, prompt=prompts, books=st.booleans())
    def use(self, rank, prompt, books):
        """Use a prompt, mostly for a reservation that stays."""
        if books:
            name = f"r{len(self.live) + self.ended}"
            self.selector.ledger.book(
                NewReservation(
                    name,
                    self.partition.account,
                    Rank(rank, 0),
                    self.slots[rank],
                    array_of(prompt),
                    BLOCK_SIZE * len(prompt) + 1,
                    0,
                    self.now,
                ),
                "client",
                self.now,
            )
            self.live[name] = rank, prompt
        self.blocks.use_prompt(self.slots[rank], array_of(prompt), self.names(prompt), self.now)
        if prompt:
            self.models[rank].touch(prompt, self.now)
            self.models[rank].evict(self.live_on(rank), self.now)

    @rule(data=st.data(), answer=prompts)
    def end(self, data, answer):
        """End a reservation, and add the blocks of its answer."""
        if not self.live:
            return
        name = data.draw(st.sampled_from(sorted(self.live)))
        rank, prompt = self.live[name]
        model, whole = self.models[rank], prompt + answer
        added = self.blocks.extend_prompt(
            self.slots[rank], self.names(whole), array_of(answer), self.now
        )
        assert added == (model.match(prompt) == len(prompt))
        if added:
            model.touch(whole, self.now)
            model.evict(self.live_on(rank), self.now)
        self.selector.ledger.free_by_id(name, "client", self.now)
        del self.live[name]
        self.ended += 1

    @rule(seconds=st.sampled_from((0.25, 1.0, 4.0, 6.0)))
    def wait(self, seconds):
        self.now += seconds
        while self.blocks.run_step(self.now):
            pass
        for model in self.models.values():
            model.expire(self.now - 5.0)

    @rule(rank=ranks, keeps_live=st.booleans(), ago=st.sampled_from((0.0, 1.0)))
    def clear(self, rank, keeps_live, ago):
        self.blocks.begin_clear(self.slots[rank], self.now - ago, keeps_live=keeps_live)
        self.models[rank].clear(
            self.live_on(rank) if keeps_live else None, self.now - ago, self.now
        )
        self.wait(0.0)

    @rule(rank=ranks, prompt=prompts, ago=st.sampled_from((0.0, 1.0)))
    def forget(self, rank, prompt, ago):
        self.blocks.forget_prompt(self.slots[rank], self.names(prompt), self.now - ago)
        self.models[rank].forget(prompt, self.now - ago)

    @rule(rank=ranks, capacity=st.integers(1, 12))
    def resize(self, rank, capacity):
        """Patch the capacity, as with `total_kv_blocks`; the next booking evicts the excess."""
        size = AssumedSize(capacity, BLOCK_SIZE)
        self.blocks.set_rank(self.slots[rank], AssumedRank(size, ttl_s=5.0))
        self.models[rank].capacity = capacity

    @invariant()
    def same_blocks_in_the_same_order(self):
        for rank, model in self.models.items():
            found, times = self.blocks.list_names(self.slots[rank])
            expected = [int(self.names(prefix)[-1]) for prefix, _ in model.uses]
            assert found == expected
            assert times == [used_at for _, used_at in model.uses]

    @rule(prompt=prompts)
    def match(self, prompt):
        if prompt:
            matched = self.blocks.index.match(array_of(prompt))
            for rank, model in self.models.items():
                assert matched[self.slots[rank], Tier.GPU] == model.match(prompt)

    def teardown(self):
        self.blocks.check_invariants()


TestAssumedBlocks = explored(AssumedMachine, runs=60)
