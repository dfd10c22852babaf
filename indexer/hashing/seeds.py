"""Seeds of block hashes: LoRA names, cache salts and multimodal hashes.  No compiled code, no
numpy.

`block_hashing` describes their effect on a prompt; clients that compute hashes need the same
functions.
"""

import re

from xxhash import xxh3_64_intdigest

SEED = 1337
SALT_SEED = 1
KEY_SEED = 2
U64_MASK = 2**64 - 1
NAMESPACE_SALT_PREFIX = "dynamo-cache-salt:"

_SHA256_HEX = re.compile(r"[0-9a-fA-F]{64}")


def lora_offset(lora_name: str | None) -> int:
    """Return the part of the seed that an adapter adds; None and "" mean the base model."""
    return xxh3_64_intdigest(lora_name.encode()) if lora_name else 0


def salt_offset(cache_salt: str | None) -> int:
    """Return the part of the seed that a salt adds; None and "" mean no salt.

    Engine events and prompts both use this function, so "dynamo-cache-salt:ns" is the salt "ns" on
    both sides.
    """
    salt = strip_salt_prefix(cache_salt) if cache_salt else ""
    return xxh3_64_intdigest(salt.encode(), SALT_SEED) if salt else 0


def prompt_seed(lora_name: str | None = None, cache_salt: str | None = None) -> int:
    """Return the seed of every block hash of a prompt."""
    return (SEED + lora_offset(lora_name) + salt_offset(cache_salt)) & U64_MASK


def strip_salt_prefix(text: str) -> str:
    """Return a salt without the prefix by which Dynamo marks it.  Idempotent.

    A bare prefix is a salt itself: the engine does not share its blocks with unsalted prompts.
    """
    while text.startswith(NAMESPACE_SALT_PREFIX) and text != NAMESPACE_SALT_PREFIX:
        text = text[len(NAMESPACE_SALT_PREFIX) :]
    return text


def image_hash(identifier: str) -> int:
    """Return the multimodal hash of an engine's identifier of an image, sound or video.

    SHA-256 in hexadecimal digits gives the first 16 digits, any other identifier the XXH3-64.
    """
    digits = sha256_hex_prefix(identifier)
    return xxh3_64_intdigest(identifier.encode()) if digits is None else digits


def key_hash(key: bytes) -> int:
    """Return the multimodal hash of a key without a known meaning; no prompt has this hash."""
    return xxh3_64_intdigest(key, KEY_SEED)


def sha256_hex_prefix(text: str) -> int | None:
    """Return the first 16 of exactly 64 hexadecimal digits as u64; None for any other text."""
    return int(text[:16], 16) if _SHA256_HEX.fullmatch(text) else None
