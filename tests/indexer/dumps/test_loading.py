"""Tests of both dump formats, written and read again; hostile input ends only in DumpError."""

import json
import time
import zlib
from functools import cache

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from indexer.dumps import compact_writer
from indexer.dumps.compact_head import DumpError
from indexer.dumps.compact_reader import CompactReader, LoadLimits
from indexer.dumps.compact_writer import compact_chunks
from indexer.dumps.dump_time import DumpTime
from indexer.dumps.json_reader import JsonReader
from indexer.dumps.json_writer import document_chunks
from indexer.dumps.recovered_blocks import DumpedPartition
from indexer.index.index_snapshot import StreamPosition
from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import Tier
from tests.builders.polling import CPU_S_MAX
from tests.indexer.dumps.dump_scenes import attach, dump_chunks
from tests.indexer.dumps.test_held_blocks import STEPS, behaviour, held_of, play, u64

LIMITS = LoadLimits(blocks=1_000_000)
RANKS = {slot: (slot, 0) for slot in range(3)}


def compact(*partitions):
    return b"".join(compact_chunks(partitions))


def as_json(*partitions):
    members = []
    for held in partitions:
        ranks = {slot: rank for rank, slot in held.ranks.items()}
        body = b"".join(dump_chunks(held.snapshot, held.block_size, ranks))
        members.append(json.dumps(held.name).encode() + b":" + body)
    return b"{" + b",".join(members) + b"}"


def load(loader, data, piece=1 << 16):
    for start in range(0, len(data), piece):
        loader.feed(data[start : start + piece])
    loader.finish()
    return loader.partitions


def from_json(document, piece=1 << 16, limits=LIMITS):
    loader = JsonReader(limits)
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    return load(loader, data, piece), loader.bad_entries


def an_index(steps):
    index = PrefixIndex(1000)
    writers = [index.open_slot() for _ in range(3)]
    play(steps, writers)
    return index, writers


def attach_to_new_index(held):
    copy = PrefixIndex(1000)
    writers = [copy.open_slot() for _ in range(3)]
    for rank in held.ranks:
        attach(held, rank, writers[rank[0]])
    copy.check_invariants()
    return copy, writers


def without_orphans(steps):
    """Return the steps with results that JSON can carry: chains from the root, no removals."""
    return [(*step[:5], 0) if step[0] == "store" else step for step in steps if step[0] != "remove"]


@given(STEPS, STEPS, st.sampled_from([7, 100, 1 << 16]))
def test_the_compact_form_loses_nothing(before, after, piece):
    index, writers = an_index(before)
    (held,) = load(CompactReader(LIMITS), compact(held_of(index)), piece)
    copy, copies = attach_to_new_index(held)
    assert behaviour(copy, copies, before, after) == behaviour(index, writers, before, after)


@given(STEPS, STEPS, st.sampled_from([7, 100, 1 << 16]))
def test_the_json_form_keeps_matches_counts_and_names(before, after, piece):
    before = without_orphans(before)
    index, writers = an_index(before)
    (held,), bad = from_json(as_json(held_of(index)), piece)
    copy, copies = attach_to_new_index(held)
    assert bad == 0
    assert behaviour(copy, copies, before, after) == behaviour(index, writers, before, after)


@pytest.mark.parametrize("form", ["compact", "json"])
def test_places_block_size_and_names_survive(form):
    index, writers = an_index([("store", 0, Tier.GPU, 0, (1, 2), 0)])
    digest = 2**64 - 1 if form == "compact" else None
    writers[0].position, writers[1].position = StreamPosition(9, 3, digest), StreamPosition(0, 1)
    writers[1].store(Tier.GPU, None, u64([5]), u64([15]))
    held = held_of(index)._replace(name='llama3:8b:"x"\\ü', block_size=16)
    if form == "compact":
        (found,) = load(CompactReader(LIMITS), compact(held), 11)
    else:
        ((found,), _) = from_json(as_json(held), 11)
    assert (found.name, found.block_size) == (held.name, 16)
    places = {rank: found.snapshot.positions.get(slot) for rank, slot in found.ranks.items()}
    assert (places[0, 0], places[1, 0], places.get((2, 0))) == (
        StreamPosition(9, 3, digest),
        StreamPosition(0, 1),
        None,
    )


def test_the_compact_form_is_small_and_large_columns_come_in_frames():
    rng = np.random.default_rng(1)
    index = PrefixIndex(200_000)
    writer = index.open_slot()
    for _ in range(150):
        contents, names = rng.integers(0, 2**64, (2, 1000), dtype=np.uint64)
        writer.store(Tier.GPU, None, contents, names)
    held = DumpedPartition("m:t", 16, {(0, 0): 0}, index.snapshot())
    chunks = list(compact_chunks([held]))
    assert max(map(len, chunks)) < 2 * 2**20
    assert 5 * sum(map(len, chunks)) < len(as_json(held))
    (again,) = load(CompactReader(LIMITS), b"".join(chunks))
    assert again.blocks == 150_000
    assert attach(again, (0, 0), PrefixIndex(200_000).open_slot()) == 150_000


@pytest.mark.parametrize("digests", [[1], "x", [None, -1, 1], [1, 2, 0.5]])
def test_digests_of_another_form_are_refused(digests, monkeypatch):
    index, _ = an_index([("store", slot, Tier.GPU, 0, (1, 2), 0) for slot in range(3)])
    monkeypatch.setattr(compact_writer, "_rank_digests", lambda _: digests)
    with pytest.raises(DumpError, match="digests"):
        load(CompactReader(LIMITS), compact(held_of(index)))


def test_an_older_file_has_no_digests_and_is_read(monkeypatch):
    index, writers = an_index([("store", slot, Tier.GPU, 0, (1, 2), 0) for slot in range(3)])
    writers[0].position = StreamPosition(9, 3, 77)
    monkeypatch.setattr(compact_writer, "_rank_digests", lambda _: None)
    (held,) = load(CompactReader(LIMITS), compact(held_of(index)))
    assert held.snapshot.positions == {0: StreamPosition(9, 3)}


def test_an_older_file_salts_first_blocks_only_and_is_read():
    loader = CompactReader(LIMITS)
    (held,) = load(loader, frames())
    assert loader.has_older_salts
    assert held.snapshot.keyed_roots.rows.tolist() == [[1, 2, 3]]
    loader = CompactReader(LIMITS)
    load(loader, frames((0, {"salt_rule": compact_writer.SALT_RULE})))
    assert not loader.has_older_salts


@pytest.mark.parametrize(
    ("roots", "rows"),
    [
        ({"7": [1, 2], "8": [0, 3]}, [[7, 1, 2], [8, 0, 3]]),
        ({"x": [1, 2], "7": [1, 0]}, [[7, 1, 0]]),
        ({"-7": [1, 2], "7": [-1, 2], "8": [1, 2**64], str(2**64): [1, 2], "9" * 30: [1, 2]}, None),
        ({"7": [1]}, None),
        ([7], None),
    ],
)
def test_keys_of_sequences_in_json(roots, rows):
    document = {"m:t": {"block_size": 4, "keyed_roots": roots, "events": [stored((1, 2))]}}
    ((held,), _) = from_json(document)
    read = held.snapshot.keyed_roots
    assert (read and read.rows.tolist()) == rows
    document["m:t"]["has_images"] = True
    ((held,), _) = from_json(document)
    assert held.snapshot.keyed_roots.has_images


def test_a_compact_dump_without_partitions_is_complete():
    assert load(CompactReader(LIMITS), compact()) == []


def test_times_travel_as_ages_on_the_clock_of_the_reader():
    index, writers = an_index([("store", slot, Tier.GPU, 0, (1, 2), 0) for slot in range(3)])
    writers[0].live_at, writers[1].live_at = 90.0, 110.0
    sent = b"".join(compact_chunks([held_of(index)], lambda: DumpTime(100.0, 7e8)))
    told = []

    def live_at(taken_at, age):
        told.append((taken_at, age))
        return 1000.0 - age

    (held,) = load(CompactReader(LIMITS, live_at), sent)
    assert held.snapshot.live_at == {0: 990.0, 1: 1000.0}
    assert told == [(7e8, 10.0), (7e8, 0.0)]
    (held,) = load(CompactReader(LIMITS, lambda *_: None), sent)
    assert held.snapshot.live_at is None
    (held,) = load(CompactReader(LIMITS, live_at), compact(held_of(index)))
    assert held.snapshot.live_at is None
    copy = PrefixIndex(100).open_slot()
    attach(held_of(index), (0, 0), copy)
    assert copy.live_at == 90.0


@pytest.mark.parametrize(
    "lie",
    [
        {"taken_at": 1.0, "ages": [-1.0]},
        {"taken_at": 1.0, "ages": [float("nan")]},
        {"taken_at": 1.0, "ages": [2e9]},
        {"taken_at": 1.0, "ages": [True]},
        {"taken_at": 1.0, "ages": []},
        {"taken_at": 1.0, "ages": {}},
        {"taken_at": 1.0},
        {"taken_at": float("inf"), "ages": [1.0]},
        {"ages": [1.0]},
    ],
    ids=str,
)
def test_ages_that_cannot_be_are_refused(lie):
    with pytest.raises(DumpError):
        load(CompactReader(LIMITS, lambda _, age: -age), frames((1, lie)))
    assert load(CompactReader(LIMITS), frames((1, lie)))[0].blocks == 2


@cache
def a_compact_dump():
    """Return a compact dump; cached, because records are in the order of a seeded table."""
    index, _ = an_index([("store", s, Tier.GPU, s, (1, 2, 0), 0) for s in range(2)])
    return compact(held_of(index), held_of(index)._replace(name="n:t"))


@pytest.mark.parametrize("cut", [1, 4, 30, 200, -1])
def test_a_compact_dump_cut_short_is_refused(cut):
    with pytest.raises(DumpError):
        load(CompactReader(LIMITS), a_compact_dump()[:cut])


@given(st.data())
def test_a_damaged_compact_dump_is_refused(data):
    whole = bytearray(a_compact_dump())
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DumpError):
        load(CompactReader(LIMITS), bytes(whole))


@given(st.binary(max_size=200))
def test_bytes_that_are_no_dump_are_refused_or_incomplete(data):
    for loader in (CompactReader(LIMITS), JsonReader(LIMITS)):
        try:
            load(loader, data, 13)
        except DumpError:
            continue
        assert data.strip().startswith(b"{")


DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    "document",
    [
        b'{"m\xff":{}}',
        b'{"m:t":{"\xff":1}}',
        b'{"m:t":{"events":[{"worker_id":1,"event":{"data":"\xff"}}]}}',
        b"{" + DEEP + b":",
    ],
)
def test_text_that_is_no_json_is_refused(document):
    with pytest.raises(DumpError):
        load(JsonReader(LIMITS), document)


@pytest.mark.parametrize("member", [b'"watermarks":{"\xff":1}', b'"groups":{"a":' + DEEP])
def test_a_member_that_is_no_json_counts_as_absent(member):
    end = b"]" * len(DEEP) + b"}" if DEEP in member else b""
    document = b'{"m:t":{"block_size":4,' + member + end + b',"events":[]}}'
    assert len(load(JsonReader(LIMITS), document)) == 1


def test_a_frame_with_bytes_that_are_no_text_is_refused():
    whole = bytearray(next(iter(compact_chunks([]))))
    body = bytes(whole[13:]).replace(b"format", b"f\xffrmat")
    frame = b"\xc6" + (len(body) + 8).to_bytes(4, "big")
    frame += xxhash.xxh3_64_intdigest(body).to_bytes(8, "little") + body
    with pytest.raises(DumpError, match="msgpack"):
        load(CompactReader(LIMITS), frame)


HEAD = {"partition": "m:t", "block_size": 4, "nodes": 2, "sets": 2, "words": 1, "records": 0}
SETS = np.zeros((2, 8, 1), np.uint64)
SETS[1, 0, 0] = 1


def frames(*changes):
    """Return a valid dump of two nodes, with some members of its frames replaced."""
    head = HEAD | {"ranks": [[0, 1, 0, None, 0]]}
    nodes = {
        "local": u64([1, 2]).tobytes(),
        "engine": u64([11, 12]).tobytes(),
        "depth": zlib.compress(np.array([1, 1], np.uint32).tobytes()),
        "holders": zlib.compress(np.array([1, 1], np.uint32).tobytes()),
    }
    content = [
        {"format": compact_writer.FORMAT, "version": compact_writer.VERSION},
        head,
        nodes,
        {"sets": zlib.compress(SETS.tobytes())},
        {"keyed_roots": u64([1, 2, 3]).tobytes(), "has_images": False},
        {"end": {"partitions": 1, "blocks": 2}},
    ]
    for number, change in changes:
        content[number] = {**content[number], **change}
    return b"".join(compact_writer._encode_frame(each) for each in content)


def pack_numbers(*numbers):
    return zlib.compress(np.array(numbers, np.uint32).tobytes())


def test_the_frames_are_valid_without_replacements():
    (held,) = load(CompactReader(LIMITS), frames())
    assert held.blocks == 2


@pytest.mark.parametrize(
    "change",
    [
        (0, {"format": "other"}),
        (0, {"version": 2}),
        (0, {"salt_rule": 3}),
        (0, {"salt_rule": "2"}),
        (4, {"keyed_roots": bytes(23)}),
        (4, {"keyed_roots": bytes(16)}),
        (4, {"keyed_roots": "x"}),
        (4, {"has_images": None}),
        (1, {"partition": 5}),
        (1, {"partition": "x" * 5000}),
        (1, {"block_size": -1}),
        (1, {"nodes": 2**40}),
        (1, {"nodes": 3}),
        (1, {"nodes": 1}),
        (1, {"sets": 2**40}),
        (1, {"sets": 1}),
        (1, {"words": 2**40}),
        (1, {"ranks": [[64, 1, 0, None, 0]]}),
        (1, {"ranks": [[0, -1, 0, None, 0]]}),
        (1, {"ranks": [[0, 1, 0, "x", 0]]}),
        (1, {"ranks": None}),
        (1, {"ranks": [[0, 1, 0, None, 0]] * 70_000}),
        (1, {"records": 1}),
        (2, {"depth": pack_numbers(2, 1)}),
        (2, {"depth": pack_numbers(1, 0)}),
        (2, {"depth": pack_numbers(1)}),
        (2, {"depth": b"zz"}),
        (2, {"depth": zlib.compress(bytes(7))}),
        (2, {"holders": zlib.compress(bytes(7))}),
        (2, {"depth": zlib.compress(bytes(10**7))}),
        (2, {"holders": pack_numbers(1, 2)}),
        (2, {"local": b"123"}),
        (2, {"local": None}),
        (3, {"sets": zlib.compress(b"")}),
        (3, {"sets": zlib.compress(np.ones((2, 8, 1), np.uint64).tobytes())}),
        (5, {"end": {"partitions": 2}}),
        (5, {"end": None}),
    ],
    ids=str,
)
def test_a_false_member_of_a_compact_dump_is_refused(change):
    with pytest.raises(DumpError):
        load(CompactReader(LIMITS), frames(change))


@pytest.mark.parametrize("form", ["compact", "json"])
def test_several_partitions_may_be_full(form):
    one, two = ([("store", 0, Tier.GPU, 0, (first, 1, 2), 0)] for first in (0, 1))
    dumps = [held_of(an_index(steps)[0])._replace(name=f"m:{steps}") for steps in (one, two)]
    limits = LoadLimits(blocks=3, full_partitions=2)
    if form == "compact":
        loaded = load(CompactReader(limits), compact(*dumps))
    else:
        loaded, _ = from_json(as_json(*dumps), limits=limits)
    assert [part.blocks for part in loaded] == [3, 3]


def test_more_than_the_limits_is_refused():
    index, _ = an_index([("store", 0, Tier.GPU, 0, (1, 2, 0), 0)])
    many = [held_of(index)._replace(name=f"m:{i}") for i in range(3)]
    for limits in (
        LoadLimits(blocks=2),
        LoadLimits(blocks=4, full_partitions=2),
        LoadLimits(9, partitions=2),
        LoadLimits(9, ranks=8),
        LoadLimits(9, sets_bytes=many[0].snapshot.sets.nbytes, full_partitions=2),
    ):
        with pytest.raises(DumpError):
            load(CompactReader(limits), compact(*many))
    for limits in (
        LoadLimits(9, partitions=2),
        LoadLimits(9, ranks=2),
        LoadLimits(9, sets_bytes=many[0].snapshot.sets.nbytes, full_partitions=2),
    ):
        with pytest.raises(DumpError):
            from_json(as_json(*many), limits=limits)


def test_orphans_of_all_partitions_are_bounded():
    index = PrefixIndex(10)
    index.open_slot().store(Tier.GPU, 99, u64([1, 2]), u64([11, 12]))
    many = [DumpedPartition(f"m:{i}", 4, {(0, 0): 0}, index.snapshot()) for i in range(3)]
    limits = LoadLimits(9, orphans=2, full_partitions=3)
    assert len(load(CompactReader(limits), compact(*many))) == 3
    with pytest.raises(DumpError, match="orphans"):
        load(CompactReader(limits._replace(full_partitions=2)), compact(*many))


@pytest.mark.parametrize("form", ["compact", "json"])
def test_copies_cost_bounded_time(form):
    index = PrefixIndex(10)
    writer = index.open_slot()
    for _ in range(5):
        writer.store(Tier.GPU, None, u64([1, 2]), u64([11, 12]))
    many = [DumpedPartition(f"m:{i}", 4, {(0, 0): 0}, index.snapshot()) for i in range(2)]
    limits = LoadLimits(4, full_partitions=2)  # 16 copies in all
    read = {
        "compact": lambda limits: load(CompactReader(limits), compact(*many)),
        "json": lambda limits: from_json(as_json(*many), limits=limits)[0],
    }[form]
    assert len(read(limits)) == 2
    with pytest.raises(DumpError, match="copies"):
        read(limits._replace(blocks=3))


def test_impossible_stream_positions_are_not_read():
    absurd = {f"{worker_id}:0": 2**64 - 1 for worker_id in range(300_000)}
    document = {"m:t": {"block_size": 4, "watermarks": absurd, "events": [stored((11, 1))]}}
    ((held,), bad) = from_json(document)
    assert (bad, held.blocks, held.snapshot.positions) == (0, 1, {})


@pytest.mark.parametrize("digest", [0, 2**64 - 1, None])
def test_json_has_the_digest_of_the_last_batch(digest):
    index = PrefixIndex(100)
    writer = index.open_slot()
    writer.store(Tier.GPU, None, np.array([1], np.uint64), np.array([11], np.uint64))
    writer.position = StreamPosition(8, 2, digest)
    part = DumpedPartition("m:t", 4, {(1, 0): writer.slot}, index.snapshot())
    ((held,), _) = from_json({"m:t": json.loads(b"".join(document_chunks([part])))})
    assert list(held.snapshot.positions.values()) == [StreamPosition(8, 2, digest)]


@pytest.mark.parametrize("digest", [-1, 2**64])
def test_an_invalid_digest_is_ignored(digest):
    told = {"watermarks": {"1:0": 7}, "digests": {"1:0": digest}}
    document = {"m:t": {"block_size": 4, **told, "events": [stored((11, 1))]}}
    ((held,), _) = from_json(document)
    assert list(held.snapshot.positions.values()) == [StreamPosition(8)]


def stored(*blocks, parent=None, worker_id=1, **fields):
    rows = [{"block_hash": name, "tokens_hash": local} for name, local in blocks]
    event = {"data": {"stored": {"parent_hash": parent, "blocks": rows}}}
    return {"worker_id": worker_id, "event": event, **fields}


def match_rank(held, path, rank=(1, 0)):
    index = PrefixIndex(1000)
    attach(held, rank, index.open_slot())
    return index.match(u64(path))[0].tolist()


def test_children_before_parents_and_signed_hashes_find_their_place():
    events = [stored((12, 2), parent=-1), stored((-1, -(2**63)))]
    ((held,), bad) = from_json({"m:t": {"events": events, "block_size": 4}})
    assert bad == 0
    assert match_rank(held, [2**63, 2]) == [2, 2, 2, 2]


def test_removals_and_clears_are_executed():
    other = {"worker_id": 2, "event": {"data": "cleared", "dp_rank": 0}}
    events = [
        stored((11, 1), (12, 2)),
        {"worker_id": 1, "event": {"data": {"removed": {"block_hashes": [12]}}}},
        stored((11, 1), worker_id=2),
        other,
    ]
    ((held,), bad) = from_json({"m:t": {"block_size": 4, "events": events}})
    assert bad == 0
    assert match_rank(held, [1, 2]) == [1, 1, 1, 1]
    assert match_rank(held, [1], (2, 0)) == [0, 0, 0, 0]


def test_blocks_of_other_caches_belong_to_no_worker():
    owner = {"cache_owner": "a:b/c/d"}
    events = [
        stored((11, 1), residency_domain="worker"),
        stored((12, 2), parent=11),
        stored((21, 1), (22, 2), worker_id=2, residency_domain=owner),
        stored((21, 1), worker_id=2, residency_domain="cache_owner"),
    ]
    ((held,), bad) = from_json({"m:t": {"block_size": 4, "events": events}})
    assert (bad, set(held.ranks)) == (2, {(1, 0)})
    assert match_rank(held, [1, 2]) == [2, 2, 2, 2]


def test_bad_entries_are_skipped_and_counted():
    events = [
        stored((11, 1)),
        stored((12, 2), parent=11, storage_tier="Device"),
        stored((12, 2**64), parent=11),
        {"worker_id": 1},
        {"worker_id": "x", "event": {}},
        {"worker_id": 1, "event": {"data": {}}},
        {"worker_id": 1, "event": {"data": "other"}},
        5,
        stored((12, 2), parent=11, storage_tier="host_pinned", extra=[{"a": "]}"}]),
    ]
    document = {
        "no block size": {"events": []},
        "no:events": {"block_size": 4},
        "an:error": {"error": "dump failed"},
        "m:t": {"zzz": {"x": [1, "}"]}, "block_size": 4, "events": events},
    }
    for piece in (1, 3, 1000):
        partitions, bad = from_json(document, piece)
        assert [held.name for held in partitions] == ["m:t"]
        assert bad == 3 + 7
        assert match_rank(partitions[0], [1, 2]) == [1, 2, 2, 2]


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"5",
        b"nonsense",
        b'{"m:t":5}',
        b'{"m:t":[]}',
        b"{5:6}",
        b'{"m:t":{"block_size":4,"events":[}]}}',
        b'{"m:t":{"block_size":4,"events":[{]}]}}',
        b'{"m:t":{"block_size":4,"events":[1 2]}}',
        b'{"m:t":{"block_size":4,"events":[]}}x',
        b'{"m:t":{"block_size":4,"events":[]}',
        b"",
        b'{"' + b"x" * 10**6,
    ],
)
def test_text_that_is_no_dump_is_refused(text):
    with pytest.raises(DumpError):
        from_json(text)


def test_an_empty_document_is_an_empty_dump():
    assert from_json(b" { } ") == ([], 0)


def test_many_copies_in_events_of_one_block_take_no_longer_than_one():
    events = [
        {"worker_id": 1, "event": {"data": {"stored": {"blocks": [block]}}}}
        for block in ({"block_hash": i, "tokens_hash": i, "copies": 4096} for i in range(20_000))
    ]
    begin = time.process_time()
    ((held,), bad) = from_json(
        {"m:t": {"block_size": 4, "events": events}}, limits=LoadLimits(50_000_000)
    )
    assert time.process_time() - begin < CPU_S_MAX
    assert (bad, held.blocks) == (0, 20_000)
    assert set(held.snapshot.records["count"].tolist()) == {4096}
