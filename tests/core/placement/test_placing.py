"""Tests of a series of placements over index, load and table, in the same scratch memory."""

import numpy as np
import pytest

from indexer.tiers import Tier
from select_service.core.identity import Rank
from select_service.core.load.compiled.load_layout import REQUESTS
from select_service.core.placement.placement_kernels import COST, NO_SLOT
from select_service.core.placement.placer import RankPreference
from select_service.core.placement.plan_layout import REQUEST
from select_service.core.placement.prompt import Prompt
from select_service.core.placement.router_config import RouterConfig, apply_override
from select_service.schemas.prompts import RouterConfigOverride
from tests.builders import a_select, a_select_and_reserve, a_selector, a_worker
from tests.models.cost_model import Query, RankState, cost, effective_prefill_tokens
from tests.models.work_model import own_work


class Scene:
    """Ranks with parts of a few conversations cached and other requests booked."""

    def __init__(self, n_ranks, seed, config):
        self.rng = np.random.default_rng(seed)
        self.selector = a_selector(config, blocks_max=1 << 16)
        self.config, self.n_ranks = config, 0
        self.conversations = self.rng.integers(0, 2**63, (4, 24), np.uint64)
        self.conversations[:2, :3] = self.conversations[0, :3]
        self.more_ranks(n_ranks)

    def more_ranks(self, count):
        for worker_id in range(self.n_ranks, self.n_ranks + count):
            self.selector.register_worker(
                a_worker(
                    worker_id,
                    block_size=16,
                    taints=[f"t{worker_id % 3}"],
                    total_kv_blocks=20 if worker_id % 4 else None,
                )
            )
            for path in self.conversations:
                if self.rng.random() < 0.2:
                    self.hold(worker_id, path)
        self.n_ranks += count
        (self.partition,) = self.selector.fleet.partitions.values()

    def hold(self, worker_id, path):
        """Store a prefix on the GPU, and longer prefixes in the lower tiers."""
        (partition,) = self.selector.fleet.partitions.values()
        writer = partition.table.writer_of(Rank(worker_id, 0))
        ends = sorted(self.rng.integers(0, len(path) + 1, 3))
        for tier, end in zip((Tier.GPU, Tier.CPU, Tier.DISK), ends, strict=True):
            writer.store(tier, None, path[:end], path[:end])

    def prompt(self):
        path = self.conversations[self.rng.integers(4)].copy()
        length = int(self.rng.integers(0, len(path) + 1))
        if self.rng.random() < 0.3:
            path[length // 2 :] += np.uint64(1)
        blocks = np.ascontiguousarray(path[:length])
        return Prompt(blocks, blocks, 16 * length + int(self.rng.integers(1, 16)))

    def book(self):
        prompt = self.prompt()
        hashes = prompt.block_hashes.tolist()
        if hashes:
            given = {"block_hashes": hashes, "sequence_hashes": hashes, "token_ids": None}
            request = a_select_and_reserve(isl_tokens=prompt.isl_tokens, **given)
            decision = self.selector.select_and_reserve(request, 0.0)
            if self.rng.random() < 0.5:
                name = decision.selection.reservation_id
                self.selector.add_output_block(name, float(self.rng.random()), 0.0)

    def eligible(self):
        return self.rng.random(self.n_ranks) < self.rng.choice([0.05, 0.9, 1.0])

    def ranks(self, prompt, eligible, factors, pinned, config):
        """Return (cost, effective prefill tokens, own work) of every rank from the naive twins."""
        matched = self.partition.index.match(prompt.block_hashes)
        load = self.partition.load
        tokens, active = load.totals[:, 0].tolist(), load.compute_active_blocks().tolist()
        lowest = min((tokens[slot] for slot in np.flatnonzero(eligible)), default=-1)
        query = Query(prompt.isl_tokens, len(prompt.block_hashes), 16, lowest, pinned)
        for slot, (gpu, cpu, _, all_tiers) in enumerate(matched.tolist()):
            leading = int(self.partition.placer.scratch.leading[slot])
            tiers = (gpu, cpu - gpu, all_tiers - cpu)
            requests = int(load.totals[slot, REQUESTS])
            rank = RankState(*tiers, tokens[slot], active[slot], leading, requests)
            found = cost(rank, query, config) * (1.0 if factors is None else factors[slot])
            work = own_work(rank, prompt.isl_tokens, 16, config)
            yield found, effective_prefill_tokens(rank, query, config), work


REFERENCE = RouterConfig(policy="reference")
CONFIGS = (
    REFERENCE,
    REFERENCE._replace(
        overlap_score_credit=1.5,
        overlap_score_credit_decay=1.5,
        host_cache_hit_weight=0.3,
        decode_active_request_weight=0.7,
    ),
    REFERENCE._replace(track_prefill_tokens=False, assume_kv_reuse=False),
    REFERENCE._replace(track_active_blocks=False, prefill_load_scale=0.1),
)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("n_ranks", [1, 63, 65, 200])
def test_every_placement_is_that_of_the_naive_twin_to_the_last_bit(n_ranks, config):
    scene = Scene(n_ranks, n_ranks, config)
    placing = scene.partition.placer
    for number in range(60):
        scene.book()
        if number == 30:
            scene.more_ranks(70)
        prompt, eligible = scene.prompt(), scene.eligible()
        factors = None if number % 3 else scene.rng.random(scene.n_ranks)
        pinned = number % 5 == 0
        preference = RankPreference(factors, pinned)
        slot = placing.place_prompt(prompt, config, eligible, preference)
        expected = list(scene.ranks(prompt, eligible, factors, pinned, config))
        costs = np.array([found for found, *_ in expected])
        assert np.array_equal(placing.scratch.costs[: scene.n_ranks], costs)
        terms = placing.cost_terms(prompt, config, eligible, preference)
        assert np.array_equal(terms[COST], costs)
        matched = scene.partition.index.match(prompt.block_hashes)
        assert np.array_equal(placing.scratch.matched[: scene.n_ranks], matched)
        if not eligible.any():
            assert slot == NO_SLOT
            continue
        candidates = np.flatnonzero(eligible)
        assert slot == candidates[np.argmin(costs[candidates])]
        best = int(matched[candidates, 3].max())
        _, effective, work = expected[slot]
        assert placing.last_summary() == [effective, *matched[slot].tolist(), best, work, 0, 0, 0]
        placing.check_invariants()


def test_a_request_with_parameters_of_its_own_leaves_the_plan_alone():
    scene = Scene(8, 1, REFERENCE)
    placing, everybody = scene.partition.placer, np.ones(8, np.bool_)
    other = apply_override(scene.config, RouterConfigOverride(prefill_load_scale=3.0))
    prompt, before = scene.prompt(), placing.plan.copy()
    for config, scale in ((scene.config, 1.0), (other, 3.0), (scene.config, 1.0)):
        placing.place_prompt(prompt, config, everybody)
        costs = [found for found, *_ in scene.ranks(prompt, everybody, None, False, config)]
        assert placing.scratch.costs[:8].tolist() == costs
        assert config.prefill_load_scale == scale
    assert np.array_equal(placing.plan[:REQUEST], before[:REQUEST])


def test_placements_that_are_no_decisions_are_not_counted():
    scene = Scene(3, 1, REFERENCE)
    list(scene.selector.inspection.potential_loads(a_select(8)))
    assert not any(scene.partition.placer.total_tally)
    scene.selector.select(a_select(40), 0.0)
    assert scene.partition.placer.total_tally[:3] == (1, 0, 2)
