"""Router ids: under which a process speaks to other replicas, new at each start.

Where replicas have keys the upper half of an id is a mark of the key, and the lower half alone is
chosen.  So whoever knows with which key a connection was made knows all router ids that may come
over it, after a restart too, and nothing has to be learnt.
"""

from hashlib import sha256
from random import Random

CHOSEN_BITS = 32


def mark_of(public_key: str) -> int:
    """Of a key, 32 bits that are never all 0."""
    return int.from_bytes(sha256(public_key.encode()).digest()[: CHOSEN_BITS // 8]) or 1


def new_router_id(rng: Random, mark: int | None) -> int:
    """Never 0.  mark: of our key; None: there is none."""
    if mark is None:
        return rng.getrandbits(64) or 1
    return mark << CHOSEN_BITS | rng.getrandbits(CHOSEN_BITS)


def has_mark(router_id: int, mark: int) -> bool:
    return router_id >> CHOSEN_BITS == mark
