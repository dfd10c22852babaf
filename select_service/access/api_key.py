"""What a key is.  The service knows its hash, never the key itself.

The hash is one round of SHA-256.  Slow hashes with a salt protect words that people choose, which
can be guessed; a key is 256 random bits, which cannot, so all that a slow hash would do is to make
each request expensive.
"""

from hashlib import sha256
from typing import Final, NamedTuple

from select_service.access.roles import Role

SECRET_BYTES: Final = 32
PREFIX: Final = "ssk_"
"""Of every key that is made here, so that scanners for leaked secrets can know one."""
SECRET_CHARS_MAX: Final = 256
HASH_PREFIX: Final = "sha256:"


class Quotas(NamedTuple):
    """What one key may use; None: of requests as many as it likes, else its share (see `shares`).

    burst: requests that may come at once
    The others are limits of the process, by their names.
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


UNBOUNDED: Final = Quotas()


class ApiKey(NamedTuple):
    """digest: of the secret;  tenants: to which it is bound, None: to none"""

    name: str
    digest: bytes
    roles: frozenset[Role]
    tenants: frozenset[str] | None = None
    quotas: Quotas = UNBOUNDED


def digest_of(secret: bytes) -> bytes:
    return sha256(secret).digest()


def hash_text(secret: str) -> str:
    """As it stands in the file of keys."""
    return HASH_PREFIX + digest_of(secret.encode()).hex()
