"""API key, as the service stores it: a hash, never the secret itself.

The hash is one round of SHA-256.  Slow salted hashes protect guessable secrets chosen by people; a
key has 256 random bits and cannot be guessed, so a slow hash would only make each request
expensive.
"""

from hashlib import sha256
from typing import Final, NamedTuple

from select_service.auth.roles import Role

SECRET_BYTES: Final = 32
PREFIX: Final = "ssk_"
"""Prefix of every generated key, so that secret scanners can recognize leaked keys."""
SECRET_CHARS_MAX: Final = 256
HASH_PREFIX: Final = "sha256:"


class Quotas(NamedTuple):
    """Limits of a key.  None means unlimited requests, and for other limits the share (see
    `shares`).

    burst: requests that may arrive at once
    The other fields are limits of the process, by name.
    """

    requests_per_s: float | None = None
    burst: int | None = None
    reservations: int | None = None
    workers: int | None = None
    reserved_blocks: int | None = None
    partitions: int | None = None
    event_ranks: int | None = None
    queued_requests: int | None = None
    queued_tokens: int | None = None
    queued_blocks: int | None = None
    queued_allowed_ids: int | None = None
    connections: int | None = None
    body_bytes: int | None = None
    migration_waiters: int | None = None
    live_streams: int | None = None
    dumps: int | None = None
    examinations: int | None = None


NO_QUOTAS: Final = Quotas()


class ApiKey(NamedTuple):
    """API key.  digest: hash of the secret;  tenants: tenants the key is bound to,

    None means unbound
    """

    name: str
    digest: bytes
    roles: frozenset[Role]
    tenants: frozenset[str] | None = None
    quotas: Quotas = NO_QUOTAS


def hash_secret(secret: bytes) -> bytes:
    """Return the hash of the secret."""
    return sha256(secret).digest()


def format_hash(secret: str) -> str:
    """Return the hash as written in the file of keys."""
    return HASH_PREFIX + hash_secret(secret.encode()).hex()
