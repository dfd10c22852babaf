"""Am I still where the engine is?  Why that may be uncertain, or false, and how it is found out.

A rank's index is right as long as every batch of the engine's present life was applied in order.
The sequence numbers of live batches show a loss and some restarts, but only once the engine speaks,
and an engine that comes back with numbers above the old ones looks like a loss.  So whenever
batches may have been missed unseen, the rank is in doubt, and the engine's replay endpoint is asked
from the last batch that was applied on (not from the next one):

* it answers with the same payload at that number: the same life, and the rest of the answer is what
  followed;
* with another payload, or with nothing although buffers drop the oldest first: a new life;
* it begins later: nothing can be compared any more, so what the index has is not believed.

In the last two cases the rank is forgotten and learned anew from what the engine still has.
"""

from enum import Enum, StrEnum
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

DIGESTED_BYTES_MAX = 64 * 1024
"""Of each end of a payload; its time stamp, events and rank are among them."""


class Why(Enum):
    """What made it uncertain.  The values are shown to operators."""

    RESUMED = "its blocks come from a dump, and what followed is not known yet"
    INTERRUPTED = "its connection was interrupted, and what was published meanwhile is not known"
    INFLATED = "it announced more copies than it has blocks, and is learned anew without counting"
    SILENT = "its replay endpoint did not answer whether anything is missing"


class Missing(StrEnum):
    """What made it certain.  The values are shown to operators."""

    NO_REPLAY = "there is no replay endpoint"
    UNHELPFUL = "the replay endpoint was of no help"
    GONE = "the engine does not have them any more"
    INFLATED = (
        "it announced more copies than it has blocks; what it held is forgotten, since there is no "
        "replay endpoint to learn it anew from"
    )


class Degraded(NamedTuple):
    """Batches of the rank are known to be missing: why, as operators are told, and since when, in
    monotonic seconds."""

    why: str
    since: float


class Anchor(NamedTuple):
    """One applied batch; digest: of its payload, None when that is not known."""

    seq: int
    digest: int | None


class Doubt(NamedTuple):
    """since: monotonic seconds.

    anchor: the last batch applied before the doubt began; None: the last one, whichever it is.
    """

    why: Why
    since: float
    anchor: Anchor | None


def payload_digest(payload: bytes | memoryview) -> int:
    """u64 by which a batch is known again; O(1) for the longest ones."""
    if len(payload) <= 2 * DIGESTED_BYTES_MAX:
        return xxh3_64_intdigest(payload)
    ends = bytes(payload[:DIGESTED_BYTES_MAX]) + bytes(payload[-DIGESTED_BYTES_MAX:])
    return xxh3_64_intdigest(ends, seed=len(payload))
