"""Tests that prompts hashed by a client equal prompts hashed by the service."""

import json
from array import array
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from indexer.hashing.block_hashing import compute_block_hashes, compute_sequence_hashes
from select_service.client.prompt_hasher import PromptHasher, make_hasher
from tests.builders import a_selector, a_worker, worker_body
from tests.builders.hypothesis_profiles import explores
from tests.builders.in_process import Api

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "block_hashes.json").read_text())
HEX_SALT = "0123456789abcdef" * 4
TOKEN = st.integers(0, 2**32 - 1)
NAMES = st.sampled_from([None, "", "adapter-a", "ä"])
SALTS = st.sampled_from([None, "", "gold", HEX_SALT, "dynamo-cache-salt:gold"]) | st.text()


def hashed(tokens, block_size, *how, **more):
    hasher = PromptHasher(block_size, *how, **more)
    hasher.extend(tokens)
    return hasher.prompt()


WITHOUT_IMAGES = [case for case in GOLDEN["cases"] if not case.get("mm_hashes")]


@pytest.mark.parametrize("case", WITHOUT_IMAGES, ids=lambda case: case["name"])
def test_hashes_are_those_of_the_reference(case):
    how = {name: case[name] for name in ("lora_name", "is_eagle") if name in case}
    found = hashed(case["tokens"], case["block_size"], **how)
    assert found["block_hashes"] == case["block_hashes"]
    assert found["sequence_hashes"] == case["sequence_hashes"]
    assert found["isl_tokens"] == len(case["tokens"])


@explores(300)
@given(
    parts=st.lists(st.lists(TOKEN, max_size=40), max_size=6),
    block_size=st.sampled_from([1, 2, 4, 16, 61]),
    lora_name=NAMES,
    cache_salt=SALTS,
    is_eagle=st.booleans(),
)
@example([[1, 2, 3], [4], [], [5, 6, 7, 8]], 4, "adapter-a", HEX_SALT, True)
def test_a_grown_prompt_is_hashed_as_the_service_hashes_the_whole(
    parts, block_size, lora_name, cache_salt, is_eagle
):
    hasher = PromptHasher(block_size, lora_name, cache_salt, is_eagle)
    tokens = []
    for part in parts:
        before = hasher.prompt()
        hasher.extend(part)
        tokens += part
        blocks = compute_block_hashes(
            np.array(tokens, np.uint32),
            block_size,
            lora_name=lora_name,
            lookahead=int(is_eagle),
            cache_salt=cache_salt,
        )
        found = hasher.prompt()
        assert found["block_hashes"] == blocks.tolist()
        assert found["sequence_hashes"] == compute_sequence_hashes(blocks).tolist()
        assert found["isl_tokens"] == len(tokens)
        assert found["block_hashes"][: len(before["block_hashes"])] == before["block_hashes"]


@pytest.mark.parametrize(
    "form",
    [
        tuple,
        np.array,
        lambda tokens: np.array(tokens, np.uint32)[:],
        lambda tokens: np.repeat(tokens, 2)[::2],
        lambda tokens: array("q", tokens),
    ],
)
def test_tokens_may_be_any_array(form):
    tokens = [1, 2**32 - 1, 0, 7, 9]
    assert hashed(form(tokens), 2) == hashed(tokens, 2)


@pytest.mark.parametrize(
    "tokens", [[1, -1], [1, 2**32], [1, 2.5], ["1"], [None], np.ones((1, 4), np.int64), np.ones(4)]
)
def test_an_invalid_token_is_refused_and_changes_nothing(tokens):
    hasher = PromptHasher(2)
    hasher.extend([1, 2, 3])
    before = hasher.prompt()
    with pytest.raises(ValueError, match="tokens are integers from 0 to 4294967295"):
        hasher.extend(tokens)
    assert hasher.prompt() == before
    hasher.extend([4])
    assert hasher.prompt() == hashed([1, 2, 3, 4], 2)


def test_a_prompt_stays_as_it_was_when_more_tokens_come():
    hasher = PromptHasher(1)
    hasher.extend([1])
    kept = hasher.prompt()
    hasher.extend([2])
    assert kept == hashed([1], 1)


def test_a_block_has_a_size():
    with pytest.raises(ValueError, match="block_size must be at least 1, not 0"):
        PromptHasher(0)


@pytest.mark.parametrize("eagle", [None, False, True])
def test_a_hasher_hashes_as_the_workers_of_its_scope_do(eagle):
    selector = a_selector()
    records = [
        selector.register_worker(a_worker(1, block_size=None)),
        selector.register_worker(a_worker(2, block_size=8, is_eagle=eagle)),
    ]
    assert make_hasher(records[:1]) is None
    hasher = make_hasher(records, "adapter-a", "gold")
    hasher.extend(range(40))
    assert hasher.prompt() == hashed(range(40), 8, "adapter-a", "gold", bool(eagle))


@pytest.mark.parametrize("how", [{}, {"lora_name": "l"}, {"cache_salt": "s"}, {"is_eagle": True}])
def test_the_service_takes_hashes_for_the_prompt_that_it_hashed_itself(how):
    """The booking of the tokens is repeated with the hashes of the tokens."""
    tokens = list(range(70))
    wanted = {"model_name": "m", "reservation_id": "r", "include_hashes": True}
    with Api() as service:
        service.post("/workers", worker_body(1, block_size=16, is_eagle=how.get("is_eagle")))
        booked = service.post("/select_and_reserve", {**wanted, "token_ids": tokens, **how})
        prompt = hashed(tokens, 16, **how)
        again = service.post("/select_and_reserve", {**wanted, **prompt, "repeat": True})
    assert (again.status, again.body) == (200, booked.body)
