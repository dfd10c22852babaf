"""Tests of the decoding of KV events: batch forms, hashes, bad events, salts and local hashes."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from xxhash import xxh3_64_intdigest

from indexer.events import event_decoder
from indexer.events.event_decoder import (
    EVENTS_PER_BATCH_MAX,
    PAYLOAD_BYTES_MAX,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    DecodeError,
    decode,
    local_hashes,
)
from indexer.events.event_types import hashable_blocks
from indexer.hashing.block_hashing import compute_block_hashes

encode = msgspec.msgpack.encode
GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "kv_event_payloads.json").read_text())
SHA = "0123456789abcdef" * 4
MM = 0x0123456789ABCDEF
TOKENS = [1, 2, 3, 4, 5, 6, 7, 8]
REMOVED = ["BlockRemoved", [1]]


def stored(*rest, hashes=(11, 12), parent=None, tokens=TOKENS, block_size=4):
    return ["BlockStored", list(hashes), parent, tokens, block_size, *rest]


def stored_map(**fields):
    event = {"type": "BlockStored", "block_hashes": [11, 12], "token_ids": TOKENS, "block_size": 4}
    return event | fields


def only(event):
    """Return the only event of a batch with a single event, read by both readers."""
    payload = encode([1.5, [event], 0])
    for batch in (decode(payload), event_decoder.parse_payload(payload)):
        assert (batch.bad_events, batch.last_error) == (0, None)
        (read,) = batch.events
    return read


def is_dropped(event):
    batch = decode(encode([1.5, [event, REMOVED], 0]))
    assert (batch.bad_events, len(batch.events)) == (0, 1)
    return True


def reason(event):
    """Return the error for an event that is dropped from between two good events."""
    batch = decode(encode([1.5, [REMOVED, event, REMOVED], 0]))
    assert batch.bad_events == 1
    assert len(batch.events) == 2
    assert batch.last_error.startswith("event 1: ")
    return batch.last_error.removeprefix("event 1: ")


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_payload_announces_the_blocks_that_the_reference_service_finds(case):
    payload = bytes.fromhex(case["payload"])
    if case["blocks"] is None:
        with pytest.raises(DecodeError):
            decode(payload)
        return
    prompt = np.arange(8, dtype=np.uint32) + case["first_token"]
    wanted = compute_block_hashes(prompt, 4, lora_name=case.get("lora_name")).tolist()
    events = [event for event in decode(payload).events if isinstance(event, BlockStored)]
    if case["name"] == "lora_id int":  # here the reference takes an adapter for the base model
        wanted = compute_block_hashes(prompt, 4, lora_name="lora_id:7").tolist()
    announced = local_hashes(events[0], 4).tolist() if events else []
    while announced != wanted[: len(announced)]:
        announced.pop()
    assert len(announced) == case["blocks"]


@pytest.mark.parametrize(
    ("body", "rank"),
    [
        ([1.5, [REMOVED]], None),
        ([1.5, [REMOVED], None], None),
        ([1, [REMOVED], 3], 3),
        (["any", [REMOVED], -1], -1),
        ([1.5, [REMOVED], 3, "more", {}], 3),
        ({"ts": 1.5, "events": [REMOVED]}, None),
        ({"events": [REMOVED], "dp_rank": 4, "new": [1]}, 4),
        ({"events": [REMOVED], "data_parallel_rank": None, "attn_dp_rank": 5}, 5),
        ({"events": [REMOVED], "attn_dp_rank": 5, "data_parallel_rank": 6}, 6),
    ],
)
def test_batch_forms(body, rank):
    batch = decode(encode(body))
    assert batch.data_parallel_rank == rank
    assert [type(event) for event in batch.events] == [BlockRemoved]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"[1.0, [], 0]",
        encode([]),
        encode([1.5]),
        encode([1.5, {}]),
        encode([1.5, 7, 0]),
        encode([1.5, [], "rank"]),
        encode([1.5, [], True]),
        encode({"ts": 1.5}),
        encode({"events": 3}),
        encode({1: 2}),
        encode("text"),
        b"\x81\xa1\xff\x01",
        b"\x92\x01\xdd\xff\xff\xff\xff\x01",
        b"\xdf\xff\xff\xff\xff\xa1a\x01",
        b"\x91" * 100_000 + b"\x01",
        bytes(PAYLOAD_BYTES_MAX + 1),
    ],
    ids=range(18),
)
def test_payload_that_is_no_batch_is_refused_as_a_whole(payload):
    with pytest.raises(DecodeError):
        decode(payload)


def test_bytes_after_the_batch_are_ignored():
    for body in ([1.5, [REMOVED], 0], {"events": [REMOVED]}):
        assert len(decode(encode(body) + b"\xc1garbage").events) == 1


def test_too_many_events_are_refused():
    empty = b"\xa7Ignored"
    head = b"\x92\x01\xdd"
    assert decode(head + (5).to_bytes(4, "big") + empty * 5).events == []
    many = EVENTS_PER_BATCH_MAX + 1
    with pytest.raises(DecodeError, match="events"):
        decode(head + many.to_bytes(4, "big") + empty * many)


@pytest.mark.parametrize("as_map", [False, True])
def test_stored_event_in_full(as_map):
    event = stored(7, "CPU", "ad", [None, None], 3, "mla_attention", 128, parent=2**64 - 1)
    if as_map:
        event = stored_map(
            parent_block_hash=2**64 - 1,
            lora_id=7,
            medium="CPU",
            lora_name="ad",
            extra_keys=[None, None],
            group_idx=3,
            kv_cache_spec_kind="mla_attention",
            kv_cache_spec_sliding_window=128,
            locality="LOCAL",
            ownership="x",
            session_id="y",
            lookahead_token_ids=[],
        )
    read = only(event)
    assert (read.block_hashes.tolist(), read.block_hashes.dtype) == ([11, 12], np.uint64)
    assert (read.tokens.tolist(), read.tokens.dtype) == (TOKENS, np.uint32)
    assert (read.parent, read.block_size) == (2**64 - 1, 4)
    assert (read.medium, read.lora_name, read.cache_salt) == ("CPU", "ad", None)
    assert (read.mm_hashes, read.group_idx, read.kind) == (None, 3, "mla_attention")
    assert (read.sliding_window, read.lookahead) == (128, None)
    assert read.is_bigram is False


def test_stored_event_with_the_mandatory_fields_only():
    for event in (stored(), stored_map(), stored_map(unknown={"a": [1]})):
        read = only(event)
        assert (read.parent, read.medium, read.lora_name, read.kind) == (None,) * 4


def test_empty_lora_name_is_none():
    assert only(stored(None, "GPU", "")).lora_name is None


@pytest.mark.parametrize(
    ("value", "hash_"),
    [
        (0, 0),
        (-1, 2**64 - 1),
        (-(2**63), 2**63),
        (-129, 2**64 - 129),
        (-40_000, 2**64 - 40_000),
        (-(2**31), 2**64 - 2**31),
        (2**64 - 1, 2**64 - 1),
        (b"\x01" * 24 + b"\x00" * 7 + b"\x05", 5),
        (b"\xff" * 8, 2**64 - 1),
        (b"\x02\x01", 0x0201),
        (bytes(300), 0),
    ],
)
def test_engine_hash_is_the_low_64_bits(value, hash_):
    assert only(stored(hashes=[value], tokens=[1, 2, 3, 4])).block_hashes.tolist() == [hash_]
    assert only(stored(hashes=[77], parent=value)).parent == hash_
    assert only(["BlockRemoved", [value, value]]).block_hashes.tolist() == [hash_] * 2


def test_eagle_pairs_are_flattened():
    read = only(stored(tokens=[[1, 2], [2, 3], [3, 400_000]]))
    assert read.tokens.tolist() == [1, 2, 3, 400_000]
    assert read.is_bigram is True


def test_event_that_only_names_blocks():
    read = only(stored_map(token_ids=[], block_size=0, medium="STORAGE"))
    assert (len(read.tokens), read.block_size, read.medium) == (0, 0, "STORAGE")
    assert len(local_hashes(read, 4)) == 0


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (stored(hashes=["11"]), "block_hashes holds '11'"),
        (stored(hashes=[1.0]), "block_hashes holds 1.0"),
        (stored(hashes=[True]), "block_hashes holds True"),
        (stored(hashes=[b""]), "block_hashes holds b''"),
        (stored(parent="x"), "parent_block_hash holds 'x'"),
        (stored_map(block_hashes=None), "block_hashes is None"),
        (stored(hashes=[5, 5]), "contain a repeated hash"),
        (stored(hashes=[5, -1, 2**64 - 1]), "contain a repeated hash"),
        (stored(hashes=[0, 1, 0]), "contain a repeated hash"),
        (stored(hashes=[5, 6], parent=6), "contain a repeated hash"),
        (stored(hashes=[5], parent=5), "contain a repeated hash"),
        (stored(tokens=[-1]), "outside 0..2^32-1"),
        (stored(tokens=[2**32]), "outside 0..2^32-1"),
        (stored(tokens=[1, "2"]), "holds a non-integer"),
        (stored(tokens=[True]), "holds a non-integer"),
        (stored(tokens=[1, [2, 3]]), "holds a non-integer"),
        (stored(tokens=[[1, 2], 3]), "mixes pairs"),
        (stored(tokens=[[1, 2, 3]]), "mixes pairs"),
        (stored(tokens=None), "token_ids is None"),
        (stored(block_size=-4), "block_size is -4"),
        (stored(block_size=2**32), "block_size is 4294967296"),
        (stored(block_size=None), "block_size is None"),
        (["BlockStored", [1], None, [1]], "block_size is missing"),
        (["BlockStored"], "block_hashes is missing"),
        ({"type": "BlockStored", "block_hashes": [1], "block_size": 4}, "token_ids is None"),
        ({"block_hashes": [1], "token_ids": [1], "block_size": 4}, "unknown tag None"),
        (stored(None, 7), "medium is 7"),
        (stored(None, msgspec.msgpack.Ext(5, b"ab")), "medium is Ext(5, b'ab')"),
        (stored(None, [msgspec.msgpack.Ext(5, b"")]), "medium is [Ext],"),
        (stored(None, msgspec.msgpack.Ext(5, b"ab" * 40)), "medium is Ext Ext(5, b'abab"),
        (stored(None, "GPU", 7), "lora_name is 7"),
        (stored(None, "GPU", None, 7), "extra_keys is 7"),
        (stored(None, "GPU", None, [7]), "extra_keys holds 7"),
        (stored_map(group_idx="0"), "group_idx is '0'"),
        (stored_map(kv_cache_spec_kind=1), "kv_cache_spec_kind is 1"),
        (stored_map(cache_salt=1), "cache_salt is 1"),
        (stored_map(block_mm_infos=1), "block_mm_infos is 1"),
        (stored_map(block_mm_infos=[1]), "block_mm_infos holds"),
        (stored_map(block_mm_infos=[{"mm_objects": [{}]}]), "mm_hash is None"),
        (["BlockFoo", 1], "unknown tag 'BlockFoo'"),
        ("BlockStored", "block_hashes is missing"),
        ([], "unknown tag []"),
        (None, "unknown tag None"),
        ("x" * 100_000, "unknown tag str"),
    ],
)
def test_bad_event_is_counted_and_the_rest_is_kept(event, text):
    assert text in reason(event)
    assert len(reason(event)) < 200


def test_text_that_is_not_utf_8_spoils_its_event_only():
    good, bad = (
        encode(REMOVED),
        encode(["BlockRemoved", [1], "GPU"]).replace(b"GPU", b"\xff\xff\xff"),
    )
    batch = decode(b"\x92\x01\x92" + bad + good)
    assert (batch.bad_events, len(batch.events)) == (1, 1)
    assert batch.last_error.startswith("event 0: unreadable")


@pytest.mark.parametrize(
    ("tail", "group_idx", "kind"),
    [
        ([None], None, None),
        ([2], 2, None),
        ([2, "mamba", 128], 2, "mamba"),
        ([2, 128, "full_attention"], 2, "full_attention"),
        ([None, "full_attention", None], None, "full_attention"),
        ([None, None, None, "LOCAL"], None, None),
        ([2, "full_attention", None, "LOCAL", "source"], 2, "full_attention"),
        (["LOCAL", 2], 2, None),
        ([[None], 2, "full_attention", None, "local"], 2, "full_attention"),
        ([2, True, 1.5, {"a": 1}, b"x"], 2, None),
        ([2, "full_attention", 128, "LOCAL", "source", "owner", "session"], 2, "full_attention"),
    ],
)
def test_tail_of_an_array_is_read_by_type(tail, group_idx, kind):
    read = only(stored(None, "GPU", None, None, *tail))
    assert (read.group_idx, read.kind) == (group_idx, kind)
    removed = only(["BlockRemoved", [1], "GPU", *tail])
    assert (removed.group_idx, removed.kind) == (group_idx, kind)


@pytest.mark.parametrize("locality", ["REMOTE", "remote", "ELSEWHERE"])
def test_event_of_another_place_is_dropped(locality):
    assert is_dropped(stored(None, "GPU", None, None, 0, "full_attention", None, locality))
    assert is_dropped(stored_map(locality=locality))
    assert is_dropped({"type": "BlockRemoved", "block_hashes": [1], "locality": locality})
    assert is_dropped({"type": "AllBlocksCleared", "locality": locality})
    assert is_dropped(stored_map(locality=7))


def test_ignored_event_has_no_effect():
    assert is_dropped(["Ignored"])
    assert is_dropped(["Ignored", 1])
    assert is_dropped("Ignored")
    assert is_dropped({"type": "Ignored"})


@pytest.mark.parametrize(
    "event",
    [
        ["AllBlocksCleared"],
        ["AllBlocksCleared", 1],
        "AllBlocksCleared",
        {"type": "AllBlocksCleared"},
    ],
)
def test_cleared(event):
    assert isinstance(only(event), AllBlocksCleared)


@pytest.mark.parametrize(
    "event", [["BlockRemoved", []], {"type": "BlockRemoved", "block_hashes": []}]
)
def test_removed_without_medium(event):
    read = only(event)
    assert (len(read.block_hashes), read.medium) == (0, None)


@pytest.mark.parametrize(
    ("lora_name", "keys", "salt"),
    [
        (None, ["s"], "s"),
        ("ad", ["ad", "s"], "s"),
        ("ad", ["ad"], None),
        ("ad", ["ad", "ad"], "ad"),
        (None, [["image", 0], "dynamo-cache-salt:ns"], "ns"),
        (None, [""], None),
        (None, [b"x", 7, None], None),
    ],
)
def test_salt_is_one_of_the_extra_keys_of_the_first_block(lora_name, keys, salt):
    assert only(stored(None, "GPU", lora_name, [keys, None])).cache_salt == salt
    if "dynamo-cache-salt:ns" not in keys:
        assert only(stored(None, "GPU", lora_name, [keys], parent=1)).cache_salt is None
        assert only(stored(None, "GPU", lora_name, [None, keys])).cache_salt is None


@pytest.mark.parametrize(
    "event",
    [
        stored_map(cache_salt="s"),
        stored_map(cache_salt="dynamo-cache-salt:s", extra_keys=[["t"]]),
        stored(None, "GPU", {"cache_salt": "s"}),
    ],
)
def test_salt_as_a_field(event):
    assert only(event).cache_salt == "s"


def test_metadata_map_may_name_the_lora_too():
    assert only(stored(None, "GPU", {"lora_name": "ad"})).lora_name == "ad"


@pytest.mark.parametrize(
    ("keys", "mm_hashes"),
    [
        ([[SHA]], [[MM], []]),
        ([None, [[SHA.upper(), 4], "x"]], [[], [xxh3_64_intdigest(b"x"), MM]]),
        ([[["uuid-1", 4]]], [[xxh3_64_intdigest(b"uuid-1")], []]),
        ([["uuid-1"], None], [[xxh3_64_intdigest(b"uuid-1")], []]),
        ([[None], []], None),
    ],
)
def test_multimodal_hashes_among_the_extra_keys(keys, mm_hashes):
    assert only(stored(None, "GPU", None, keys, parent=1)).mm_hashes == mm_hashes


def test_explicit_multimodal_hashes_win():
    infos = [None, {"mm_objects": [{"mm_hash": -1, "offsets": [[0, 1]]}, {"mm_hash": 5}]}]
    expected = [[], [2**64 - 1, 5]]
    assert only(stored(None, "GPU", None, [None, [SHA]], infos)).mm_hashes == expected
    assert only(stored_map(block_mm_infos=infos, extra_keys=[None, [SHA]])).mm_hashes == expected
    assert only(stored_map(block_mm_infos=[])).mm_hashes is None


@pytest.mark.parametrize("salt", ["s", SHA, "dynamo-cache-salt:" + SHA, "dynamo-cache-salt:ns"])
@pytest.mark.parametrize("lora_name", [None, "ad"])
def test_salted_event_matches_the_query_with_the_same_salt_and_no_other(salt, lora_name):
    keys = [[lora_name, salt] if lora_name else [salt], [lora_name] if lora_name else None]
    announced = local_hashes(only(stored(None, "GPU", lora_name, keys)), 4)
    assert len(announced) == 2
    tokens = np.array(TOKENS, np.uint32)
    same = compute_block_hashes(tokens, 4, lora_name=lora_name, cache_salt=salt)
    assert (announced == same).all()
    for other in (None, "t", SHA[::-1]):
        others = compute_block_hashes(tokens, 4, lora_name=lora_name, cache_salt=other)
        assert (announced != others).all()


@pytest.mark.parametrize(
    ("n_hashes", "n_tokens", "event_block_size", "n_blocks"),
    [
        (2, 8, 4, 2),
        (2, 6, 4, 1),
        (2, 3, 4, 0),
        (2, 11, 4, 2),
        (1, 8, 8, 0),
        (4, 8, 2, 0),
        (0, 0, 4, 0),
        (2, 0, 4, 0),
    ],
)
def test_local_hashes_of_the_leading_full_blocks(n_hashes, n_tokens, event_block_size, n_blocks):
    tokens = list(range(n_tokens))
    event = only(stored(hashes=range(n_hashes), tokens=tokens, block_size=event_block_size))
    expected = compute_block_hashes(np.array(tokens, np.uint32), 4)[:n_blocks]
    assert local_hashes(event, 4).tolist() == expected.tolist()


@pytest.mark.parametrize("is_eagle", [False, True])
@pytest.mark.parametrize("n_tokens", [0, 3, 4, 5, 19, 20, 21, 22, 40])
@pytest.mark.parametrize("salt", [None, "salt", "0123456789abcdef" * 4])
def test_hashes_of_parts_are_those_of_the_whole(n_tokens, salt, is_eagle):
    event = BlockStored(
        np.arange(5, dtype=np.uint64),
        None,
        np.arange(n_tokens, dtype=np.uint32),
        4,
        lora_name="adapter",
        cache_salt=salt,
        mm_hashes=[[7], [], [8, 9], [5]],
    )
    whole = local_hashes(event, 4, is_eagle).tolist()
    assert hashable_blocks(event, 4, is_eagle) == len(whole)
    for at_most in (1, 2, 5, 6):
        parts = [
            local_hashes(event, 4, is_eagle, first=first, at_most=at_most).tolist()
            for first in range(0, 7, at_most)
        ]
        assert [value for part in parts for value in part] == whole


def test_local_hashes_of_pairs_look_one_token_ahead():
    tokens = np.arange(9, dtype=np.uint32)
    pairs = [[i, i + 1] for i in range(8)]
    expected = compute_block_hashes(tokens, 4, lookahead=1).tolist()
    assert len(expected) == 2
    event = only(stored(tokens=pairs))
    assert local_hashes(event, 4).tolist() == local_hashes(event, 4, True).tolist() == expected
    assert local_hashes(only(stored(tokens=pairs[:5])), 4).tolist() == expected[:1]


def test_flattened_pairs_of_an_eagle_rank_are_recognised_by_their_last_token():
    tokens = list(range(9))
    event = only(stored(tokens=tokens))
    eagle = compute_block_hashes(np.array(tokens, np.uint32), 4, lookahead=1)
    assert local_hashes(event, 4, True).tolist() == eagle.tolist()
    assert (
        local_hashes(event, 4).tolist()
        == compute_block_hashes(np.arange(8, dtype=np.uint32), 4).tolist()
    )
