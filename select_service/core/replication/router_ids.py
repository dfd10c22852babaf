"""Router ids of processes in replication messages, new at each start.

With replica keys the upper half of an id is a hash of the public key, and only the lower half is
random. The key of a connection therefore determines which router ids may appear on it, also after
a restart.
"""

from hashlib import sha256
from random import Random

CHOSEN_BITS = 32


def key_mark_of(public_key: str) -> int:
    """Return a 32-bit hash of a public key, never 0."""
    return int.from_bytes(sha256(public_key.encode()).digest()[: CHOSEN_BITS // 8]) or 1


def new_router_id(rng: Random, mark: int | None) -> int:
    """Return a new router id, never 0.

    mark: hash of our public key; None without keys
    """
    if mark is None:
        return rng.getrandbits(64) or 1
    # 32 random bits are enough to distinguish the processes of a key over time.
    return mark << CHOSEN_BITS | rng.getrandbits(CHOSEN_BITS)


def has_mark(router_id: int, mark: int) -> bool:
    return router_id >> CHOSEN_BITS == mark
