"""Tests of the JSON dump of an index: its exact form, and the index rebuilt from the dump."""

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from indexer.dumps.block_runs import RUN_BLOCKS_MAX
from indexer.dumps.json_writer import CHUNK_BLOCKS_MAX, STORAGE_TIERS, document_chunks
from indexer.dumps.recovered_blocks import DumpedPartition
from indexer.index.index_snapshot import StreamPosition
from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import Tier
from tests.indexer.dumps.dump_scenes import dump_chunks

TIER_OF = {name: tier for tier, name in STORAGE_TIERS.items()}


def u64(values):
    return np.array(list(values), np.uint64)


def dump(index, ranks):
    return json.loads(b"".join(dump_chunks(index.snapshot(), 4, ranks)))


def stored(worker_id, tier, event_id, parent, blocks, dp_rank=0):
    block_dicts = [
        {"block_hash": n, "tokens_hash": c, "mm_extra_info": None, **extra}
        for n, c, extra in ((*block, {})[:3] for block in blocks)
    ]
    data = {"stored": {"parent_hash": parent, "start_position": None, "blocks": block_dicts}}
    event = {"event_id": event_id, "data": data, "dp_rank": dp_rank}
    return {
        "worker_id": worker_id,
        "storage_tier": tier,
        "residency_domain": "worker",
        "event": event,
    }


def load(document, slots):
    """Return a new index from a dump, and its writers.

    slots: map from (worker_id, dp_rank) to slot
    """
    index = PrefixIndex(100_000)
    writers = [index.open_slot() for _ in slots]
    for entry in document["events"]:
        event = entry["event"]
        writer = writers[slots[entry["worker_id"], event["dp_rank"]]]
        tier = TIER_OF[entry["storage_tier"]]
        if "removed" in event["data"]:
            writer.remove(tier, u64(event["data"]["removed"]["block_hashes"]))
            continue
        parent = event["data"]["stored"]["parent_hash"]
        for block in event["data"]["stored"]["blocks"]:
            for _ in range(block.get("copies", 1)):
                names, contents = u64([block["block_hash"]]), u64([block["tokens_hash"]])
                writer.store(tier, parent, contents, names)
            parent = block["block_hash"]
    return index, writers


def unknown_parents(document):
    """Return the parents that are unknown to a reader that applies the events rank by rank."""
    known, unknown = set(), []
    for entry in document["events"]:
        event = entry["event"]
        rank = (entry["worker_id"], event["dp_rank"])
        stored_ = event["data"].get("stored", {"parent_hash": None, "blocks": []})
        if stored_["parent_hash"] is not None and (*rank, stored_["parent_hash"]) not in known:
            unknown.append((rank, stored_["parent_hash"]))
        known |= {(*rank, block["block_hash"]) for block in stored_["blocks"]}
    return unknown


def test_an_empty_index_dumps_no_events():
    assert dump(PrefixIndex(10), {}) == {"block_size": 4, "events": []}


def test_a_linear_run_of_one_owner_is_one_event():
    index = PrefixIndex(100)
    one, two = index.open_slot(), index.open_slot()
    one.store(Tier.GPU, None, u64([1, 2, 3, 4]), u64([11, 12, 13, 14]))
    two.store(Tier.GPU, None, u64([1, 2]), u64([11, 12]))
    assert dump(index, {0: (7, 0), 1: (2**64 - 1, 3)})["events"] == [
        stored(7, "device", 0, None, [(11, 1), (12, 2), (13, 3), (14, 4)]),
        stored(2**64 - 1, "device", 1, None, [(11, 1), (12, 2)], dp_rank=3),
    ]


def test_a_branch_is_an_event_below_its_parent():
    index = PrefixIndex(100)
    writer = index.open_slot()
    writer.store(Tier.GPU, None, u64([1, 2, 3]), u64([11, 12, 13]))
    writer.store(Tier.GPU, 11, u64([5]), u64([15]))
    events = dump(index, {0: (1, 0)})["events"]
    assert [e["event"]["data"]["stored"]["parent_hash"] for e in events] == [None, 11]
    assert sum(len(e["event"]["data"]["stored"]["blocks"]) for e in events) == 4


def test_lower_tiers_follow_the_device_with_their_own_event_ids():
    index = PrefixIndex(100)
    writer = index.open_slot()
    writer.store(Tier.EXTERNAL, None, u64([8]), u64([18]))
    writer.store(Tier.GPU, None, u64([1]), u64([11]))
    writer.store(Tier.CPU, 11, u64([2]), u64([12]))
    writer.store(Tier.DISK, 12, u64([3]), u64([13]))
    assert dump(index, {0: (1, 0)})["events"] == [
        stored(1, "device", 0, None, [(11, 1)]),
        stored(1, "host_pinned", 0, 11, [(12, 2)]),
        stored(1, "disk", 0, 12, [(13, 3)]),
        stored(1, "external", 0, None, [(18, 8)]),
    ]


def test_every_owner_speaks_its_own_hashes():
    index = PrefixIndex(100)
    one, two = index.open_slot(), index.open_slot()
    one.store(Tier.GPU, None, u64([1, 2]), u64([11, 12]))
    two.store(Tier.GPU, None, u64([1, 2]), u64([21, 22]))
    two.store(Tier.CPU, 22, u64([3]), u64([23]))
    assert dump(index, {0: (1, 0), 1: (2, 0)})["events"] == [
        stored(1, "device", 0, None, [(11, 1), (12, 2)]),
        stored(2, "device", 1, None, [(21, 1), (22, 2)]),
        stored(2, "host_pinned", 0, 22, [(23, 3)]),
    ]


def test_copies_and_further_hashes_are_carried():
    index = PrefixIndex(100)
    writer = index.open_slot()
    writer.store(Tier.GPU, None, u64([1]), u64([11]))
    writer.store(Tier.GPU, None, u64([1, 2]), u64([11, 12]))
    writer.store(Tier.GPU, 11, u64([2]), u64([13]))
    assert dump(index, {0: (1, 0)})["events"] == [
        stored(1, "device", 0, None, [(11, 1, {"copies": 2}), (12, 2)]),
        stored(1, "device", 1, 11, [(13, 2)]),
    ]


def test_slots_without_a_rank_and_closed_slots_are_left_out():
    index = PrefixIndex(100)
    one, two = index.open_slot(), index.open_slot()
    one.store(Tier.GPU, None, u64([1]), u64([11]))
    two.store(Tier.GPU, None, u64([2]), u64([12]))
    two.close()
    assert dump(index, {1: (2, 0), 9: (9, 0)})["events"] == []


def test_long_runs_are_split_and_chunks_bounded():
    index = PrefixIndex(100_000)
    writer = index.open_slot()
    names = np.arange(3 * RUN_BLOCKS_MAX + 5, dtype=np.uint64)
    writer.store(Tier.GPU, None, names, names)
    chunks = list(dump_chunks(index.snapshot(), 4, {0: (1, 0)}))
    assert len(chunks) == 2 + 4
    assert max(map(len, chunks)) < 200 * CHUNK_BLOCKS_MAX
    copy, _ = load(json.loads(b"".join(chunks)), {(1, 0): 0})
    assert copy.match(names)[0, 0] == names.size


def test_a_snapshot_does_not_change_with_the_index():
    index = PrefixIndex(100)
    writer = index.open_slot()
    writer.store(Tier.GPU, None, u64([1, 2]), u64([11, 12]))
    snapshot = index.snapshot()
    before = b"".join(dump_chunks(snapshot, 4, {0: (1, 0)}))
    writer.remove(Tier.GPU, u64([12, 11]))
    writer.store(Tier.GPU, None, u64([5]), u64([15]))
    assert b"".join(dump_chunks(snapshot, 4, {0: (1, 0)})) == before


LOCALS = st.integers(1, 3)
PLACES = st.lists(LOCALS, min_size=1, max_size=5).map(tuple)
STEPS = st.lists(
    st.tuples(st.booleans(), st.integers(0, 2), st.sampled_from(Tier), st.integers(0, 1), PLACES),
    max_size=25,
)


def name_of(seed, place):
    return xxh3_64_intdigest(bytes(place), seed)


@given(STEPS)
def test_a_loaded_dump_matches_and_removes_like_the_original(steps):
    index = PrefixIndex(100_000)
    writers = [index.open_slot() for _ in range(3)]
    for adds, pick, tier, seed, place in steps:
        names = [name_of(seed, place[: n + 1]) for n in range(len(place))]
        if adds:
            writers[pick].store(tier, None, u64(place), u64(names))
        else:
            writers[pick].remove(tier, u64(names[-1:]))
    ranks = {slot: (slot + 5, slot) for slot in range(3)}
    copy, copies = load(dump(index, ranks), {rank: slot for slot, rank in ranks.items()})
    copy.check_invariants()
    paths = [u64(place) for *_, place in steps]
    for path in paths:
        assert copy.match(path).tolist() == index.match(path).tolist()
    for _, pick, tier, seed, place in steps:
        for writer in (writers[pick], copies[pick]):
            writer.remove(tier, u64([name_of(seed, place)]))
    for path in paths:
        assert copy.match(path).tolist() == index.match(path).tolist()


def test_freed_nodes_do_not_disturb_a_dump_of_foreign_names():
    index = PrefixIndex(64)
    writers = [index.open_slot(), index.open_slot()]
    blocks = np.arange(1, 41, dtype=np.uint64)
    for salt, writer in enumerate(writers):
        writer.store(Tier.GPU, None, blocks, blocks + np.uint64(1000 * salt))
    for salt, writer in enumerate(writers):
        writer.remove(Tier.GPU, blocks[4:] + np.uint64(1000 * salt))
    text = b"".join(dump_chunks(index.snapshot(), 16, {0: (1, 0), 1: (2, 0)}))
    runs = [e["event"]["data"]["stored"]["blocks"] for e in json.loads(text)["events"]]
    assert [[b["block_hash"] for b in run] for run in runs] == [
        [1, 2, 3, 4],
        [1001, 1002, 1003, 1004],
    ]


def test_parts_make_one_document_with_event_ids_and_places_of_its_own():
    parts = []
    for worker_id in (1, 2):
        index = PrefixIndex(100)
        writer = index.open_slot()
        writer.store(Tier.GPU, None, u64([1, 2]), u64([11, 12]))
        writer.store(Tier.CPU, None, u64([1]), u64([11]))
        writer.position = StreamPosition(worker_id + 5, 0, None if worker_id == 1 else 2**64 - 1)
        parts.append(DumpedPartition("m:t", 4, {(worker_id, 0): writer.slot}, index.snapshot()))
    document = json.loads(b"".join(document_chunks(parts)))
    assert document == {
        "block_size": 4,
        "watermarks": {"1:0": 5, "2:0": 6},
        "digests": {"2:0": 2**64 - 1},
        "events": [
            stored(1, "device", 0, None, [(11, 1), (12, 2)]),
            stored(2, "device", 1, None, [(11, 1), (12, 2)]),
            stored(1, "host_pinned", 0, None, [(11, 1)]),
            stored(2, "host_pinned", 1, None, [(11, 1)]),
        ],
    }


def test_a_removed_parent_has_the_name_that_its_child_uses():
    index = PrefixIndex(100)
    one, two = index.open_slot(), index.open_slot()
    one.store(Tier.GPU, None, u64([1, 2]), u64([11, 12]))
    two.store(Tier.GPU, None, u64([1, 2, 3]), u64([21, 22, 23]))
    two.remove(Tier.GPU, u64([22]))
    document = dump(index, {0: (1, 0), 1: (2, 0)})
    assert document["events"] == [
        stored(1, "device", 0, None, [(11, 1), (12, 2)]),
        stored(2, "device", 1, None, [(21, 1), (12, 2), (23, 3)]),
        {
            "worker_id": 2,
            "storage_tier": "device",
            "residency_domain": "worker",
            "event": {"event_id": 2, "data": {"removed": {"block_hashes": [12]}}, "dp_rank": 0},
        },
    ]
    copy, writers = load(document, {(1, 0): 0, (2, 0): 1})
    assert copy.match(u64([1, 2, 3])).tolist() == index.match(u64([1, 2, 3])).tolist()
    for each in (two, writers[1]):
        each.store(Tier.GPU, 21, u64([2]), u64([22]))
    assert copy.match(u64([1, 2, 3]))[:, 0].tolist() == [2, 3]
    assert index.match(u64([1, 2, 3]))[:, 0].tolist() == [2, 3]
    copy.check_invariants()


WAYS = st.lists(st.integers(1, 2), min_size=1, max_size=5)
CHANGES = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(Tier), WAYS, st.integers(0, 4), st.booleans()),
    max_size=30,
)


def name_by(rank, way):
    """Return a rank's hash of a block; only ranks 0 and 1 share their hashes."""
    return xxh3_64_intdigest(bytes(way), max(0, rank - 1)) >> 1


def name_of_depth(rank, way):
    return u64(name_by(rank, way[: n + 1]) for n in range(len(way)))


@given(CHANGES, CHANGES)
def test_ranks_that_share_blocks_and_remove_some_are_rebuilt_from_a_dump(before, after):
    index = PrefixIndex(1000)
    writers = [index.open_slot() for _ in range(4)]
    change(writers, before)
    document = dump(index, {rank: (rank, 0) for rank in range(4)})
    assert unknown_parents(document) == []
    copy, copies = load(document, {(rank, 0): rank for rank in range(4)})
    copy.check_invariants()
    ways = sorted({tuple(way) for _, _, way, _, _ in before + after})
    for way in ways:
        assert copy.match(u64(way)).tolist() == index.match(u64(way)).tolist()
    change(writers, after)
    change(copies, after)
    copy.check_invariants()
    for way in ways:
        assert copy.match(u64(way)).tolist() == index.match(u64(way)).tolist()


def change(writers, steps):
    """Store paths from their start, and remove single blocks anywhere."""
    for rank, tier, way, depth, removes in steps:
        names = name_of_depth(rank, way)
        if removes:
            writers[rank].remove(tier, names[min(depth, len(way) - 1) :][:1].copy())
        else:
            writers[rank].store(tier, None, u64(way), names)
