"""One rank's event stream: (sequence number, payload) -> index changes, or a replay to ask for.

Decides what is applied, when, and what is lost; every batch is applied at most once and in order.
Sockets, threads and log lines are in `ingest`, which does what the returned `Action` says and
hands the frames of a replay back.  Time is an argument: `now`, monotonic seconds.

Degraded means: the index may lack events of this rank, because batches were lost.  A later replay
cannot mend that, since old events must not be applied over younger ones.  It ends when the rank is
known to hold nothing: AllBlocksCleared, or a restart.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from indexer.events.batch_applier import BatchApplier
from indexer.events.catch_up import PROBE_S, CatchUp, Due, Phase, Waiting
from indexer.events.cursor import END_OF_REPLAY, EventCursor, Verdict
from indexer.events.kv_events import Batch, DecodeError, decode
from indexer.events.kv_source import KvSource
from indexer.index.prefix_index import SlotWriter
from indexer.index.snapshot import Place

NOTICE_INTERVAL_S = 60.0
"""Notices of one kind are at least this far apart, whatever the stream does."""


@dataclass(frozen=True, slots=True)
class StartReplay:
    """Ask for every batch from `start` on, over a fresh socket; an older replay is void."""

    start: int


@dataclass(frozen=True, slots=True)
class StopReplay:
    """No replay is wanted any more."""


Action: TypeAlias = StartReplay | StopReplay | None


class Fault(Enum):
    """What an operator should hear of, once per episode."""

    LOST = "KV events lost"
    REPLAY_FAILED = "KV event replay failed"
    RESTARTED = "Engine restarted, its blocks are forgotten"
    UNREADABLE = "KV events unreadable"


class EventFeed:
    """The stream of one rank.  Counters only grow."""

    def __init__(self, source: KvSource) -> None:
        self.writers: Mapping[int, SlotWriter] = source.writers
        self._dp_rank = source.dp_rank
        self._can_replay = source.replay_endpoint is not None
        self.cursor = EventCursor()
        self.applier = BatchApplier(
            source.dp_rank, source.block_size, source.is_eagle, source.counted
        )
        self._waiting = Waiting()
        self._catch_up: CatchUp | None = None
        self._resumed = Place(0)
        """Where another index had come to, whose blocks the own slot began with."""
        self._suspect = b""
        """Payload of the message the cursor suspects to begin a new life."""
        self._no_replay_before = float("-inf")
        self._noticed: dict[Fault, float] = {}
        self._notices: dict[Fault, str] = {}
        self.degraded = False
        self.last_event_at: float | None = None
        self.batches = 0
        self.gaps = 0
        self.replayed = 0
        self.lost = 0
        self.stale = 0
        self.restarts = 0
        self.decode_errors = 0
        self.last_error: str | None = None

    @property
    def catching_up(self) -> bool:
        return self._catch_up is not None

    @property
    def wake_at(self) -> float | None:
        """When `tick` should be called next; None while nothing is pending."""
        return None if self._catch_up is None else self._catch_up.wake_at

    def begin(self, *, nothing_older_comes: bool) -> None:
        """To be called once, before the first batch: go on at the place of the own slot, if any.

        nothing_older_comes: no batch sent before now will be received.
        """
        own = self.writers.get(self._dp_rank)
        if own is not None and own.place is not None:
            self._resumed = own.place
            self.cursor.resume(own.place.next_seq, nothing_older_comes=nothing_older_comes)

    def receive(self, seq: int, payload: bytes, now: float) -> Action:
        """One live batch."""
        self.last_event_at = now
        verdict = self.cursor.observe(seq)
        if verdict is Verdict.NEXT and self._catch_up is None:
            if seq == 0:
                self._forget_unplaced()
            self._apply(payload, now, seq)
            self._advance(seq, now)
            return None
        if verdict is Verdict.RESTART:
            return self._restart(seq, payload, now)
        if verdict is Verdict.STALE or verdict is Verdict.SUSPECT:
            self.stale += 1
            self._suspect = payload if verdict is Verdict.SUSPECT else b""
            return None
        self._waiting.append(None if verdict is Verdict.UNPLACED else seq, payload)
        if self._catch_up is None:
            self.gaps += verdict is Verdict.AHEAD
            return self._settle(now)
        if self._waiting.is_full:
            return self._give_up(now, "too many live batches are waiting")
        return None

    def receive_replayed(self, seq: int, payload: bytes, now: float) -> Action:
        """One batch of the replay last asked for; an empty payload ends it."""
        catch_up, cursor = self._catch_up, self.cursor
        if catch_up is None or catch_up.phase is not Phase.LISTENING:
            return None
        if not payload:
            return self._retry(catch_up, now, "it ended before the gap was closed")
        catch_up.heard(now)
        if seq < cursor.next_seq or seq == END_OF_REPLAY:
            return None
        batch = self._decoded(payload, now)
        if batch is not None and batch.data_parallel_rank not in (None, self._dp_rank):
            self.applier.dropped["replay_of_other_rank"] += 1
            catch_up.saw_other_rank = True
            return None
        if seq > cursor.next_seq:
            return self._hole(catch_up, seq, payload, now)
        self._apply_replayed(batch, seq)
        self._advance(seq, None)
        self.replayed += 1
        catch_up.progressed(now)
        return self._settle(now, replay_runs=True) if cursor.next_seq >= self._target() else None

    def replay_failed(self, reason: str, now: float) -> Action:
        """The replay could not even be asked for."""
        if self._catch_up is None:
            return None
        self._no_replay_before = now + PROBE_S
        return self._give_up(now, reason)

    def tick(self, now: float) -> Action:
        """Time passed.  Call it at `wake_at`, after handing over what has arrived."""
        catch_up = self._catch_up
        due = Due.NOTHING if catch_up is None else catch_up.due(now)
        if catch_up is None or due is Due.NOTHING:
            return None
        if due is Due.RETRY:
            catch_up.listen(now)
            return StartReplay(self.cursor.next_seq)
        self._no_replay_before = now + PROBE_S
        return self._give_up(now, "no useful answer in time")

    def take_notices(self) -> dict[Fault, str]:
        """What happened since the last call that an operator should hear of, in detail."""
        if not self._notices:
            return self._notices
        notices, self._notices = self._notices, {}
        return notices

    def check_invariants(self) -> None:
        self.cursor.check_invariants()
        self._waiting.check_invariants()
        assert (self._catch_up is None) == (not self._waiting)
        assert self._catch_up is None or self._target() > self.cursor.next_seq

    def _target(self) -> int:
        """The live number that ends the open gap: while one is open, it waits in front."""
        seq = self._waiting[0][0]
        assert seq is not None
        return seq

    def _settle(self, now: float, *, replay_runs: bool = False) -> Action:
        """Apply what waits, up to a gap that a replay may still close."""
        while self._waiting:
            seq, payload = self._waiting[0]
            if seq is not None and seq > self.cursor.next_seq:
                if replay_runs:
                    return None
                if self._may_ask(now):
                    return StartReplay(self.cursor.next_seq)
                self._lose(seq, now)
            self._waiting.popleft()
            if seq is None:
                self._apply(payload, now, None)
            elif seq == self.cursor.next_seq:
                self._apply(payload, now, seq)
                self._advance(seq, now)
            else:
                self.stale += 1
        own = self.writers.get(self._dp_rank)
        if own is not None:
            own.unplaced_blocks = False  # what the stream tells from here on is new
        was_catching_up, self._catch_up = self._catch_up is not None, None
        return StopReplay() if was_catching_up else None

    def _may_ask(self, now: float) -> bool:
        """May the gap in front be replayed?  If so, the waiting for it begins."""
        if not self._can_replay or now < self._no_replay_before:
            return False
        if self._catch_up is None:
            self._catch_up = CatchUp(now)
        elif self._catch_up.may_go_on(now):
            self._catch_up.aim(now)
        else:
            return False
        return True

    def _hole(self, catch_up: CatchUp, seq: int, payload: bytes, now: float) -> Action:
        """The replay left batches out: ask once more, then believe that they are gone."""
        missing = self.cursor.next_seq
        if not catch_up.is_same_hole(missing):
            return self._retry(catch_up, now, f"batch {missing} is missing")
        self._lose(min(seq, self._target()), now)
        action = self._settle(now, replay_runs=True)
        return action if self._catch_up is None else self.receive_replayed(seq, payload, now)

    def _retry(self, catch_up: CatchUp, now: float, reason: str) -> Action:
        return StopReplay() if catch_up.attempt_failed(now) else self._give_up(now, reason)

    def _give_up(self, now: float, reason: str) -> Action:
        """The open gap stays open: its batches are lost, the live ones go on."""
        self._notice(Fault.REPLAY_FAILED, reason, now)
        self._lose(self._target(), now)
        return self._settle(now)

    def _restart(self, seq: int, payload: bytes, now: float) -> Action:
        """Forget the old life; the suspect before any number but 0 belongs to the new one."""
        was_catching_up = self._catch_up is not None
        self.restarts += 1
        self._notice(Fault.RESTARTED, f"sequence number {seq} again", now)
        self.applier.forget(self.writers)
        self._waiting.clear()
        self._catch_up = None
        self._no_replay_before = float("-inf")
        self._resumed = Place(0)
        self.degraded = False
        self.cursor.restart()
        first = self.receive(seq - 1, self._suspect, now) if seq else None
        then = self.receive(seq, payload, now)
        self._suspect = b""
        return then or first or (StopReplay() if was_catching_up else None)

    def _lose(self, until: int, now: float) -> None:
        first = self.cursor.next_seq
        self.lost += self.cursor.skip_to(until)
        self.degraded = True
        self._notice(Fault.LOST, f"batches {first} to {until - 1}", now)

    def _advance(self, seq: int, live_at: float | None) -> None:
        """Batch `seq` is done with, whether it could be applied or not.

        live_at: now, unless it came by replay, which tells of the past.
        """
        self.cursor.advance(seq)
        own = self.writers.get(self._dp_rank)
        if own is not None:
            own.place = Place(seq + 1)
            if live_at is not None:
                own.live_at = live_at

    def _apply(self, payload: bytes, now: float, seq: int | None) -> None:
        batch = self._decoded(payload, now)
        if batch is not None:
            self._apply_batch(batch, seq)

    def _apply_batch(self, batch: Batch, seq: int | None) -> None:
        self.batches += 1
        skip = self._resumed.events if seq == self._resumed.next_seq else 0
        if self.applier.apply(batch, self.writers, seq, skip):
            self.degraded = False

    def _apply_replayed(self, batch: Batch | None, seq: int) -> None:
        """As `_apply_batch`; blocks of unknown place may be told of again, which must not count.

        A replay from the very first batch tells all of them: then they are forgotten instead.
        """
        if seq == 0:
            self._forget_unplaced()
        if batch is None:
            return
        own = self.writers.get(self._dp_rank)
        self.applier.takes_duplicates = own is None or not own.unplaced_blocks
        self._apply_batch(batch, seq)
        self.applier.takes_duplicates = True

    def _forget_unplaced(self) -> None:
        own = self.writers.get(self._dp_rank)
        if own is not None and own.unplaced_blocks:
            self.applier.forget(self.writers)

    def _decoded(self, payload: bytes, now: float) -> Batch | None:
        try:
            batch = decode(payload)
        except DecodeError as error:
            self._count_unreadable(1, str(error), now)
            return None
        if batch.bad_events:
            self._count_unreadable(batch.bad_events, batch.last_error, now)
        return batch

    def _count_unreadable(self, events: int, error: str | None, now: float) -> None:
        self.decode_errors += events
        self.last_error = error
        self._notice(Fault.UNREADABLE, error or "", now)

    def _notice(self, fault: Fault, detail: str, now: float) -> None:
        if now - self._noticed.get(fault, float("-inf")) >= NOTICE_INTERVAL_S:
            self._noticed[fault] = now
            self._notices[fault] = detail
