"""Tests of prefix names: equal to names published by vLLM 0.33, and a name proves its scheme.

The literal names come from `tests/data/hybrid` and from the recording of salts and adapters.
"""

import base64
import hashlib
import json
import lzma
from pathlib import Path

import msgspec
import pytest

from indexer.hashing import engine_names
from indexer.hashing.engine_names import ALGORITHMS, NameScheme, iterate_names, prove_scheme

RECORDINGS = Path(__file__).parents[2] / "recordings"
SEED = "vllm-none-hash"
# fmt: off
TOKENS = [
    59, 124489, 112, 39, 105, 48, 107, 123, 91, 108, 2, 46019, 125, 91, 31, 16163,
    125, 147615, 29, 29, 109, 102, 118, 34, 32, 106, 87, 9, 108, 110, 126, 103, 92,
]
# fmt: on
PLAIN = [16795206348190173674, 17442217016270839375]
WITH_NEXT = [17018962498755374820, 9421534115757835018]
"""Names of the first two blocks of 16, without and with a lookahead of one token."""


def sha256_of_16(unit=16, ahead=0, algorithm="sha256", seed=SEED):
    return NameScheme(algorithm, seed, unit, ahead)


def names_of(scheme, tokens=TOKENS, **keys):
    return list(iterate_names(scheme, tokens, **keys))


def test_names_are_those_of_the_engine():
    assert names_of(sha256_of_16()) == PLAIN


def test_names_with_lookahead_are_those_of_the_engine():
    assert names_of(sha256_of_16(ahead=1)) == WITH_NEXT
    assert names_of(sha256_of_16(ahead=1), TOKENS[:32]) == WITH_NEXT[:1]


@pytest.mark.parametrize(("n_tokens", "count"), [(0, 0), (15, 0), (16, 1), (31, 1), (32, 2)])
def test_only_whole_units_have_names(n_tokens, count):
    assert names_of(sha256_of_16(), TOKENS[:n_tokens]) == PLAIN[:count]


def test_a_prefix_has_the_same_name_before_any_suffix():
    assert names_of(sha256_of_16(), [*TOKENS[:16], 1, 2, 3] * 2)[0] == PLAIN[0]


def starts_of_sequences():
    """Yield (salt, adapter, names, tokens) of the recorded events that start a sequence."""
    path = RECORDINGS / "vllm-0.33.0-salts_adapters_images.jsonl.xz"
    with lzma.open(path, "rt") as lines:
        rows = [row for row in map(json.loads, lines) if isinstance(row, list)]
    for row in rows:
        if row[0] != "live":
            continue
        for event in msgspec.msgpack.decode(base64.b64decode(row[5]))[1]:
            keys = event.get("extra_keys")
            is_text = all(isinstance(key, str) for each in keys or () for key in each or ())
            if event["type"] == "BlockStored" and event["parent_block_hash"] is None and is_text:
                name = event["lora_name"]
                salts = [key for key in (keys[0] if keys else None) or () if key != name]
                yield (*salts, None)[0], name, event["block_hashes"], event["token_ids"]


def test_names_of_salted_and_adapted_sequences_are_those_of_the_engine():
    """The recorder's adapters have the path /adapters; its seed is 0."""
    scheme, kinds = sha256_of_16(seed="0"), set()
    for salt, name, names, tokens in starts_of_sequences():
        adapter = name and (name, "/adapters")
        assert names_of(scheme, tokens, adapter=adapter, cache_salt=salt)[0] == names[0]
        kinds.add((salt is not None, name is not None))
    assert kinds == {(False, False), (True, False), (False, True), (True, True)}


def test_keys_separate_sequences():
    scheme = sha256_of_16()
    variants = [
        {},
        {"cache_salt": "a"},
        {"cache_salt": "b"},
        {"adapter": ("a", "/a")},
        {"adapter": ("a", "/b")},
        {"adapter": ("a", "/a"), "cache_salt": "a"},
    ]
    chains = [names_of(scheme, **keys) for keys in variants]
    assert len({name for chain in chains for name in chain}) == 2 * len(variants)
    assert names_of(scheme, cache_salt="") == names_of(scheme)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (None, "f6"),
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (255, "18ff"),
        (256, "190100"),
        (65536, "1a00010000"),
        (2**32, "1b0000000100000000"),
        (-1, "20"),
        (-500, "3901f3"),
        (b"\x01\x02", "420102"),
        ("IETF", "6449455446"),
        ("\u00fc", "62c3bc"),
        ((), "80"),
        ((1, (2, 3), None), "83018202 03f6"),
        (tuple(range(25)), "98190001020304050607 08090a0b0c0d0e0f1011121314151617 1818"),
    ],
)
def test_cbor_is_canonical(value, encoded):
    """Encodings equal the examples of RFC 8949, appendix A."""
    data = bytes.fromhex(encoded)
    assert engine_names._encode_cbor(value) == data
    assert ALGORITHMS["sha256_cbor"](value) == hashlib.sha256(data).digest()


def test_cbor_names_chain_links():
    root = hashlib.sha256(b"\x6evllm-none-hash").digest()
    link = hashlib.sha256(b"\x83\x58\x20" + root + b"\x82\x01\x02\xf6").digest()
    last = hashlib.sha256(b"\x83\x58\x20" + link + b"\x82\x03\x04\xf6").digest()
    scheme = sha256_of_16(unit=2, algorithm="sha256_cbor")
    expected = [int.from_bytes(each[-8:], "big") for each in (link, last)]
    assert names_of(scheme, [1, 2, 3, 4]) == expected


@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor"])
@pytest.mark.parametrize("seed", [SEED, "0"])
@pytest.mark.parametrize("unit", [16, 8, 2, 1])
@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_one_name_proves_a_scheme(algorithm, seed, unit, ahead):
    scheme = NameScheme(algorithm, seed, unit, ahead)
    tokens, behind = TOKENS[:16], TOKENS[16 : 16 + ahead]
    name = names_of(scheme, tokens + behind)[-1]
    assert prove_scheme(name, tokens, behind) == scheme


def test_names_of_the_engine_prove_its_scheme():
    assert prove_scheme(PLAIN[0], TOKENS[:16], []) == sha256_of_16()
    assert prove_scheme(WITH_NEXT[0], TOKENS[:16], TOKENS[16:17]) == sha256_of_16(ahead=1)


@pytest.mark.parametrize(
    ("name", "tokens", "ahead"),
    [
        (PLAIN[0] + 1, TOKENS[:16], []),
        (PLAIN[1], TOKENS[:16], []),
        (PLAIN[0], [*TOKENS[:15], 1], []),
        (PLAIN[0], TOKENS[:16], TOKENS[16:17]),
        (WITH_NEXT[0], TOKENS[:16], [1]),
        (names_of(sha256_of_16(seed="elsewhere"))[0], TOKENS[:16], []),
    ],
)
def test_other_names_prove_nothing(name, tokens, ahead):
    assert prove_scheme(name, tokens, ahead) is None


def test_a_seed_of_the_registration_is_tried():
    name = names_of(sha256_of_16(seed="elsewhere"))[0]
    assert prove_scheme(name, TOKENS[:16], [], ("elsewhere",)) == sha256_of_16(seed="elsewhere")
    assert prove_scheme(PLAIN[0], TOKENS[:16], [], ("elsewhere",)) is None
