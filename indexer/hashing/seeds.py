"""Seeds of block hashes: LoRA names, cache salts and multimodal hashes.  No compiled code, no
numpy.

`hashes` describes their effect on a prompt; clients that compute hashes need the same functions.
"""

import re

from xxhash import xxh3_64_intdigest

SEED = 1337
SALT_SEED = 1
U64_MASK = 2**64 - 1
NAMESPACE_SALT_PREFIX = "dynamo-cache-salt:"

_SHA256_HEX = re.compile(r"[0-9a-fA-F]{64}")


def lora_seed(lora_name: str | None) -> int:
    """Return the seed of every block hash under an adapter; None and "" mean the base model."""
    if not lora_name:
        return SEED
    return (SEED + xxh3_64_intdigest(lora_name.encode())) & U64_MASK


def salted_seed(seed: int, cache_salt: str | None) -> tuple[int, int | None]:
    """Return (seed, multimodal hash) of the first block; seed: the seed without the salt."""
    salt, mm_hash = salt_parts(cache_salt)
    if salt is not None:
        seed = (seed + xxh3_64_intdigest(salt.encode(), SALT_SEED)) & U64_MASK
    return seed, mm_hash


def salt_parts(cache_salt: str | None) -> tuple[str | None, int | None]:
    """Split a cache salt into (salt, multimodal hash), of which at most one is not None.

    Engine events and prompts both use this, so both treat 64 hexadecimal digits as the multimodal
    hash of the first block, and "dynamo-cache-salt:ns" as the salt "ns".  Idempotent.
    """
    salt = cache_salt or ""
    while salt.startswith(NAMESPACE_SALT_PREFIX):
        salt = salt[len(NAMESPACE_SALT_PREFIX) :]
    if not salt:
        return None, None
    mm_hash = sha256_hex_prefix(salt)
    return (salt, None) if mm_hash is None else (None, mm_hash)


def sha256_hex_prefix(text: str) -> int | None:
    """Return the first 16 of exactly 64 hexadecimal digits as u64; None for any other text."""
    return int(text[:16], 16) if _SHA256_HEX.fullmatch(text) else None
