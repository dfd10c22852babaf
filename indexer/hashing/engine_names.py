"""Names that vLLM gives to the prefixes of a sequence: a chain of SHA-256 over units of tokens.

An engine's hash of a block names the whole prefix up to its end.  Where the algorithm, the seed and
the unit are known, a prompt's names can be computed, and no event has to say which prefix a name
stands for.  `prove_scheme` finds them from the first event of a sequence.

Source: vLLM's v1/core/kv_cache_utils.py and utils/hashing.py, 0.23 to 0.33,
https://github.com/vllm-project/vllm
"""

import hashlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from indexer.hashing.seeds import U64_MASK

DEFAULT_SEEDS = ("vllm-none-hash", "0", "42")
"""Seeds that are tried: vLLM's fixed default, and usual values of PYTHONHASHSEED."""
LINKS_MAX = 64
"""Units per block that are tried."""

ALGORITHMS: dict[str, Callable[[object], bytes]] = {}


class NameScheme(NamedTuple):
    """How an engine names prefixes.

    unit: tokens per link of the chain;  lookahead: tokens behind a unit that belong to its link
    """

    algorithm: str
    seed: str
    unit: int
    lookahead: int


def _hash_pickled(value: object) -> bytes:
    return hashlib.sha256(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)).digest()


def _encode_cbor(value: object) -> bytes:
    """Encode as canonical CBOR: integers, byte and text strings, arrays and nil."""
    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        return _cbor_head(0, value) if value >= 0 else _cbor_head(1, -1 - value)
    if isinstance(value, bytes):
        return _cbor_head(2, len(value)) + value
    if isinstance(value, str):
        text = value.encode()
        return _cbor_head(3, len(text)) + text
    assert isinstance(value, tuple)
    return _cbor_head(4, len(value)) + b"".join(map(_encode_cbor, value))


def _cbor_head(major: int, number: int) -> bytes:
    if number < 24:
        return bytes([major << 5 | number])
    for length, info in ((1, 24), (2, 25), (4, 26)):
        if number < 1 << 8 * length:
            return bytes([major << 5 | info]) + number.to_bytes(length, "big")
    return bytes([major << 5 | 27]) + number.to_bytes(8, "big")


def _hash_cbor(value: object) -> bytes:
    return hashlib.sha256(_encode_cbor(value)).digest()


ALGORITHMS.update(sha256=_hash_pickled, sha256_cbor=_hash_cbor)


def iterate_names(
    scheme: NameScheme,
    tokens: Sequence[int],
    *,
    adapter: tuple[str, str] | None = None,
    cache_salt: str | None = None,
) -> Iterator[int]:
    """Yield the names of the prefixes that end behind 1, 2, ... units, as u64.

    A name is the last 64 bits of the engine's hash.  Each costs about two microseconds.

    adapter: name and path of the LoRA adapter; KV events do not have the path
    """
    compute, unit, ahead = ALGORITHMS[scheme.algorithm], scheme.unit, scheme.lookahead
    link = compute(scheme.seed)
    sequence_keys = () if adapter is None else (("lora", *adapter),)
    for end in range(unit, len(tokens) - ahead + 1, unit):
        keys: tuple[object, ...] = sequence_keys
        if cache_salt and end == unit:
            keys = (*keys, ("cache_salt", cache_salt))
        extra: tuple[object, ...] | None = keys or None
        if ahead:
            extra = (extra, *tokens[end : end + ahead])
        link = compute((link, tuple(tokens[end - unit : end]), extra))
        yield int.from_bytes(link[-8:], "big")


def prove_scheme(
    name: int,
    tokens: Sequence[int],
    ahead: Sequence[int],
    seeds: Sequence[str] = DEFAULT_SEEDS,
) -> NameScheme | None:
    """Return the scheme by which `name` is the name of exactly these tokens; None for no known one.

    tokens: a block that starts a sequence;  ahead: the tokens behind it that the name covers
    """
    size = len(tokens)
    units = [size // links for links in range(1, LINKS_MAX + 1) if size % links == 0]
    sequence = [*map(int, tokens), *map(int, ahead)]
    for algorithm in ALGORITHMS:
        for seed in seeds:
            for unit in units:
                scheme = NameScheme(algorithm, seed, unit, len(ahead))
                if list(iterate_names(scheme, sequence))[-1] == name & U64_MASK:
                    return scheme
    return None
