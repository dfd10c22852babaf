"""Tests of the fetch sources in answers, against a naive search."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.hashing.block_hashing import compute_block_hashes
from indexer.tiers import Tier
from select_service.core.identity import PartitionKey, Rank
from tests.builders import a_patch, a_select, a_select_and_reserve, a_selector, a_worker

KEY, SIZE, TOKENS = PartitionKey("m", "default"), 4, 42
PATH = compute_block_hashes(np.arange(TOKENS, dtype=np.uint32), SIZE)
KV_BYTES, SPEED = 131_072.0, 20_000.0
EFFICIENCY, HOST_PRICE = 0.8, 0.02

RANKS = st.lists(
    st.fixed_dictionaries(
        {
            "gpu": st.integers(0, 10),
            "cpu": st.integers(0, 5),
            "gbps": st.sampled_from([None, 10.0, 25.0, 400.0]),
            "host": st.sampled_from([None, "a", "b"]),
            "rack": st.sampled_from(["r1", "r2"]),
            "speed": st.sampled_from([None, SPEED]),
            "demands_rack": st.booleans(),
        }
    ),
    min_size=2,
    max_size=5,
)


def register(selector, number, rank):
    transfer = {"rack": rank["rack"], "engine_ids": {0: f"engine-{number}"}}
    transfer |= {"host": rank["host"]} if rank["host"] else {}
    transfer |= {"bytes_per_token": KV_BYTES, "link_gbps": rank["gbps"]} if rank["gbps"] else {}
    more = {"prefill_tokens_per_s": rank["speed"]} if rank["speed"] else {}
    if rank["demands_rack"]:
        more |= {"kv_transfer_domain": "rack", "kv_transfer_enforcement": "required"}
        more |= {"topology_domains": {"rack": rank["rack"]}}
    selector.register_worker(a_worker(number, block_size=SIZE, kv_transfer=transfer, **more))
    writer = selector.fleet.partitions[KEY].table.writer_of(Rank(number, 0))
    names, gpu = np.arange(100 * number, 100 * number + len(PATH), dtype=np.uint64), rank["gpu"]
    writer.store(Tier.GPU, None, PATH[:gpu], names[:gpu])
    cpu = names[gpu : gpu + rank["cpu"]]
    if len(cpu):
        parent = int(names[gpu - 1]) if gpu else None
        writer.store(Tier.CPU, parent, PATH[gpu : gpu + len(cpu)], cpu)


def naive_price(source, target, speed):
    """Return the prefill tokens per moved token; None means unknown or forbidden."""
    if not (source["gbps"] and target["gbps"] and speed):
        return None
    if source["rack"] != target["rack"] and (source["demands_rack"] or target["demands_rack"]):
        return None
    slower = min(source["gbps"], target["gbps"])
    price = KV_BYTES * 8 / (slower * 1e9 * EFFICIENCY) * speed
    return min(price, HOST_PRICE) if source["host"] and source["host"] == target["host"] else price


def naive_saving(ranks, chosen):
    """Return the largest number of tokens that a source saves."""
    speed = SPEED if any(rank["speed"] for rank in ranks) else None
    target, best = ranks[chosen], 0.0
    held = min(target["gpu"] + target["cpu"], len(PATH))
    for number, source in enumerate(ranks):
        price = naive_price(source, target, speed)
        if number != chosen and price is not None and source["gpu"] > held:
            best = max(best, (source["gpu"] - held) * SIZE * (1 - price))
    return best


@given(RANKS, st.integers(0, 4), st.booleans())
def test_the_source_saves_more_than_any_other(ranks, pinned, reserves):
    selector = a_selector(names_kv_sources=True)
    for number, rank in enumerate(ranks, 1):
        register(selector, number, rank)
    pinned %= len(ranks)
    pin = {"pinned_worker": {"worker_id": pinned + 1, "dp_rank": 0}}
    if reserves:
        answer = selector.select_and_reserve(a_select_and_reserve(TOKENS, **pin), 0.0).selection
    else:
        answer = selector.select(a_select(TOKENS, **pin), 0.0).selection
    best, found = naive_saving(ranks, pinned), answer.kv_source
    if best <= 0.0:
        assert found is msgspec.UNSET
        return
    source, target = ranks[found.worker_id - 1], ranks[pinned]
    assert found.tokens == source["gpu"] * SIZE
    assert found.fetch_tokens == found.tokens - SIZE * min(target["gpu"] + target["cpu"], 10)
    assert found.endpoint == f"http://w{found.worker_id}:8000"
    assert found.engine_id == f"engine-{found.worker_id}"
    assert found.fetch_tokens * (1 - found.fetch_price) == pytest.approx(best, abs=1e-3)
    assert selector.fleet.partitions[KEY].kv_source_outcomes == {"given": 1}


def test_off_there_is_none_and_changed_links_apply_at_once():
    far, near = {"gpu": 8, "cpu": 0, "gbps": 10.0}, {"gpu": 0, "cpu": 0, "gbps": 400.0}
    rest = {"host": None, "rack": "r1", "speed": SPEED, "demands_rack": False}
    for names in (False, True):
        selector = a_selector(names_kv_sources=names)
        register(selector, 1, far | rest)
        register(selector, 2, near | rest)
        request = a_select(TOKENS, pinned_worker={"worker_id": 2, "dp_rank": 0})
        assert selector.select(request, 0.0).selection.kv_source is msgspec.UNSET
        transfer = {"bytes_per_token": KV_BYTES, "link_gbps": 400.0}
        selector.patch_worker(1, a_patch(kv_transfer=transfer))
        found = selector.select(request, 0.0).selection.kv_source
        assert (found is msgspec.UNSET) is not names
        table = selector.fleet.partitions[KEY].table
        table.set_weight(table.find_slot(Rank(1, 0)), 0.0, "unhealthy")
        assert selector.select(request, 0.0).selection.kv_source is msgspec.UNSET
