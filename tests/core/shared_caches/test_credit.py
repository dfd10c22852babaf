"""Tests of the credit for tokens in a shared cache, against a naive computation."""

from math import floor

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.hashing.block_hashing import compute_block_hashes
from indexer.tiers import Tier
from select_service.core.identity import PartitionKey, Rank
from select_service.core.placement.prompt import ReadAheadPrompt, read_prompt
from select_service.core.placement.router_config import RouterConfig
from select_service.core.shared_caches.shared_hits import SharedHits
from tests.builders import a_select, a_selector, a_worker

KEY, SIZE, TOKENS = PartitionKey("m", "default"), 4, 42
PATH = compute_block_hashes(np.arange(TOKENS, dtype=np.uint32), SIZE)
EFFICIENCY, HOST_PRICE = 0.8, 0.02


def naive_price(worker, speeds, link):
    """Return the prefill tokens per token over the slower link; None without the facts."""
    declared = sorted(speed for speed in speeds if speed)
    middle = len(declared) // 2
    median = declared and (declared[middle] + declared[-middle - 1]) / 2
    speed = worker["speed"] or median
    if not (worker["bytes"] and worker["gbps"] and speed):
        return None
    gbps = worker["gbps"] if link is None else min(link, worker["gbps"])
    return worker["bytes"] * 8 / (gbps * 1e9 * EFFICIENCY) * speed


def naive_credit(worker, speeds, hits):
    price = naive_price(worker, speeds, hits.link_gbps)
    value = 0.0 if price is None else max(0.0, 1.0 - price)
    tokens, own = hits.tokens, hits.own_tokens.get(f"engine-{worker['id']}", 0)
    if own * (1 - HOST_PRICE) > tokens * value:
        tokens, value = own, 1 - HOST_PRICE
    return value * max(0, tokens - SIZE * (worker["gpu"] + worker["cpu"]))


WORKERS = st.lists(
    st.fixed_dictionaries(
        {
            "gpu": st.integers(0, 6),
            "cpu": st.integers(0, 4),
            "bytes": st.sampled_from([None, 1e5, 3e5]),
            "gbps": st.sampled_from([None, 10.0, 100.0, 400.0]),
            "speed": st.sampled_from([None, 5_000.0, 40_000.0]),
        }
    ),
    min_size=1,
    max_size=4,
)
HITS = st.builds(
    SharedHits,
    outcome=st.just("hit"),
    tokens=st.integers(0, TOKENS),
    own_tokens=st.dictionaries(st.sampled_from(["engine-1", "engine-2"]), st.integers(1, TOKENS)),
    link_gbps=st.sampled_from([None, 25.0]),
)


def a_fleet(workers, policy="work"):
    selector = a_selector(RouterConfig(policy=policy), decisions_kept=16)
    for number, worker in enumerate(workers, 1):
        worker["id"] = number
        transfer = {"engine_ids": {0: f"engine-{number}"}}
        transfer |= {"bytes_per_token": worker["bytes"], "link_gbps": worker["gbps"]}
        given_fields = {"kv_transfer": {k: v for k, v in transfer.items() if v is not None}}
        if worker["speed"]:
            given_fields["prefill_tokens_per_s"] = worker["speed"]
        selector.register_worker(a_worker(number, block_size=SIZE, **given_fields))
        writer = selector.fleet.partitions[KEY].table.writer_of(Rank(number, 0))
        ends = worker["gpu"], worker["gpu"] + worker["cpu"]
        names = np.arange(1000 * number, 1000 * number + len(PATH), dtype=np.uint64)
        writer.store(Tier.GPU, None, PATH[: ends[0]], names[: ends[0]])
        if worker["cpu"]:
            parent = int(names[ends[0] - 1]) if ends[0] else None
            writer.store(Tier.CPU, parent, PATH[slice(*ends)], names[slice(*ends)])
    return selector


def looked_up(hits, size=SIZE, **fields):
    request = a_select(TOKENS, **fields)
    prompt = read_prompt(request, size, 0)._replace(shared=hits)
    return request, ReadAheadPrompt(size, 0, prompt)


@given(WORKERS, HITS, st.booleans())
def test_every_cost_counts_the_savings_of_the_cache(workers, hits, overrides):
    selector = a_fleet(workers)
    override = {"router_config_override": {"track_prefill_tokens": False}} if overrides else {}
    request, read = looked_up(hits, **override)
    speeds = [worker["speed"] for worker in workers]
    plain = selector.select(a_select(TOKENS), 0.0)
    view = selector.followers.explanations.explain_request(request, None, read, 0.0)
    for row in view.candidates:
        worker = workers[row.worker_id - 1]
        local = floor((worker["gpu"] + 0.75 * worker["cpu"]) * SIZE + 0.5)
        credit = naive_credit(worker, speeds, hits)
        shown = 0 if row.shared_credit_tokens is msgspec.UNSET else row.shared_credit_tokens
        # A product near a whole number may round to either side.
        assert shown == pytest.approx(floor(credit), abs=0 if credit % 1 > 1e-9 else 1)
        assert row.terms["cached_tokens"] == local + shown
        assert row.gpu_blocks == worker["gpu"]
    chosen = selector.select(request, 0.0, read_ahead=read).selection
    best = min(view.candidates, key=lambda row: row.terms["cost"])
    assert chosen.effective_prefill_tokens == min(
        row.terms["effective_prefill_tokens"]
        for row in view.candidates
        if row.terms["cost"] == best.terms["cost"] and row.worker_id == chosen.worker_id
    )
    assert chosen.overlap.gpu == SIZE * workers[chosen.worker_id - 1]["gpu"]
    # The next request without a lookup is answered as if there had been none.
    selector.decisions.rng.seed(1)
    again = selector.select(a_select(TOKENS), 0.0).selection
    assert again.overlap.shared is msgspec.UNSET
    if len(workers) == 1:
        assert msgspec.json.encode(again) == msgspec.json.encode(plain.selection)
    selector.check_invariants()
