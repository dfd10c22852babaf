"""Tests of events that only the general reader supports: reading in parts gives the same result."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.events import block_identity, chunked_decoding, payload_parser
from indexer.events.event_types import BlockStored
from indexer.events.payload_parser import parse_batch, parse_batch_in_steps
from tests.builders.hypothesis_profiles import explores
from tests.builders.steps import result_of

encode = msgspec.msgpack.encode
SHA = "0123456789abcdef" * 4
LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary()
OBJECTS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=40)
        | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=9)
    ),
    max_leaves=60,
)
NUMBERS = st.integers(0, 2**32 - 1)
KEYS = st.none() | st.lists(
    st.sampled_from(["salt", "lora", SHA, [SHA, 3], ["an image", 0], [], 7]), max_size=3
)
INFOS = st.none() | st.fixed_dictionaries(
    {"mm_objects": st.lists(st.fixed_dictionaries({"mm_hash": st.integers(0, 2**64 - 1)}))}
)
STORED = st.fixed_dictionaries(
    {
        "type": st.just("BlockStored"),
        "block_hashes": st.lists(st.integers(0, 50) | st.binary(min_size=1), max_size=12),
        "token_ids": st.lists(NUMBERS, max_size=60)
        | st.lists(st.tuples(NUMBERS, NUMBERS), max_size=30)
        | st.lists(NUMBERS | st.text(max_size=1), max_size=30),
        "block_size": st.just(4),
    },
    optional={
        "parent_block_hash": st.none() | st.integers(0, 50),
        "cache_salt": st.none() | st.text(),
        "lora_name": st.sampled_from([None, "lora"]),
        "extra_keys": st.none() | st.lists(KEYS, max_size=15),
        "lookahead_token_ids": st.none() | st.lists(st.tuples(NUMBERS), max_size=12),
        "mm_keys": st.none() | st.lists(st.none() | st.just([{"hash": SHA}]), max_size=15),
        "lora_id": st.none() | st.integers(0, 3),
        "adapter_kind": st.none() | st.text(),
        "block_mm_infos": st.none() | st.lists(INFOS, max_size=15) | st.just([{}]),
    },
)
REMOVED = st.fixed_dictionaries(
    {"type": st.just("BlockRemoved"), "block_hashes": st.lists(st.integers(0, 50), max_size=20)}
)


@pytest.fixture(scope="module", params=[1, 3])
def small_parts(request):
    """Make parts so small that every value has several parts."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (block_identity, chunked_decoding):
            patch.setattr(module, "PART_ELEMENTS", request.param)
        for module in (payload_parser, chunked_decoding):
            patch.setattr(module, "WHOLE_BYTES_MAX", 0)
        yield


def event_fields(event):
    """Return all fields of an event."""
    return {
        name: value.tolist() if hasattr(value, "tolist") else value
        for name, value in msgspec.structs.asdict(event).items()
    }


@explores(60)
@given(value=OBJECTS)
def test_an_object_in_parts_is_the_object(small_parts, value):
    raw = encode(value)
    assert result_of(chunked_decoding.decode_in_steps(raw)) == msgspec.msgpack.decode(raw)


@explores(60)
@given(events=st.lists(STORED | REMOVED, min_size=1, max_size=4))
def test_events_in_parts_are_the_events(small_parts, events):
    payload = encode([0.0, events, None])
    found = result_of(parse_batch_in_steps(payload))
    with pytest.MonkeyPatch.context() as patch:
        for module in (block_identity, chunked_decoding):
            patch.setattr(module, "PART_ELEMENTS", 1024)
        for module in (payload_parser, chunked_decoding):
            patch.setattr(module, "WHOLE_BYTES_MAX", 2**20)
        whole = parse_batch(payload)
    assert list(map(event_fields, found.events)) == list(map(event_fields, whole.events))
    assert found.bad_events == whole.bad_events


@pytest.mark.parametrize(
    "more", [{"cache_salt": "a"}, {"extra_keys": [[[SHA, 1]]] * 5000}], ids=["salt", "images"]
)
def test_a_long_event_has_a_step_for_every_so_many_of_its_members(more):
    n_blocks = 5000
    event = {
        "type": "BlockStored",
        "block_hashes": list(range(1, n_blocks + 1)),
        "parent_block_hash": None,
        "token_ids": [1] * (16 * n_blocks),
        "block_size": 16,
        **more,
    }
    steps = parse_batch_in_steps(encode([0.0, [event], None]))
    n_steps = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            batch = end.value
            break
        n_steps += 1
    n_members = 2 * n_blocks * (1 + 16) + 2 * n_blocks * ("extra_keys" in more)
    assert n_steps >= n_members // chunked_decoding.PART_ELEMENTS
    (found,) = batch.events
    assert isinstance(found, BlockStored)
    assert len(found.block_hashes) == n_blocks
