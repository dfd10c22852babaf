"""State of a rank's event stream, and the changes that a batch or a loss makes.

`event_feed` decides which changes happen.
"""

from indexer.events.batch_scratch import BatchScratch
from indexer.events.event_cursor import EventCursor
from indexer.events.event_types import Batch
from indexer.events.fault_notices import StreamFault
from indexer.events.gap_recovery import GapRecovery, WaitingBatches
from indexer.events.indexed_stream import IndexedStream
from indexer.events.kv_event_source import KvSource
from indexer.events.replay_actions import Action
from indexer.events.replay_schedule import ReplaySchedule
from indexer.events.step_runner import StepRunner, Steps, Work
from indexer.events.stream_consistency import StreamConsistency
from indexer.events.uncertainty import (
    KnownLoss,
    Uncertainty,
)

WAITING_TEXT = "batches before the last one are missing so far"


class FeedState:
    """State of a stream.  Counters only grow."""

    def __init__(self, source: KvSource, scratch: BatchScratch | None = None) -> None:
        """scratch: scratch memory shared by all feeds of a thread"""
        self.indexed = IndexedStream(source, scratch or BatchScratch())
        self._can_replay = source.replay_endpoint is not None
        self._consistency = StreamConsistency(self._can_replay)
        self._may_doubt = True
        """Whether events may be missing, or the index still shows such a doubt."""
        self._schedule = ReplaySchedule(self._can_replay)
        self.cursor = EventCursor()
        self._now = float("-inf")
        """Time of the present call."""
        self.steps = StepRunner()
        self._waiting = WaitingBatches()
        self._recovery: GapRecovery | None = None
        self._suspect = b""
        """Payload of the message that may begin a new life, according to the cursor."""
        self.last_event_at: float | None = None
        self.gaps = 0
        self.replayed = 0
        self.lost = 0
        self.stale = 0
        self.restarts = 0
        self.inflations = 0

    # State for other modules: status and timers of the listener.

    @property
    def doubt(self) -> Uncertainty | None:
        return self._consistency.doubt

    @property
    def degraded(self) -> KnownLoss | None:
        return self._consistency.degraded

    @property
    def is_catching_up(self) -> bool:
        """True while batches known to exist are still to come."""
        learns = self._recovery is not None and self._recovery.has_helped
        return bool(self._waiting) or (learns and self.doubt is None)

    @property
    def is_requesting(self) -> bool:
        """True while a replay is requested, or will be as soon as allowed."""
        return self._recovery is not None

    @property
    def has_seen_nothing(self) -> bool:
        """True if nothing has come, neither live nor by a replay or a dump."""
        return self.last_event_at is None and self.cursor.next_seq == 0

    @property
    def is_busy(self) -> bool:
        return self.steps.is_busy

    @property
    def wake_at(self) -> float | None:
        """Time of the next `tick`; None while nothing is pending."""
        if self._recovery is not None:
            return self._recovery.wake_at
        is_inflated = self.indexed.applier.copies.inflated_rank is not None
        return self._now if is_inflated else self._schedule.due_at

    def close(self) -> None:
        """Stop unfinished work; the index stays consistent."""
        self.steps.close()

    def check_invariants(self) -> None:
        self.cursor.check_invariants()
        self._waiting.check_invariants()
        if self.is_busy:
            return
        assert self._recovery is not None or not self._waiting
        assert not self._waiting or self._gap_end() > self.cursor.next_seq
        last = self.indexed.last_batch
        assert last is None or last.seq == self.cursor.next_seq - 1

    def _run(self, work: Work | Steps) -> Action:
        action = self.steps.run_step(work)
        self._show_doubt()
        return action

    def _show_doubt(self) -> None:
        reason = self._consistency.reason
        if reason is None and self._waiting:
            reason = WAITING_TEXT
        self.indexed.set_doubt(reason)
        # A change may have to wait for a clear of the rank.
        self._may_doubt = (reason or self.indexed.applier.groups.shown_doubt) is not None

    # Changes of the index.

    def _record_loss(self, until: int, why: str) -> None:
        lost = f"batches {self.cursor.next_seq} to {until - 1}: {why}"
        self.lost += self.cursor.skip_to(until)
        self.indexed.mark_lost()
        self._consistency.on_lost(lost, self._now)
        self._add_notice(StreamFault.LOST, lost)

    def _advance_cursor(self, seq: int, payload: bytes, live_at: float | None) -> None:
        self.cursor.advance(seq)
        self.indexed.advance(seq, payload, live_at)

    def _apply_payload(self, payload: bytes, seq: int | None) -> Steps:
        batch = yield from self.indexed.decode_in_steps(payload, self._now)
        if (yield from self.indexed.apply_in_steps(batch, seq)):
            self._consistency.on_emptied()

    def _apply_next(self, batch: Batch | None, seq: int, payload: bytes) -> Work:
        # Batch 0 begins a life: blocks of unknown origin, loaded from a dump, cannot belong to it.
        if seq == 0:
            yield from self.indexed.forget_unpositioned_in_steps()
        if (yield from self.indexed.apply_in_steps(batch, seq)):
            self._consistency.on_emptied()
        self._advance_cursor(seq, payload, self._now)
        self._consistency.on_next_applied()
        return None

    def _add_notice(self, fault: StreamFault, detail: str) -> None:
        self.indexed.notices.add_notice(fault, detail, self._now)

    def _reset_for_new_incarnation(self, reason: str) -> Steps:
        """Discard the state of the engine's old life and begin a new life."""
        self.restarts += 1
        self._add_notice(StreamFault.RESTARTED, reason)
        yield from self._forget_all()

    def _forget_all(self) -> Steps:
        """Return to the state before the first batch."""
        self._waiting.clear()
        self._suspect = b""
        self._consistency.on_forgotten()
        self.cursor.restart()
        yield from self.indexed.forget_in_steps()

    def _mark_interrupted(self) -> None:
        if not self.has_seen_nothing:
            self._consistency.on_interrupted(self.indexed.last_batch, self._now)

    def _gap_end(self) -> int:
        """Return the live number that ends the open gap: the first of the waiting batches."""
        seq = self._waiting[0][0]
        assert seq is not None
        return seq
