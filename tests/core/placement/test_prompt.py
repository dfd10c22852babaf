"""Tests of every form of a prompt in a request, and of the inputs of hashes."""

import numpy as np
import pytest

from indexer.hashing.block_hashing import compute_block_hashes, compute_sequence_hashes
from select_service.base.errors import InvalidBody
from select_service.core.placement import prompt
from select_service.core.placement.prompt import (
    LONG_MM_INFOS,
    LONG_PROMPT_LENGTH,
    is_long_prompt,
    read_prompt,
)
from tests.builders import a_select

TOKENS = np.arange(12, dtype=np.uint32)
HASHED = {"block_hashes": [1, 2**63, 3], "sequence_hashes": [4, -5, 6], "isl_tokens": 12}
MM_INFOS = [
    None,
    {"mm_objects": [{"mm_hash": 7, "offsets": [[0, 4]]}, {"mm_hash": 5, "offsets": []}]},
]


@pytest.mark.parametrize(
    ("fields", "hashed"),
    [
        ({}, {}),
        ({"lora_name": "ad"}, {"lora_name": "ad"}),
        ({"cache_salt": "s"}, {"cache_salt": "s"}),
        ({"is_eagle": True}, {"lookahead": 1}),
        ({"block_mm_infos": MM_INFOS}, {"mm_hashes": [[], [7, 5]]}),
        ({"lora_name": "", "cache_salt": "", "is_eagle": False}, {}),
    ],
)
def test_tokens_are_hashed_with_every_distinguishing_field(fields, hashed):
    expected = compute_block_hashes(TOKENS, 4, **hashed)
    prompt = read_prompt(a_select(12, **fields), 4, False)
    assert prompt.block_hashes.tolist() == expected.tolist()
    assert prompt.sequence_hashes.tolist() == compute_sequence_hashes(expected).tolist()
    assert prompt.isl_tokens == 12
    plain = compute_block_hashes(TOKENS, 4)
    assert (prompt.block_hashes.tolist() == plain.tolist()) is (not hashed)


@pytest.mark.parametrize(("of_request", "blocks"), [(None, 2), (True, 2), (False, 3)])
def test_the_request_may_override_eagle_of_its_partition(of_request, blocks):
    assert len(read_prompt(a_select(12, is_eagle=of_request), 4, True).block_hashes) == blocks


def test_routing_tokens_go_before_tokens_and_tokens_before_hashes():
    routing = {"routing_token_ids": [9, 9, 9, 9, 1], "block_mm_infos": [MM_INFOS[1]]}
    given = {"block_hashes": [1], "sequence_hashes": [2], "isl_tokens": 3}
    prompt = read_prompt(a_select(12, mm_routing_info=routing, **given), 4, False)
    expected = compute_block_hashes(np.array([9] * 4, np.uint32), 4, mm_hashes=[[5, 7]])
    assert (prompt.block_hashes.tolist(), prompt.isl_tokens) == (expected.tolist(), 5)
    assert read_prompt(a_select(12, **given), 4, False).isl_tokens == 12
    prompt = read_prompt(a_select(token_ids=None, **given), 4, False)
    assert (prompt.block_hashes.tolist(), prompt.isl_tokens) == ([1], 3)


def test_signed_and_unsigned_hashes_are_the_same():
    signed = {"block_hashes": [-1, -(2**63)], "sequence_hashes": [-2, 0]}
    unsigned = {"block_hashes": [2**64 - 1, 2**63], "sequence_hashes": [2**64 - 2, 0]}
    one, other = (
        read_prompt(a_select(token_ids=None, isl_tokens=8, **hashes), 4, False)
        for hashes in (signed, unsigned)
    )
    assert one.block_hashes.tolist() == other.block_hashes.tolist() == [2**64 - 1, 2**63]
    assert one.sequence_hashes.tolist() == other.sequence_hashes.tolist() == [2**64 - 2, 0]


@pytest.mark.parametrize("wide", [2**64, -(2**63) - 1])
def test_wider_hashes_are_refused_with_their_place(wide):
    fields = {"block_hashes": [1, wide], "sequence_hashes": [1, 2], "isl_tokens": 8}
    with pytest.raises(InvalidBody, match=r"block_hashes\[1\]"):
        read_prompt(a_select(token_ids=None, **fields), 4, False)


def test_a_long_prompt_is_read_in_short_steps_to_the_same(monkeypatch):
    given = [a_select(50), a_select(0, token_ids=None, **HASHED)]
    whole = [read_prompt(body, 4, False) for body in given]
    monkeypatch.setattr(prompt, "NUMBERS_PER_STEP", 3)
    for body, expected in zip(given, whole, strict=True):
        read = read_prompt(body, 4, False)
        assert [part.tolist() for part in read[:2]] == [part.tolist() for part in expected[:2]]


@pytest.mark.parametrize("fields", [{}, {"token_ids": None, **HASHED}])
def test_a_long_prompt_has_its_first_blocks_looked_up_and_all_counted(fields, monkeypatch):
    monkeypatch.setattr(prompt, "LOOKED_UP_BLOCKS_MAX", 2)
    read = read_prompt(a_select(12, **fields), 4, False)
    assert (len(read.block_hashes), len(read.sequence_hashes), read.isl_tokens) == (2, 3, 12)


@pytest.mark.parametrize("field", ["token_ids", "block_hashes", "sequence_hashes"])
def test_a_prompt_is_long_by_the_longest_of_its_lists(field):
    assert not is_long_prompt(a_select(0, **{field: [1] * LONG_PROMPT_LENGTH}))
    assert is_long_prompt(a_select(0, **{field: [1] * (LONG_PROMPT_LENGTH + 1)}))
    routing = {"routing_token_ids": [1] * (LONG_PROMPT_LENGTH + 1), "block_mm_infos": []}
    assert is_long_prompt(a_select(1, mm_routing_info=routing))


@pytest.mark.parametrize("n_infos", [0, 1, 3, 9])
def test_images_behind_the_last_block_are_left_out(n_infos):
    infos = [{"mm_objects": [{"mm_hash": n, "offsets": []}]} for n in range(n_infos)]
    expected = compute_block_hashes(TOKENS, 4, mm_hashes=[[n] for n in range(n_infos)])
    body = a_select(12, block_mm_infos=infos)
    assert read_prompt(body, 4, False).block_hashes.tolist() == expected.tolist()
    assert prompt._mm_hashes(body.block_mm_infos, 2) in (None, [[n] for n in range(n_infos)][:2])


def test_many_infos_make_a_prompt_long():
    assert not is_long_prompt(a_select(1, block_mm_infos=[None] * LONG_MM_INFOS))
    assert is_long_prompt(a_select(1, block_mm_infos=[None] * (LONG_MM_INFOS + 1)))
    routing = {"routing_token_ids": [1], "block_mm_infos": [None] * (LONG_MM_INFOS + 1)}
    assert is_long_prompt(a_select(1, mm_routing_info=routing))
