"""Recovery of a gap by a replay: time limits of the answer, and the live batches that wait.

A replay request closes a gap that a live batch has shown, or checks for a gap (`doubt`).  Live
batches must not overtake replayed ones: a replayed removal applied after a younger store of the
same block would leave the index wrong for good.  So live batches wait, within these limits:

* FRAME_S_MAX without any frame of the replay: the endpoint is dead;
* STALL_S_MAX without a batch that closes some of the gap: the answer does not fit the request;
* TOTAL_S_MAX in all, for a replay that makes progress all the time;
* ATTEMPTS_MAX replays in a row that end without progress, BACKOFF_S, 2 BACKOFF_S, ... apart;
* WAITING_BATCHES_MAX or WAITING_BYTES_MAX of live batches.

Beyond a limit the rest of the gap is lost and the live batches are applied.  A live batch only
waits if an earlier batch is missing; a check without a known gap delays nothing.  A dead or useless
endpoint gets no requests for PROBE_S; gaps in that time are lost at once.  A live batch is
therefore visible after 2 s at the latest with a dead replay endpoint (and at once for the next
30 s), after 5 s with a useless answer, after 60 s with a replay that really is that long.

Time is an argument everywhere: `now`, monotonic seconds.
"""

from collections import deque
from enum import Enum, auto

from indexer.events.uncertainty import ReplayAnchor

FRAME_S_MAX = 2.0
STALL_S_MAX = 5.0
TOTAL_S_MAX = 60.0
PROBE_S = 30.0
ATTEMPTS_MAX = 3
BACKOFF_S = 0.05
WAITING_BATCHES_MAX = 100_000
WAITING_BYTES_MAX = 64 * 2**20


class RecoveryPhase(Enum):
    LISTENING = auto()
    """A replay is requested, and frames are expected."""
    BACKING_OFF = auto()
    """The last attempt ended early, or none was made yet; the next is due at `wake_at`."""
    GIVEN_UP = auto()
    """No answer came; the waiting batches are being applied."""


class DueAction(Enum):
    """Action that the passing of time requires."""

    NOTHING = auto()
    RETRY = auto()
    GIVE_UP = auto()


class GapRecovery:
    """Episode of recovery: from the first gap until no live batch waits, or from request to
    answer.
    """

    def __init__(self, now: float) -> None:
        self.phase = RecoveryPhase.LISTENING
        self.anchor: ReplayAnchor | None = None
        """Batch that the answer must begin with; None after that, or if no batch is known."""
        self.has_helped = False
        """True once a batch of an answer was applied."""
        self.saw_other_rank = False
        """True if a batch of this attempt had another rank: the endpoint belongs to another
        engine.
        """
        self._hole_at: int | None = None
        self._fruitless_attempts = 0
        self._has_progressed = False
        self._total_until = now + TOTAL_S_MAX
        self._stalled_at = now + STALL_S_MAX
        self._due = now + FRAME_S_MAX

    @property
    def wake_at(self) -> float:
        """Time of the next `due_action` check."""
        return min(self._due, self._stalled_at, self._total_until)

    def has_time_left(self, now: float) -> bool:
        """Return whether there is time for another gap in this episode."""
        return now < self._total_until

    def aim_at_next_gap(self, now: float) -> None:
        """Prepare a fresh replay for another gap of the same episode."""
        self._fruitless_attempts = 0
        self._stalled_at = now + STALL_S_MAX
        self.phase = RecoveryPhase.BACKING_OFF
        self._due = now

    def postpone(self, now: float, seconds: float) -> None:
        """Void the present request and repeat it after `seconds`."""
        self.aim_at_next_gap(now)
        self._due = now + seconds

    def start_listening(self, now: float, anchor: ReplayAnchor | None) -> None:
        """Record a replay request; anchor: first requested batch, None if none is known."""
        self.anchor = anchor
        self.phase = RecoveryPhase.LISTENING
        self._has_progressed = False
        self.saw_other_rank = False
        self._due = now + FRAME_S_MAX

    def note_frame(self, now: float) -> None:
        """Record a well-formed frame of the replay, useful or not."""
        self._due = now + FRAME_S_MAX

    def note_progress(self, now: float) -> None:
        """Record a frame that closed some of the gap."""
        self._has_progressed = self.has_helped = True
        self._fruitless_attempts = 0
        self._stalled_at = now + STALL_S_MAX

    def is_repeated_hole(self, seq: int) -> bool:
        """Return whether the last attempt missed batch `seq`, too: then the engine has lost the
        batch.
        """
        again = self._hole_at == seq
        self._hole_at = seq
        return again

    def note_failed_attempt(self, now: float) -> bool:
        """Record an attempt that ended early.  Return True for another after a pause, False
        to give up.
        """
        if not self._has_progressed:
            self._fruitless_attempts += 1
        useless = self.saw_other_rank and not self._has_progressed
        if useless or self._fruitless_attempts >= ATTEMPTS_MAX:
            return False
        self.phase = RecoveryPhase.BACKING_OFF
        self._due = now + BACKOFF_S * 2**self._fruitless_attempts
        return True

    def due_action(self, now: float) -> DueAction:
        """Return the action due at `now`; silence after progress earns another attempt."""
        if now >= self._stalled_at or now >= self._total_until:
            return DueAction.GIVE_UP
        if now < self._due:
            return DueAction.NOTHING
        if self.phase is RecoveryPhase.BACKING_OFF or self._has_progressed:
            return DueAction.RETRY
        return DueAction.GIVE_UP


class WaitingBatches:
    """Queue of live batches in order of arrival, (sequence number or None, payload)."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int | None, bytes]] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, place: int) -> tuple[int | None, bytes]:
        return self._batches[place]

    def append(self, seq: int | None, payload: bytes) -> None:
        self._batches.append((seq, payload))
        self._bytes += len(payload)

    def popleft(self) -> bytes:
        payload = self._batches.popleft()[1]
        self._bytes -= len(payload)
        return payload

    def clear(self) -> None:
        self._batches.clear()
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self._batches) >= WAITING_BATCHES_MAX or self._bytes >= WAITING_BYTES_MAX

    def check_invariants(self) -> None:
        assert self._bytes == sum(len(payload) for _, payload in self._batches)
