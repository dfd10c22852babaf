"""Every form of a prompt in a request, and what goes into its hashes."""

import numpy as np
import pytest

from indexer.hashing.hashes import block_hashes, sequence_hashes
from select_service.core.decide.prompt import prompt_of
from select_service.errors import InvalidBody
from tests.builders import a_select

TOKENS = np.arange(12, dtype=np.uint32)
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
        ({"is_eagle": True}, {"is_eagle": True}),
        ({"block_mm_infos": MM_INFOS}, {"mm_hashes": [[], [7, 5]]}),
        ({"lora_name": "", "cache_salt": "", "is_eagle": False}, {}),
    ],
)
def test_tokens_are_hashed_with_all_that_tells_prompts_apart(fields, hashed):
    expected = block_hashes(TOKENS, 4, **hashed)
    prompt = prompt_of(a_select(12, **fields), 4, False)
    assert prompt.block_hashes.tolist() == expected.tolist()
    assert prompt.sequence_hashes.tolist() == sequence_hashes(expected).tolist()
    assert prompt.isl_tokens == 12
    plain = block_hashes(TOKENS, 4)
    assert (prompt.block_hashes.tolist() == plain.tolist()) is (not hashed)


@pytest.mark.parametrize(("of_request", "blocks"), [(None, 2), (True, 2), (False, 3)])
def test_the_request_may_say_otherwise_than_its_partition_about_eagle(of_request, blocks):
    assert len(prompt_of(a_select(12, is_eagle=of_request), 4, True).block_hashes) == blocks


def test_routing_tokens_go_before_tokens_and_tokens_before_hashes():
    routing = {"routing_token_ids": [9, 9, 9, 9, 1], "block_mm_infos": [MM_INFOS[1]]}
    given = {"block_hashes": [1], "sequence_hashes": [2], "isl_tokens": 3}
    prompt = prompt_of(a_select(12, mm_routing_info=routing, **given), 4, False)
    expected = block_hashes(np.array([9] * 4, np.uint32), 4, mm_hashes=[[5, 7]])
    assert (prompt.block_hashes.tolist(), prompt.isl_tokens) == (expected.tolist(), 5)
    assert prompt_of(a_select(12, **given), 4, False).isl_tokens == 12
    prompt = prompt_of(a_select(token_ids=None, **given), 4, False)
    assert (prompt.block_hashes.tolist(), prompt.isl_tokens) == ([1], 3)


def test_signed_and_unsigned_hashes_are_the_same():
    signed = {"block_hashes": [-1, -(2**63)], "sequence_hashes": [-2, 0]}
    unsigned = {"block_hashes": [2**64 - 1, 2**63], "sequence_hashes": [2**64 - 2, 0]}
    one, other = (
        prompt_of(a_select(token_ids=None, isl_tokens=8, **hashes), 4, False)
        for hashes in (signed, unsigned)
    )
    assert one.block_hashes.tolist() == other.block_hashes.tolist() == [2**64 - 1, 2**63]
    assert one.sequence_hashes.tolist() == other.sequence_hashes.tolist() == [2**64 - 2, 0]


@pytest.mark.parametrize("wide", [2**64, -(2**63) - 1])
def test_wider_hashes_are_refused_with_their_place(wide):
    fields = {"block_hashes": [1, wide], "sequence_hashes": [1, 2], "isl_tokens": 8}
    with pytest.raises(InvalidBody, match=r"block_hashes\[1\]"):
        prompt_of(a_select(token_ids=None, **fields), 4, False)
