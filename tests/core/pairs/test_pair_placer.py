"""Tests of the compiled choice of pairs against the full matrix, to the last bit."""

from math import inf
from random import Random

import numpy as np
import pytest

from indexer.tiers import Tier
from select_service.core.load.compiled.load_layout import REQUESTS
from select_service.core.pairs.pair_placer import PairMasks, PairPlacer
from select_service.core.placement.placement_kernels import CACHED_TOKENS, DECODE
from select_service.core.placement.policies.policy_registry import PolicyChoice
from select_service.core.placement.policies.work_price_kernels import LEFT_PRICE, OWN_WORK
from select_service.core.placement.prompt import Prompt
from select_service.core.placement.router_config import RouterConfig
from select_service.core.shared_caches.shared_hits import SharedHits
from select_service.core.workers.transfer_prices import LinkPosition, price_between
from tests.builders import a_select_and_reserve, a_selector, a_worker
from tests.models.pair_model import PairRank, cheapest, local_cost, pair_cost

SIZE = 4
HOSTS = [None, "a", "b", "c"]
LINKS = [None, 25.0, 100.0, 400.0]
LINK = {"bytes_per_token": 1e7, "link_gbps": 100.0}
FLEETS = 60
PROMPTS_PER_FLEET = 10
LOADS, LOADS_PER_TEST = 1000, 50


def random_position(rng):
    return LinkPosition(
        host=rng.choice(HOSTS),
        bytes_per_token=rng.choice([None, 131072.0]),
        link_gbps=rng.choice(LINKS),
        domains=rng.choice([(), (("rack", "r1"),), (("rack", "r2"),)]),
        domain=rng.choice([None, "rack"]),
        is_required=rng.random() < 0.3,
        preference=rng.choice([0.0, 0.5]),
    )


def random_fleet(rng):
    """Return a selector of `work` with bookings on 4 to 12 ranks, some with declared speeds."""
    # The prices of pairs do not depend on the options.
    options = rng.choice([(), ("decode-sensitive", "copy-price")])
    config = RouterConfig(policy="work", policy_options=options)
    selector = a_selector(config, seed=rng.randrange(1 << 30))
    has_speeds = rng.random() < 0.5
    for worker_id in range(1, rng.randint(5, 13)):
        selector.register_worker(
            a_worker(
                worker_id,
                total_kv_blocks=rng.choice([None, 20, 400]),
                prefill_tokens_per_s=rng.choice([100.0, 300.0]) if has_speeds else None,
                kv_transfer=rng.choice([{}, LINK]),
            )
        )
    for number in range(rng.randint(0, 40)):
        tokens = rng.choice([10, 40, 41, 200])
        name = f"r{number}"
        selector.select_and_reserve(a_select_and_reserve(tokens, reservation_id=name), 0.0)
        if rng.random() < 0.5:
            selector.complete_prefill(name, 0.0)
    (partition,) = selector.fleet.partitions.values()
    for rank, _ in partition.table.iterate_slots():
        held = np.arange(1, rng.choice([1, 1, 5, 30]), dtype=np.uint64)
        partition.table.writer_of(rank).store(Tier.GPU, None, held, held)
    return partition


def ranks_of(partition, prompt):
    """Return the numbers of all ranks as used by `work`, which its own twin proves.

    The cached tokens of a rank exclude the shared cache, the rank's own work includes it.
    """
    placer, table = partition.placer, partition.table
    placer.switch_policy(PolicyChoice("work"))
    given = placer.default_config, table.open_slots
    placer.place_prompt(prompt._replace(shared=None), *given)
    held = placer.cost_terms(prompt._replace(shared=None), *given)[CACHED_TOKENS]
    placer.place_prompt(prompt, *given)
    terms = placer.cost_terms(prompt, *given)
    speeds = [speed for speed in table.columns.speed if speed > 0]
    usual = float(np.median(speeds)) if speeds else 0.0
    totals = partition.load.totals
    return [
        PairRank(
            left=terms[LEFT_PRICE, slot],
            own=terms[OWN_WORK, slot],
            cached=held[slot],
            credit=terms[CACHED_TOKENS, slot] - held[slot],
            live=SIZE * terms[DECODE, slot],
            requests=float(totals[slot, REQUESTS]),
            cache=SIZE * table.columns.kv_blocks[slot],
            pace=usual / table.columns.speed[slot] if table.columns.speed[slot] > 0 else 1.0,
        )
        for slot in range(table.n_slots)
    ]


class Transfers:
    """Naive account of tokens under way by host; unknown hosts are not counted."""

    def __init__(self):
        self.booked = []

    def change_workers(self, positions):
        self.host_of = {slot: position.host for slot, position in positions.items()}

    def add(self, prefill, decode, tokens):
        self.booked.append((self.host_of[prefill], self.host_of[decode], tokens))

    def backlog(self, prefill, decode):
        out, into = self.host_of[prefill], self.host_of[decode]
        if out == into:
            return 0
        moving = [(o, i, tokens) for o, i, tokens in self.booked if o != i]
        leaving = sum(tokens for o, _, tokens in moving if o == out is not None)
        entering = sum(tokens for _, i, tokens in moving if i == into is not None)
        return max(leaving, entering)


def options_of(ranks, masks, positions, speed, transfers, isl):
    """Return ({slot: cost of both parts}, {(prefill, decode): cost}) of all eligible ranks."""
    local = {at: local_cost(rank, SIZE) for at, rank in enumerate(ranks) if masks.both[at]}
    remote = {}
    for p in np.flatnonzero(masks.prefill).tolist():
        for d in np.flatnonzero(masks.decode).tolist():
            price = price_between(positions[p], positions[d], speed)
            if p != d and price < inf:
                waits = transfers.backlog(p, d)
                remote[p, d] = pair_cost(ranks[p], ranks[d], price, waits, isl, SIZE)
    return local, remote


@pytest.mark.parametrize("seed", range(FLEETS))
def test_pairs_are_the_cheapest_of_the_full_matrix(seed):
    check_fleet(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, LOADS, LOADS_PER_TEST))
def test_pairs_are_the_cheapest_of_the_full_matrix_in_many_fleets(first):
    """Check 10,000 fleets: ten sets of links per load (`scripts/test_slow tests/core/pairs`)."""
    for seed in range(first, first + LOADS_PER_TEST):
        check_fleet(seed)


def check_fleet(seed):
    """Compare the choices for some prompts in a random fleet, each with different links."""
    rng = Random(seed)
    partition = random_fleet(rng)
    pairs, n_slots = PairPlacer(partition.placer), partition.table.n_slots
    transfers, routes = Transfers(), []
    for _ in range(PROMPTS_PER_FLEET):
        speed = rng.choice([None, 33_000.0])
        positions = {slot: random_position(rng) for slot in range(n_slots)}
        pairs.update_links(positions, n_slots, speed)
        transfers.change_workers(positions)
        for _ in range(rng.randrange(4)):
            prefill, decode = rng.sample(range(n_slots), 2)
            tokens = rng.choice([100, 2000])
            transfers.add(prefill, decode, tokens)
            route = pairs.link_between(prefill, decode).route
            pairs.add_transfer(route, tokens)
            routes.append((route, tokens))
        if routes and rng.random() < 0.5:
            at = rng.randrange(len(routes))
            del transfers.booked[at]
            route, tokens = routes.pop(at)
            pairs.add_transfer(route, -tokens)
        prompt_blocks = rng.choice([1, 10, 50])
        path = np.array(range(rng.choice([1, 5]), 200)[:prompt_blocks], np.uint64)
        prompt = Prompt(path, path, prompt_blocks * SIZE + rng.randrange(SIZE))
        if rng.random() < 0.5:
            stored = rng.randint(1, prompt.isl_tokens)
            prompt = prompt._replace(shared=SharedHits("hit", stored, link_gbps=rng.choice(LINKS)))
        masks = PairMasks(np.random.default_rng(rng.randrange(1 << 30)).random((3, n_slots)) < 0.7)
        ranks = ranks_of(partition, prompt)
        isl = float(prompt.isl_tokens)
        local, remote = options_of(ranks, masks, positions, speed, transfers, isl)
        local_best, local_slots = cheapest(local)
        remote_best, remote_pairs = cheapest(remote)
        found = pairs.place_pair(prompt, masks, rng.random())
        if not local_slots and not remote_pairs:
            assert found is None
            continue
        assert (found.local_cost, found.remote_cost) == (local_best, remote_best)
        if local_best <= remote_best:
            assert found.is_local
            assert found.decode in local_slots
        else:
            assert (found.prefill, found.decode) in remote_pairs
            missing = max(0.0, isl - ranks[found.decode].cached)
            assert found.move_tokens == missing
        chosen = ranks[found.prefill_slot]
        assert (found.cached_tokens, found.credit) == (chosen.cached, chosen.credit)
        assert found.own_work == chosen.own
