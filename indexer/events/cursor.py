"""One rank's sequence numbers: which live message comes next, which shows a gap, which a restart.

Numbers only; payloads, replays and the index are the business of `feed`.

An engine numbers its batches 0, 1, 2, ... and starts at 0 again when it restarts.  Two marks tell
the cases apart.  `next_seq` is one past the highest number that is applied or given up, whether it
came live or by replay.  `_live_next` is one past the highest number seen live.  A live stream
never steps back by itself, so a live number below `_live_next` is either a late copy or a new life
of the engine:

* 0 is a new life at once.  (If it was a copy of the very first batch after all, forgetting the
  rank and applying that batch again leads to the same place.)
* Any other is only suspected.  The new life is believed when the very next live message carries
  the following number.  A late copy is alone, or is followed by the stream where it was, so it
  never gets that far; two late copies with adjacent numbers back to back would.  Then the
  rank is forgotten and replayed from 0, which costs work but no correctness.

A live number above 0 below `next_seq` that is not below `_live_next` is neither: a replay, or the
copy of another index, was faster.  Unless it is a new life that began unheard: the payload of the
last number shows which (`feed`).

A restart whose first visible number lies above everything seen cannot be told from a loss.
"""

from enum import Enum, auto

END_OF_REPLAY = 2**64 - 1
"""2**64-1 ends a replay in both engines, so it is no place in the live stream."""
EVEN_MAX = 2**62
"""Compiled code counts in signed numbers."""
JUMP_MAX = 2**40
"""Batches that could possibly be lost at once: a thousand per second for 34 years."""


class Verdict(Enum):
    """What a live sequence number means."""

    NEXT = auto()
    AHEAD = auto()
    """Newest of the stream, and something is missing before it."""
    STALE = auto()
    """A replay brought it already."""
    SUSPECT = auto()
    """A late copy, or the first sign of a restart: keep the message until the next one."""
    RESTART = auto()
    """The engine started again; for any number but 0 the suspect before it belongs to it."""
    UNPLACED = auto()
    """The number is no place in the stream: apply the batch, the cursor stays."""


class EventCursor:
    """The place of one rank's stream.  All numbers are u64."""

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
    def is_even(self) -> bool:
        """Will the next number be `Verdict.NEXT` if it is `next_seq`, and those that follow it?"""
        return self._live_next <= self.next_seq <= EVEN_MAX

    def follow(self, batches: int) -> None:
        """So many live numbers from `next_seq` on: all are applied.  `is_even` was true."""
        self.next_seq += batches
        self._live_next = self.next_seq
        self._suspect = self._unplaced = None

    def observe(self, seq: int) -> Verdict:
        """Judge one live number.  The caller says `advance` when it has applied the batch."""
        seen = max(self.next_seq, self._live_next)
        if seq >= seen:
            return self._observe_new(seq, seen)
        self._unplaced = None
        if seq >= self._live_next and seq > 0:
            self._live_next = seq + 1
            self._suspect = None
            return Verdict.STALE
        if seq == 0 or seq - 1 == self._suspect:
            return Verdict.RESTART
        self._suspect = seq
        return Verdict.SUSPECT

    def _observe_new(self, seq: int, seen: int) -> Verdict:
        self._suspect = None
        # An absurd jump is not believed until the next number confirms it: one damaged or hostile
        # number must not make everything after it look old.
        confirmed = self._unplaced is not None and seq == self._unplaced + 1
        if seq == END_OF_REPLAY or (seq - seen > JUMP_MAX and not confirmed):
            self._unplaced = seq
            return Verdict.UNPLACED
        self._unplaced = None
        self._live_next = seq + 1
        return Verdict.NEXT if seq == self.next_seq else Verdict.AHEAD

    def advance(self, seq: int) -> None:
        """The batch `seq` is applied; nothing before it will be any more."""
        assert self.next_seq <= seq < END_OF_REPLAY
        self.next_seq = seq + 1

    def skip_to(self, seq: int) -> int:
        """Give up everything before `seq`.  Returns how many batches that is."""
        skipped = seq - self.next_seq
        assert skipped >= 0
        self.next_seq = seq
        return skipped

    def resume(self, next_seq: int, *, nothing_older_comes: bool) -> None:
        """The batches before `next_seq` are in the index already.

        nothing_older_comes: the stream is listened to only now, so that a live number below
        `next_seq` shows a restart; else it may have waited since before the index was copied.
        """
        self.restart()
        self.next_seq = next_seq
        self._live_next = next_seq if nothing_older_comes else 0

    def restart(self) -> None:
        """A new life: nothing is seen yet."""
        self.next_seq = 0
        self._live_next = 0
        self._suspect = None
        self._unplaced = None

    def check_invariants(self) -> None:
        assert 0 <= self.next_seq <= END_OF_REPLAY
        assert 0 <= self._live_next <= END_OF_REPLAY
        assert self._suspect is None or 0 < self._suspect < self._live_next
