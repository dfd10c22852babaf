"""Tests of events of every engine, and of random data."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.events.event_decoder import BlockRemoved, DecodeError, decode
from tests.builders.hypothesis_profiles import explores

encode = msgspec.msgpack.encode
SHA = "0123456789abcdef" * 4
REMOVED = ["BlockRemoved", [1]]


def struct_of(name, fields, *, array_like, omit_defaults=False):
    return msgspec.defstruct(
        name, fields, array_like=array_like, omit_defaults=omit_defaults, tag=True
    )


LORA = [("lora_id", int | None, None), ("medium", str | None, None)]
NAMED = [("lora_name", str | None, None), ("extra_keys", list | None, None)]
GROUP = [("group_idx", int | None, None)]
SPEC = [
    ("kv_cache_spec_kind", str | None, None),
    ("kv_cache_spec_sliding_window", int | None, None),
]
NEWEST = [(name, str | None, None) for name in ("locality", "ownership", "session_id")]
LOOKAHEAD = [("lookahead_token_ids", list | None, None)]
ENGINES = {  # name: (fields after block_size, array_like, omit_defaults)
    "vllm 0.9": (LORA[:1], True, False),
    "vllm 0.11": (LORA, True, False),
    "vllm 0.20": (LORA + NAMED + GROUP, True, False),
    "vllm 0.23": (LORA + NAMED + GROUP + SPEC, True, False),
    "vllm 0.24": (LORA + NAMED + GROUP + SPEC, False, True),
    "vllm 0.33": (LORA + NAMED + GROUP + SPEC + NEWEST + LOOKAHEAD, False, True),
    "tensorrt-llm": (LORA[:1], False, False),
}


@pytest.mark.parametrize("engine", ENGINES)
@explores(20)
@given(data=st.data())
def test_events_of_every_engine_survive_the_way(engine, data):
    fields, array_like, omit_defaults = ENGINES[engine]
    mandatory = ["block_hashes", "parent_block_hash", "token_ids", "block_size"]
    stored_type = struct_of(
        "BlockStored", mandatory + fields, array_like=array_like, omit_defaults=omit_defaults
    )
    removed_type = struct_of("BlockRemoved", ["block_hashes", *LORA[1:]], array_like=array_like)
    hashes = data.draw(st.lists(st.integers(-(2**63), 2**64 - 1), unique_by=lambda h: h % 2**64))
    tokens = data.draw(st.lists(st.integers(0, 2**32 - 1)))
    names = [name for name, *_ in fields]
    values = {
        "medium": data.draw(st.sampled_from([None, "GPU", "CPU"])),
        "lora_name": data.draw(st.none() | st.text(min_size=1, max_size=5)),
        "group_idx": data.draw(st.none() | st.integers(0, 9)),
        "kv_cache_spec_kind": data.draw(st.sampled_from([None, "full_attention"])),
    }
    values = {name: value for name, value in values.items() if name in names}
    events = [stored_type(hashes, None, tokens, 4, **values), removed_type(hashes, "CPU")]
    batch = decode(encode([1.5, events, 1]))
    assert (batch.data_parallel_rank, batch.bad_events) == (1, 0)
    block_stored, removed = batch.events
    assert block_stored.block_hashes.tolist() == [h % 2**64 for h in hashes]
    assert block_stored.tokens.tolist() == tokens
    assert block_stored.medium == values.get("medium")
    assert block_stored.lora_name == values.get("lora_name")
    assert block_stored.group_idx == values.get("group_idx")
    assert block_stored.kind == values.get("kv_cache_spec_kind")
    assert (removed.block_hashes.tolist(), removed.medium) == ([h % 2**64 for h in hashes], "CPU")


@explores(300)
@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_decode_error(payload):
    try:
        decode(payload)
    except DecodeError:
        return


JSON_LIKE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.binary(max_size=40)
    | st.sampled_from(["BlockStored", "BlockRemoved", "type", "block_hashes", "GPU", SHA, ""]),
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(st.text(max_size=9) | st.integers(0, 9), inner)
    ),
    max_leaves=12,
)


@explores(100)
@given(st.lists(JSON_LIKE, max_size=9), st.booleans())
def test_random_values_in_an_event_raise_nothing(values, is_removed):
    tag = "BlockRemoved" if is_removed else "BlockStored"
    batch = decode(encode([1.5, [[tag, *values], REMOVED], 0]))
    assert isinstance(batch.events[-1], BlockRemoved)
    assert 1 <= len(batch.events) + batch.bad_events <= 2
