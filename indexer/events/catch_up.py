"""One question to the replay endpoint: how long an answer is awaited, and the batches that wait.

A question closes a gap that a live batch has shown, or finds out whether there is one (`doubt`).

Live batches must not overtake replayed ones: a replayed removal applied after a younger store of
the same block would leave the index wrong for good.  So they wait, and every wait is bounded:

* FRAME_S_MAX without any frame of the replay: the endpoint is dead;
* STALL_S_MAX without a batch that closes some of the gap: it answers, but not what was asked;
* TOTAL_S_MAX in all, for a replay that makes progress all the time;
* ATTEMPTS_MAX replays in a row that end without progress, BACKOFF_S, 2 BACKOFF_S, ... apart;
* WAITING_BATCHES_MAX or WAITING_BYTES_MAX of live batches.

Then the rest of the gap is lost and the live batches are applied.  A live batch only waits when one
before it is missing; a question about nothing in particular delays nobody.  A dead or useless
endpoint is left alone for PROBE_S; gaps in that time are lost at once.  A live batch is therefore
visible after 2 s at the latest when the replay endpoint is dead (and at once for the next 30 s),
after 5 s when it answers nonsense, after 60 s when it really has that much to say.

Time is an argument everywhere: `now`, monotonic seconds.
"""

from collections import deque
from enum import Enum, auto

from indexer.events.doubt import Anchor

FRAME_S_MAX = 2.0
STALL_S_MAX = 5.0
TOTAL_S_MAX = 60.0
PROBE_S = 30.0
ATTEMPTS_MAX = 3
BACKOFF_S = 0.05
WAITING_BATCHES_MAX = 100_000
WAITING_BYTES_MAX = 64 * 2**20


class Phase(Enum):
    LISTENING = auto()
    """A replay is asked for; its frames are awaited."""
    BACKING_OFF = auto()
    """The last attempt ended early, or none was made yet; the next is due at `wake_at`."""
    GIVEN_UP = auto()
    """No answer; what waits is being applied."""


class Due(Enum):
    """What time has brought."""

    NOTHING = auto()
    RETRY = auto()
    GIVE_UP = auto()


class CatchUp:
    """One episode: from the first gap until no live batch waits, or from question to answer."""

    def __init__(self, now: float) -> None:
        self.phase = Phase.LISTENING
        self.anchor: Anchor | None = None
        """What the answer has to begin with; None when it did, or when nothing is known."""
        self.has_helped = False
        """Some batch of an answer was applied."""
        self.saw_other_rank = False
        """A batch of this attempt belonged to another rank: it is another engine's endpoint."""
        self._hole_at: int | None = None
        self._fruitless = 0
        self._progressed = False
        self._total_until = now + TOTAL_S_MAX
        self._stalled_at = now + STALL_S_MAX
        self._due = now + FRAME_S_MAX

    @property
    def wake_at(self) -> float:
        """When `due` should be asked next."""
        return min(self._due, self._stalled_at, self._total_until)

    def may_go_on(self, now: float) -> bool:
        """Is there time for one more gap in this episode?"""
        return now < self._total_until

    def aim(self, now: float) -> None:
        """Another gap of the same episode is asked for next, with a fresh replay."""
        self._fruitless = 0
        self._stalled_at = now + STALL_S_MAX
        self.phase = Phase.BACKING_OFF
        self._due = now

    def put_off(self, now: float, seconds: float) -> None:
        """What was asked is void; it shall be asked again in a while."""
        self.aim(now)
        self._due = now + seconds

    def listen(self, now: float, anchor: Anchor | None) -> None:
        """A replay is asked for now, from the anchor on if there is one."""
        self.anchor = anchor
        self.phase = Phase.LISTENING
        self._progressed = False
        self.saw_other_rank = False
        self._due = now + FRAME_S_MAX

    def heard(self, now: float) -> None:
        """A well-formed frame of the replay came, useful or not."""
        self._due = now + FRAME_S_MAX

    def progressed(self, now: float) -> None:
        """A frame closed some of the gap."""
        self._progressed = self.has_helped = True
        self._fruitless = 0
        self._stalled_at = now + STALL_S_MAX

    def is_same_hole(self, seq: int) -> bool:
        """Did the last attempt miss the batch `seq` too?  Then the engine has it no more."""
        again = self._hole_at == seq
        self._hole_at = seq
        return again

    def attempt_failed(self, now: float) -> bool:
        """The attempt ended early.  True: another follows after a while; False: give up."""
        if not self._progressed:
            self._fruitless += 1
        useless = self.saw_other_rank and not self._progressed
        if useless or self._fruitless >= ATTEMPTS_MAX:
            return False
        self.phase = Phase.BACKING_OFF
        self._due = now + BACKOFF_S * 2**self._fruitless
        return True

    def due(self, now: float) -> Due:
        """What to do at `now`; silence after progress earns one more attempt."""
        if now >= self._stalled_at or now >= self._total_until:
            return Due.GIVE_UP
        if now < self._due:
            return Due.NOTHING
        if self.phase is Phase.BACKING_OFF or self._progressed:
            return Due.RETRY
        return Due.GIVE_UP


class Waiting:
    """Live batches in the order they came, (sequence number or None, payload)."""

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
