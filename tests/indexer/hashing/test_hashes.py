"""Tests of block hashes: XXH3, chained hashes, LoRA names, salts and multimodal hashes."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from indexer.hashing import block_hashing as hashes
from indexer.hashing.block_hashing import compute_block_hashes, compute_sequence_hashes
from indexer.hashing.seeds import prompt_seed, strip_salt_prefix
from indexer.hashing.xxh3_kernels import chain_hashes, hash_windows
from tests.builders.hypothesis_profiles import explores

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "block_hashes.json").read_text())
SALTED = json.loads((Path(__file__).parents[2] / "golden" / "salted_hashes.json").read_text())
U64 = st.integers(0, 2**64 - 1)
HEX_SALT = "0123456789abcdef" * 4


def tokens_of(*values):
    return np.array(values, np.uint32)


def first_tokens(n_tokens):
    return np.arange(n_tokens, dtype=np.uint32)


def kernel_hash(tokens, seed):
    out = np.empty(1, np.uint64)
    hash_windows(tokens, len(tokens), 1, seed, out)
    return int(out[0])


@pytest.mark.parametrize("seed", [0, 1, 1337, 2**63, 2**64 - 1, 0x9E3779B185EBCA87])
def test_kernel_is_xxh3_for_every_length_up_to_5200_bytes(seed):
    tokens = np.random.default_rng(seed % 1000).integers(0, 2**32, 1300, dtype=np.uint32)
    wrong = [
        n
        for n in range(1301)
        if kernel_hash(tokens[:n], seed) != xxh3_64_intdigest(tokens[:n], seed)
    ]
    assert wrong == []


@explores(200)
@given(st.binary(max_size=300), st.sampled_from([1, 2, 5, 16]), U64)
def test_kernel_is_xxh3_for_any_content_and_seed(data, times, seed):
    message = (data * times)[: len(data) * times // 4 * 4]
    assert kernel_hash(np.frombuffer(message, "<u4"), seed) == xxh3_64_intdigest(message, seed)


@explores(200)
@given(st.integers(0, 200), st.integers(0, 90), st.integers(1, 90), U64)
def test_windows_are_hashed_where_the_stride_puts_them(n_tokens, window, stride, seed):
    tokens = first_tokens(n_tokens)
    n_blocks = max(0, (n_tokens - window) // stride + 1)
    out = np.empty(n_blocks, np.uint64)
    hash_windows(tokens, window, stride, seed, out)
    starts = [i * stride for i in range(n_blocks)]
    assert out.tolist() == [xxh3_64_intdigest(tokens[s : s + window], seed) for s in starts]


@explores(100)
@given(st.lists(U64, max_size=20))
def test_sequence_hashes_chain_pairs_of_hashes(hashes):
    expected = hashes[:1]
    for block_hash in hashes[1:]:
        pair = expected[-1].to_bytes(8, "little") + block_hash.to_bytes(8, "little")
        expected.append(xxh3_64_intdigest(pair, 1337))
    out = np.empty(len(hashes), np.uint64)
    chain_hashes(np.array(hashes, np.uint64), out)
    assert out.tolist() == expected
    assert compute_sequence_hashes(np.array(hashes, np.uint64)).tolist() == expected


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_hashes_are_those_of_the_reference_service(case):
    hashes = compute_block_hashes(
        tokens_of(*case["tokens"]),
        case["block_size"],
        lora_name=case.get("lora_name"),
        lookahead=int(case.get("is_eagle", False)),
        mm_hashes=case.get("mm_hashes"),
    )
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == case["block_hashes"]
    assert compute_sequence_hashes(hashes).tolist() == case["sequence_hashes"]


@pytest.mark.parametrize("block_size", [1, 2, 15, 16, 17, 32, 60, 61, 64, 1024])
@pytest.mark.parametrize("is_eagle", [False, True])
def test_every_block_size_hashes_each_full_block_on_its_own(block_size, is_eagle):
    tokens = first_tokens(3 * block_size + 1)
    hashes = compute_block_hashes(tokens, block_size, lookahead=int(is_eagle))
    window = block_size + is_eagle
    for block, block_hash in enumerate(hashes[:3]):
        start = block * block_size
        assert block_hash == xxh3_64_intdigest(tokens[start : start + window], 1337)
    assert len(hashes) == (len(tokens) - window) // block_size + 1


@pytest.mark.parametrize(("n_tokens", "is_eagle", "n_blocks"), [(3, 0, 0), (4, 0, 1), (4, 1, 0)])
def test_an_unfinished_block_has_no_hash(n_tokens, is_eagle, n_blocks):
    assert len(compute_block_hashes(first_tokens(n_tokens), 4, lookahead=is_eagle)) == n_blocks


def test_block_size_0_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        compute_block_hashes(first_tokens(4), 0)


def test_lora_name_changes_every_block_and_an_empty_name_none():
    plain = compute_block_hashes(first_tokens(8), 4)
    assert (compute_block_hashes(first_tokens(8), 4, lora_name="a") != plain).all()
    assert (compute_block_hashes(first_tokens(8), 4, lora_name="") == plain).all()
    assert prompt_seed("adapter-a") == 8842669519798868182
    assert prompt_seed(None) == prompt_seed("", "") == 1337


def test_multimodal_hashes_of_a_block_count_in_any_order_and_for_that_block_only():
    plain = compute_block_hashes(first_tokens(12), 4)
    hashes = compute_block_hashes(first_tokens(12), 4, mm_hashes=[[], [2**64 - 1, 5]])
    assert (
        hashes == compute_block_hashes(first_tokens(12), 4, mm_hashes=[[], [5, 2**64 - 1], []])
    ).all()
    assert (hashes != plain).tolist() == [False, True, False]
    assert len(compute_block_hashes(first_tokens(4), 4, mm_hashes=[[1], [2], [3]])) == 1


def test_salt_changes_every_block_and_an_empty_salt_none():
    plain = compute_block_hashes(first_tokens(12), 4)
    assert (compute_block_hashes(first_tokens(12), 4, cache_salt="s") != plain).all()
    assert (compute_block_hashes(first_tokens(12), 4, cache_salt="") == plain).all()


@pytest.mark.parametrize("case", SALTED, ids=lambda case: str((case["lora_name"], case["salt"])))
def test_salted_hashes_are_those_of_the_reference_service(case):
    blocks = compute_block_hashes(
        first_tokens(8), 4, lora_name=case["lora_name"], cache_salt=case["salt"]
    )
    assert blocks.tolist() == case["block_hashes"]
    assert compute_sequence_hashes(blocks).tolist() == case["sequence_hashes"]


def test_no_two_of_salt_lora_name_and_multimodal_hash_are_worth_the_same():
    text, number = "s", xxh3_64_intdigest(b"s", 1)
    variants = [
        {},
        {"cache_salt": text},
        {"cache_salt": "t"},
        {"lora_name": text},
        {"lora_name": text, "cache_salt": text},
        {"mm_hashes": [[number]]},
        {"mm_hashes": [[number]], "cache_salt": text},
        {"cache_salt": HEX_SALT},
    ]
    firsts = {int(compute_block_hashes(first_tokens(4), 4, **variant)[0]) for variant in variants}
    assert len(firsts) == len(variants)


def test_namespace_prefix_is_not_part_of_a_salt():
    bare = compute_block_hashes(first_tokens(4), 4, cache_salt="ns")
    assert (
        compute_block_hashes(first_tokens(4), 4, cache_salt="dynamo-cache-salt:ns") == bare
    ).all()


@explores(100)
@given(st.integers(0, 3), st.text(max_size=5) | st.just(HEX_SALT))
def test_a_salt_is_not_lost_with_its_prefix(prefixes, text):
    whole = "dynamo-cache-salt:" * prefixes + text
    salt = strip_salt_prefix(whole)
    assert strip_salt_prefix(salt) == salt
    assert bool(salt) == bool(whole)


@explores(100)
@given(st.integers(0, 60), st.integers(1, 5), st.booleans(), st.integers(1, 9))
def test_a_long_prompt_is_hashed_piece_by_piece_to_the_same(n_tokens, size, is_eagle, at_once):
    tokens = first_tokens(n_tokens)
    whole = compute_block_hashes(tokens, size, lookahead=int(is_eagle))
    chain = compute_sequence_hashes(whole)
    steps = []

    def noting(kernel):
        def call(*arguments):
            steps.append(len(arguments[-1]))
            kernel(*arguments)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashes, "BLOCKS_AT_ONCE", at_once)
        patch.setattr(hashes.hash_kernels, "hash_windows", noting(hash_windows))
        patch.setattr(hashes.hash_kernels, "chain_hashes", noting(chain_hashes))
        assert (
            compute_block_hashes(tokens, size, lookahead=int(is_eagle)).tolist() == whole.tolist()
        )
        assert compute_sequence_hashes(whole).tolist() == chain.tolist()
    assert all(step <= at_once + 1 for step in steps)
