"""Doubt about a rank's index: reasons, and how a replay settles the question.

A rank's index is right if every batch of the engine's present life was applied in order.  The
sequence numbers of live batches show losses and some restarts, but only once the engine sends
again, and an engine that comes back with higher numbers looks like a loss.  So whenever batches
may have been missed unseen, the rank is in doubt, and a replay is requested from the last applied
batch on (not from the next).  The possible answers:

* the same payload at that number: the same life, and the rest of the answer is what followed;
* another payload, or none although buffers drop the oldest batches first: a new life;
* a later beginning: no comparison is possible, so the content of the index is not trusted.

In the last two cases the rank is forgotten and rebuilt from what the engine still has.
"""

from enum import Enum, StrEnum
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

DIGESTED_BYTES_MAX = 64 * 1024
"""Bytes hashed of each end of a payload, which include its time stamp, events and rank."""


class DoubtReason(Enum):
    """Reasons of uncertainty.  The values are shown to operators."""

    RESUMED = "its blocks come from a dump; later events are not verified yet"
    INTERRUPTED = "its connection was interrupted; events published meanwhile may be missing"
    INFLATED = "it announced more copies than it has blocks; rebuilding without counting copies"
    SILENT = "its replay endpoint did not answer, so events may be missing"


class LossReason(StrEnum):
    """Reasons of a known loss.  The values are shown to operators."""

    NO_REPLAY = "there is no replay endpoint"
    UNHELPFUL = "the replay endpoint could not provide them"
    GONE = "the engine no longer has them"
    INFLATED = (
        "it announced more copies than it has blocks; its blocks were removed from the index, and "
        "without a replay endpoint they cannot be recovered"
    )


class KnownLoss(NamedTuple):
    """State of a rank with batches known to be missing.

    reason: text for operators; since: monotonic seconds
    """

    reason: str
    since: float


class ReplayAnchor(NamedTuple):
    """Applied batch; digest: hash of the payload, None if unknown."""

    seq: int
    digest: int | None


class Uncertainty(NamedTuple):
    """State of a rank with an uncertain index.

    since:  monotonic seconds
    anchor: last batch applied before the doubt began; None stands for the last batch at any time
    """

    reason: DoubtReason
    since: float
    anchor: ReplayAnchor | None


def payload_digest(payload: bytes | memoryview) -> int:
    """Return a u64 that identifies a batch; O(1) for very long payloads."""
    if len(payload) <= 2 * DIGESTED_BYTES_MAX:
        return xxh3_64_intdigest(payload)
    ends = bytes(payload[:DIGESTED_BYTES_MAX]) + bytes(payload[-DIGESTED_BYTES_MAX:])
    return xxh3_64_intdigest(ends, seed=len(payload))
