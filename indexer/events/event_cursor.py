"""Position in a rank's sequence numbers: whether a live message is next, a gap, or a restart.

Numbers only; payloads, replays and the index belong to `feed`.

An engine numbers batches 0, 1, 2, ..., from 0 again after a restart.  Two marks distinguish the
cases.  `next_seq` is one past the highest number applied or given up, live or by replay.
`_live_next` is one past the highest number seen live.  A live stream never steps back by itself,
so a live number below `_live_next` is either a late copy or a new life of the engine:

* 0 is a new life at once.  (After a copy of the very first batch, forgetting the rank and applying
that batch again leads to the same state.)
* Any other number is only suspected.  The next live message confirms the new life if that message
carries the following number.  A late copy comes alone, or the continued stream follows, so there
is no confirmation; two late copies with adjacent numbers back to back would confirm.  Then the
rank is forgotten and replayed from 0, which costs work but no correctness.

A live number above 0 below `next_seq` that is not below `_live_next` is neither: a replay, or the
copy of another index, was faster.  The exception is a new life with a missed start: the payload of
the last number shows which (`feed`).

A restart whose first visible number is above all earlier numbers looks like a loss.
"""

from enum import Enum, auto

END_OF_REPLAY = 2**64 - 1
"""Number that ends a replay in both engines, and is unused in live streams."""
IN_SYNC_MAX = 2**62
"""Limit for compiled code, which counts in signed numbers."""
JUMP_MAX = 2**40
"""Limit of a plausible loss: a thousand batches per second for 34 years."""


class SequenceVerdict(Enum):
    """Meaning of a live sequence number."""

    NEXT = auto()
    AHEAD = auto()
    """Newest of the stream, with a gap before it."""
    STALE = auto()
    """A replay has delivered this batch already."""
    SUSPECT = auto()
    """A late copy, or the first sign of a restart: keep the message until the next."""
    RESTART = auto()
    """The engine started again; except for number 0, the suspect before is of the new life, too."""
    UNPLACED = auto()
    """The number has no place in the stream: apply the batch, leave the cursor."""


class EventCursor:
    """Position in a rank's stream.  All numbers are u64."""

    def __init__(self) -> None:
        self.next_seq = 0
        self._live_next = 0
        self._suspect: int | None = None
        self._unplaced: int | None = None

    @property
    def last_sequence(self) -> int | None:
        """Highest number applied or given up; None before the first."""
        return self.next_seq - 1 if self.next_seq else None

    @property
    def is_in_sync(self) -> bool:
        """True if `next_seq` and all following numbers will be `SequenceVerdict.NEXT`."""
        return self._live_next <= self.next_seq <= IN_SYNC_MAX

    def advance_many(self, batches: int) -> None:
        """Advance over live numbers from `next_seq` on, all applied.  Requires `is_in_sync`."""
        self.next_seq += batches
        self._live_next = self.next_seq
        self._suspect = self._unplaced = None

    def observe(self, seq: int) -> SequenceVerdict:
        """Judge a live number.  The caller must `advance` once the batch is applied."""
        seen = max(self.next_seq, self._live_next)
        if seq >= seen:
            return self._observe_new(seq, seen)
        self._unplaced = None
        if seq >= self._live_next and seq > 0:
            self._live_next = seq + 1
            self._suspect = None
            return SequenceVerdict.STALE
        if seq == 0 or seq - 1 == self._suspect:
            return SequenceVerdict.RESTART
        self._suspect = seq
        return SequenceVerdict.SUSPECT

    def _observe_new(self, seq: int, seen: int) -> SequenceVerdict:
        self._suspect = None
        # An absurd jump needs confirmation by the next number: after a damaged or hostile number
        # everything would look old.
        confirmed = self._unplaced is not None and seq == self._unplaced + 1
        if seq == END_OF_REPLAY or (seq - seen > JUMP_MAX and not confirmed):
            self._unplaced = seq
            return SequenceVerdict.UNPLACED
        self._unplaced = None
        self._live_next = seq + 1
        return SequenceVerdict.NEXT if seq == self.next_seq else SequenceVerdict.AHEAD

    def advance(self, seq: int) -> None:
        """Record that batch `seq` is applied; earlier batches are refused from now on."""
        assert self.next_seq <= seq < END_OF_REPLAY
        self.next_seq = seq + 1

    def skip_to(self, seq: int) -> int:
        """Give up everything before `seq`.  Return the number of batches skipped."""
        skipped = seq - self.next_seq
        assert skipped >= 0
        self.next_seq = seq
        return skipped

    def resume(self, next_seq: int, *, nothing_older_comes: bool) -> None:
        """Begin at a place; the batches before are in the index already.

        nothing_older_comes: True if the subscription starts only now, so that a live number below
        `next_seq` shows a restart; else a message may have waited since before the index was
        copied.
        """
        self.restart()
        self.next_seq = next_seq
        self._live_next = next_seq if nothing_older_comes else 0

    def restart(self) -> None:
        """Begin a new life, in which nothing has been seen."""
        self.next_seq = 0
        self._live_next = 0
        self._suspect = None
        self._unplaced = None

    def check_invariants(self) -> None:
        assert 0 <= self.next_seq <= END_OF_REPLAY
        assert 0 <= self._live_next <= END_OF_REPLAY
        assert self._suspect is None or 0 < self._suspect < self._live_next
