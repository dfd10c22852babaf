"""Tests of the compiled reader against the general reader: both return the same unless declined."""

import json
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numba import njit

from indexer.events import (
    batch_scratch,
    duplicate_kernels,
    event_decoder,
    payload_kernels,
    payload_layout,
)
from indexer.events.duplicate_kernels import NAMES_AT_ONCE
from indexer.events.event_decoder import decode, decode_in_steps, parse_payload, scan_payload
from indexer.events.event_types import BlockRemoved, BlockStored, DecodeError
from indexer.events.msgpack_kernels import (
    NESTING_MAX,
    RESERVED_BYTE,
    TOO_DEEP,
    TRUNCATED,
    UNUSUAL,
    object_end,
    read_int,
)
from indexer.events.payload_kernels import scan_batch
from indexer.events.payload_layout import JOB_LENGTH, N_COLUMNS, WORDS
from indexer.page_memory import LARGE_PAGES_MIN, has_own_pages, scratch_array
from tests.builders.hypothesis_profiles import explores

encode = msgspec.msgpack.encode
GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "kv_event_payloads.json").read_text())
PAYLOADS = [bytes.fromhex(case["payload"]) for case in GOLDEN["cases"]]
SHA = "0123456789abcdef" * 4


def contents(batch):
    """Return all contents of a batch in a comparable form."""
    return (
        batch.data_parallel_rank,
        batch.bad_events,
        batch.last_error,
        batch.unknown_fields,
        [event_contents(event) for event in batch.events],
    )


def event_contents(event):
    if isinstance(event, BlockStored):
        assert (event.block_hashes.dtype, event.tokens.dtype) == (np.uint64, np.uint32)
        fields = (getattr(event, name) for name in BlockStored.__struct_fields__)
        return [field.tolist() if isinstance(field, np.ndarray) else field for field in fields]
    if isinstance(event, BlockRemoved):
        return [event.block_hashes.tolist(), event.medium, event.group_idx, event.kind]
    return ["cleared"]


def assert_read_alike(payload):
    """Return whether the compiled reader read the payload."""
    batch = scan_payload(payload)
    if batch is None:
        return False
    assert contents(batch) == contents(parse_payload(payload))
    for at_once in (1, 3):
        assert contents(read_in_parts(payload, at_once)) == contents(batch)
    return True


def finish_steps(reading):
    """Return the final result of the steps, and the number of steps."""
    steps = 1
    while True:
        try:
            next(reading)
        except StopIteration as end:
            return end.value, steps
        steps += 1


def read_in_parts(payload, at_once):
    """Return the batch read in parts; None means that the compiled reader declined."""
    scanned, _ = finish_steps(event_decoder._scan_in_steps(payload, at_once))
    return scanned and event_decoder.Batch(scanned.rank, scanned.events(payload, scanned.rows))


def a_stored(n_blocks=2, **fields):
    return {
        "type": "BlockStored",
        "block_hashes": list(range(100, 100 + n_blocks)),
        "token_ids": list(range(4 * n_blocks)),
        "block_size": 4,
    } | fields


def mostly(common, odd):
    # Hypothesis often draws the ends of a range, so the odd value is in the middle.
    return st.integers(0, 60).flatmap(lambda k: odd if k == 23 else common)


ENGINE_HASH = mostly(
    st.integers(-(2**63), 2**64 - 1) | st.binary(min_size=8, max_size=40),
    st.integers(0, 3) | st.binary(min_size=1, max_size=7),
)
HASH_LISTS = mostly(
    st.lists(ENGINE_HASH, max_size=8, unique=True),
    st.lists(ENGINE_HASH, min_size=1, max_size=4).map(lambda hashes: hashes * 2)
    | st.sampled_from([None, ["x"]]),
)
TEXTS = mostly(
    st.sampled_from([None, "GPU", "CPU", "", "mamba", "x" * 40]),
    st.sampled_from(["LOCAL", "REMOTE", "é", "y" * 300, 1.5]),
)
NUMBERS = mostly(
    st.sampled_from([0, 1, 4, 127, 128, 65_535, 2**32 - 1]),
    st.sampled_from([-1, 2**32, 2**63, "4"]),
)
OPTIONAL_NUMBERS = st.none() | NUMBERS
TOKENS = mostly(
    st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 300), max_size=30)
    | st.lists(st.lists(st.integers(0, 2**17), min_size=2, max_size=2), max_size=9),
    st.sampled_from([None, [-1], [2**32], [[1, 2], 3], [1, [2, 3]], [[1, 2, 3]], [True]]),
)
FIELDS = {
    "block_hashes": HASH_LISTS,
    "parent_block_hash": st.none() | ENGINE_HASH,
    "token_ids": TOKENS,
    "block_size": NUMBERS,
    "lora_id": mostly(OPTIONAL_NUMBERS, st.booleans() | TEXTS),
    "medium": TEXTS,
    "lora_name": TEXTS,
    "extra_keys": mostly(st.none() | st.lists(st.none(), max_size=3), st.just([["salt"]])),
    "group_idx": OPTIONAL_NUMBERS,
    "kv_cache_spec_kind": TEXTS,
    "kv_cache_spec_sliding_window": OPTIONAL_NUMBERS,
    "locality": mostly(st.none() | st.just("LOCAL"), TEXTS),
    "ownership": TEXTS,
    "session_id": TEXTS,
    "lookahead_token_ids": mostly(
        st.none() | st.just([]), st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=3)
    ),
    "unknown": NUMBERS,
}
KNOWN_FIELDS = {name: values for name, values in FIELDS.items() if name != "unknown"}
MANDATORY = {name: FIELDS[name] for name in ("block_hashes", "token_ids", "block_size")}
MAPS = mostly(
    st.fixed_dictionaries(
        MANDATORY, optional={k: v for k, v in KNOWN_FIELDS.items() if k not in MANDATORY}
    ),
    st.fixed_dictionaries({}, optional=FIELDS),
)
TAGS = mostly(
    st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "Ignored"]),
    st.sampled_from(["type", "LOCAL", "BlockFoo", None, 7]),
)
MAP_EVENTS = st.tuples(TAGS, MAPS, st.booleans()).map(
    lambda drawn: drawn[1] | {"type": drawn[0]} if drawn[2] else {"type": drawn[0]} | drawn[1]
)
TAILS = st.lists(OPTIONAL_NUMBERS, max_size=2) | st.lists(OPTIONAL_NUMBERS | TEXTS, max_size=5)
STORED_ARRAYS = st.builds(
    lambda fields, length, tail: ["BlockStored", *fields[:length], *(tail if length == 8 else [])],
    st.tuples(*list(FIELDS.values())[:8]),
    mostly(st.integers(4, 8), st.integers(0, 3)),
    TAILS,
)
REMOVED_ARRAYS = st.builds(
    lambda hashes, rest: ["BlockRemoved", hashes, *rest],
    HASH_LISTS,
    st.just([]) | st.tuples(TEXTS) | st.builds(lambda text, tail: [text, *tail], TEXTS, TAILS),
)
EVENTS = mostly(STORED_ARRAYS | REMOVED_ARRAYS | MAP_EVENTS | TAGS.map(lambda tag: [tag]), TAGS)
BATCHES = st.tuples(
    mostly(st.floats() | st.integers(-(2**63), 2**64 - 1), st.none()),
    st.lists(EVENTS, max_size=4),
    OPTIONAL_NUMBERS,
    NUMBERS,
)


@explores(200)
@given(BATCHES, mostly(st.integers(2, 3), st.just(4)))
@example((1.5, [{"block_hashes": [1], "token_ids": [1], "block_size": 1}], None, 0), 3)
def test_any_batch_is_read_alike(batch, length):
    assert_read_alike(encode(batch[:length]))


@explores(200)
@given(st.sampled_from(PAYLOADS), st.randoms(use_true_random=False))
def test_damaged_payloads_are_read_alike(payload, random):
    for _ in range(30):
        damaged = damage(payload, random)
        assert_read_alike_or_refused(damaged)


def damage(payload, random: Random):
    """Change, cut or insert some bytes, or splice in a part of another payload."""
    data = bytearray(payload)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(data) + 1)
        kind = random.randrange(4)
        if kind == 0:
            data[at : at + 1] = bytes([random.randrange(256)])
        elif kind == 1:
            del data[at : at + random.randint(1, 4)]
        elif kind == 2:
            data[at:at] = bytes(
                random.choices(b"\xc0\x91\x92\xdd\xff\xcf\xa1\xc4\x01\xd3\xde", k=2)
            )
        else:
            other = random.choice(PAYLOADS)
            start = random.randrange(len(other) + 1)
            data[at : at + random.randrange(20)] = other[start : start + random.randrange(30)]
    return bytes(data)


def assert_read_alike_or_refused(payload):
    batch = scan_payload(payload)
    try:
        patient = parse_payload(payload)
    except DecodeError:
        assert batch is None
        return
    if batch is not None:
        assert contents(batch) == contents(patient)


@pytest.mark.parametrize("payload", PAYLOADS[::9], ids=range(len(PAYLOADS[::9])))
def test_cut_payload_is_refused_at_every_length(payload):
    end = object_end(np.frombuffer(payload, np.uint8), 0)
    for length in range(max(end, 0)):
        assert scan_payload(payload[:length]) is None
        with pytest.raises(DecodeError):
            decode(payload[:length])


@explores(300)
@given(st.binary(max_size=120))
def test_random_bytes_are_read_alike_or_refused(payload):
    for prefix in (
        b"",
        b"\x93\x01",
        b"\x92\x01\x91\x9a\xabBlockStored",
        b"\x92\x01\x91\x85\xa4type",
    ):
        assert_read_alike_or_refused(prefix + payload)


@pytest.mark.parametrize(
    "event",
    [
        ["BlockStored", [1, 2], None, list(range(8)), 4],
        ["BlockStored", [1, 2], 3, list(range(8)), 4, None],
        ["BlockStored", [-1, 2**64 - 2], 3, [70_000] * 8, 4, 0, "GPU"],
        ["BlockStored", [1], None, [1, 2, 3, 4], 4, 7, "GPU", "ad"],
        ["BlockStored", [b"\x01" * 32], b"\x02" * 32, [1, 2, 3, 4], 4, None, "GPU", "ad", [None]],
        ["BlockStored", [1], None, [1], 1, None, None, None, None, 0, "full_attention", None],
        ["BlockStored", [1], None, [1], 1, None, None, None, None, 0, "sliding_window", 128],
        ["BlockStored", [-1], None, [[1, 2], [2, 3]], 2, None, "CPU_PINNED"],
        ["BlockStored", list(range(2000)), None, [5] * 8000, 4],
        a_stored(lora_id=None, medium="GPU", lora_name=None),
        a_stored(group_idx=0, kv_cache_spec_kind="full_attention", locality="LOCAL"),
        a_stored(ownership="o", session_id="s", lookahead_token_ids=[], extra_keys=[None] * 2),
        a_stored(lora_id=7, lora_name="ad", kv_cache_spec_sliding_window=128),
        a_stored(0, block_size=0, medium="STORAGE", parent_block_hash=None),
        ["BlockRemoved", [1, 2]],
        ["BlockRemoved", [1, 2], "GPU", 0],
        {"type": "BlockRemoved", "block_hashes": [1], "medium": "CPU", "locality": "LOCAL"},
        ["AllBlocksCleared"],
        {"type": "AllBlocksCleared"},
        ["Ignored"],
    ],
    ids=range(20),
)
def test_common_event_is_read_by_the_compiled_reader(event):
    for batch in ([1.5, [event]], [3, [event, event], None], [1.5, [event], 7]):
        assert assert_read_alike(encode(batch) + b"trailing")


@pytest.mark.parametrize(
    "event",
    [
        a_stored(cache_salt="s"),
        a_stored(lora_id=7),
        a_stored(lookahead_token_ids=[[1], [2]]),
        a_stored(new_field=None),
        ["BlockStored", [1], None, [1], 1, None, "GPU", None, None, 0, None, 128, 5],
        a_stored(extra_keys=[["s"]]),
        a_stored(block_mm_infos=[None]),
        a_stored(locality="REMOTE"),
        a_stored(medium="é"),
        a_stored(block_hashes=[5, 5]),
        a_stored(block_hashes=[0, 0]),
        a_stored(parent_block_hash=100),
        a_stored(block_hashes=["1"]),
        a_stored(token_ids=[2**32]),
        {"type": "BlockStored", "block_hashes": [1], "token_ids": [1]},
        {"block_hashes": [1], "token_ids": [1], "block_size": 1},
        ["BlockStored", [1], None, [1], 1, None, None, None, None, None, None, None, "REMOTE"],
        ["BlockStored", [1], None, [1], 1, None, "GPU", {"cache_salt": "s"}],
        ["BlockStored", [1], None, [1]],
        "AllBlocksCleared",
    ],
    ids=range(20),
)
def test_unusual_or_bad_event_is_left_to_the_patient_reader(event):
    payload = encode([1.5, [["BlockRemoved", [1]], event], 0])
    assert scan_payload(payload) is None
    batch = decode(payload)
    assert event_contents(batch.events[0]) == [[1], None, None, None]


def test_a_field_named_twice_is_left_to_the_patient_reader():
    event = encode({"type": "BlockRemoved", "block_hashes": [1]})
    twice = b"\x83" + event[1:] + encode("block_hashes") + encode([2])
    payload = b"\x92\x01\x91" + twice
    assert scan_payload(payload) is None
    assert decode(payload).events[0].block_hashes.tolist() == [2]


def test_hashes_chosen_to_collide_cost_no_quadratic_time():
    inverse = pow(0x9E3779B97F4A7C15, -1, 2**64)
    hashes = [inverse * k % 2**64 for k in range(1, 1000)]  # all begin at the first place
    payload = encode([1.5, [["BlockStored", hashes, None, [], 0]]])
    assert scan_payload(payload) is None
    assert decode(payload).events[0].block_hashes.tolist() == hashes


def test_more_events_than_rows_are_unusual():
    payload = np.frombuffer(encode([1.5, [["BlockRemoved", [1]]] * 3]), np.uint8)
    hashes, tokens = np.empty(len(payload), np.uint64), np.empty(len(payload), np.uint32)
    for n_rows, used in ((3, 3), (2, UNUSUAL)):
        rows, job = np.empty((n_rows, N_COLUMNS), np.int64), np.zeros(JOB_LENGTH, np.int64)
        job[payload_layout.BUDGET] = payload_layout.NO_BUDGET
        assert scan_batch(payload, job, rows, hashes, tokens)[0] == used


def test_payloads_declined_at_once_are_declined_in_parts():
    for payload in PAYLOADS:
        for end in range(len(payload)):
            if scan_payload(payload[:end]) is None:
                assert read_in_parts(payload[:end], 2) is None


@pytest.mark.parametrize("tokens", [list(range(70_000, 71_000)), [[n, n + 1] for n in range(1000)]])
@pytest.mark.parametrize("as_map", [False, True])
def test_a_large_event_is_read_a_bounded_number_of_elements_at_once(tokens, as_map, monkeypatch):
    monkeypatch.setattr(event_decoder, "SCANNED_AT_ONCE", 100)
    names = [2**63 + n for n in range(500)]
    event = ["BlockStored", names, None, tokens, 2]
    if as_map:
        fields = ("type", "block_hashes", "parent_block_hash", "token_ids", "block_size")
        event = dict(zip(fields, event, strict=True))
    payload = encode([1.5, [["BlockRemoved", [1]], event, ["BlockRemoved", names]]])
    calls, real = [], payload_kernels.scan_batch

    def scan_counted(payload, job, *arrays):
        calls.append(1)
        before = job[[payload_layout.HASHES, payload_layout.TOKENS]].sum()
        result = real(payload, job, *arrays)
        assert job[[payload_layout.HASHES, payload_layout.TOKENS]].sum() - before <= 100
        return result

    monkeypatch.setattr(payload_kernels, "scan_batch", scan_counted)
    batch, steps = finish_steps(decode_in_steps(payload))
    assert contents(batch) == contents(parse_payload(payload))
    assert 20 <= len(calls) <= 23
    assert steps > len(calls)


@pytest.mark.parametrize("n_names", [NAMES_AT_ONCE, NAMES_AT_ONCE + 1, 3 * NAMES_AT_ONCE])
@pytest.mark.parametrize("twice", [None, 5, -1])
def test_names_of_a_large_event_are_compared_a_bounded_number_at_once(n_names, twice, monkeypatch):
    names = list(range(2**40, 2**40 + n_names))
    if twice is not None:
        names[n_names // 2] = names[twice]
    payload = encode([1.5, [["BlockStored", names, None, [7] * n_names, 1]]])
    compared = []

    def may_repeat(names):
        compared.append(len(names))
        return duplicate_kernels.may_have_duplicates(names)

    def spread(names, *parts):
        assert len(names) <= NAMES_AT_ONCE
        return duplicate_kernels.spread_names(names, *parts)

    monkeypatch.setattr(event_decoder, "may_have_duplicates", may_repeat)
    monkeypatch.setattr(event_decoder, "spread_names", spread)
    batch, steps = finish_steps(decode_in_steps(payload))
    if twice is not None:
        assert (batch.events, batch.bad_events) == ([], 1)
    elif n_names <= NAMES_AT_ONCE:
        assert not compared
    else:
        assert batch.events[0].block_hashes.tolist() == names
        assert sum(compared) == n_names
        assert max(compared) <= NAMES_AT_ONCE
        assert steps > len(compared)


def test_many_names_chosen_for_one_part_are_left_to_the_patient_reader():
    inverse = pow(0x9E3779B97F4A7C15, -1, 2**64)
    spreads = [inverse * (k << 32) % 2**64 for k in range(1, 2 * NAMES_AT_ONCE + 2)]
    names = [spread ^ spread >> 32 for spread in spreads]  # x ^ x >> 32 is its own inverse
    payload = encode([1.5, [["BlockStored", names, None, [], 0]]])
    assert scan_payload(payload) is None
    assert decode(payload).events[0].block_hashes.tolist() == names


def test_all_names_of_usual_messages_are_compared_at_once():
    assert batch_scratch.BYTES_MAX <= NAMES_AT_ONCE


def test_the_memory_of_a_large_payload_is_on_small_pages():
    assert has_own_pages(scratch_array(LARGE_PAGES_MIN, np.uint8))
    assert not has_own_pages(scratch_array(LARGE_PAGES_MIN - 1, np.uint8))


def test_words_are_distinct_and_fit_the_mask_of_seen_fields():
    assert len(set(WORDS)) == len(WORDS) < 64


OBJECTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=40)
    | st.binary(max_size=300)
    | st.builds(msgspec.msgpack.Ext, st.integers(-128, 127), st.binary(max_size=20)),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=20,
)


@explores(200)
@given(OBJECTS)
@example(list(range(70_000)))
@example("x" * 70_000)
@example(b"x" * 70_000)
@example({str(k): k for k in range(70_000)})
@example(msgspec.msgpack.Ext(1, bytes(70_000)))
def test_object_end_is_the_length_of_its_encoding(value):
    data = encode(value)
    assert object_end(np.frombuffer(data + b"\xc1", np.uint8), 0) == len(data)
    for length in {*range(min(len(data), 40)), len(data) - 1}:
        assert object_end(np.frombuffer(data[:length], np.uint8), 0) == TRUNCATED


def test_float32_is_five_bytes():
    assert object_end(np.frombuffer(b"\xca\x00\x00\x80\x3f", np.uint8), 0) == 5


@pytest.mark.parametrize(
    ("data", "result"),
    [
        (b"\xc1", RESERVED_BYTE),
        (b"\x92\x01\xc1", RESERVED_BYTE),
        (b"\x91" * NESTING_MAX + b"\x01", NESTING_MAX + 1),
        (b"\x91" * (NESTING_MAX + 1) + b"\x01", TOO_DEEP),
        (b"\x91" * 40 + b"\x90", TOO_DEEP),
        (b"\xdf\xff\xff\xff\xff", TRUNCATED),
        (b"\xdd\xff\xff\xff\xff" * 5, TRUNCATED),
        (b"\xdb\xff\xff\xff\xff", TRUNCATED),
    ],
)
def test_object_that_does_not_end(data, result):
    assert object_end(np.frombuffer(data, np.uint8), 0) == result


@njit
def read_int_at_0(data):
    return read_int(data, 0)


@explores(200)
@given(st.integers(-(2**63), 2**64 - 1))
def test_every_integer_is_read_as_its_64_bits(value):
    data = encode(value)
    bits, after = read_int_at_0(np.frombuffer(data, np.uint8))
    assert (bits % 2**64, after) == (value % 2**64, len(data))
    assert read_int_at_0(np.frombuffer(data[:-1], np.uint8))[1] == UNUSUAL
