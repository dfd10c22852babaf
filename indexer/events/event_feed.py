"""Event stream of a rank: from (sequence number, payload) to index changes, or replay requests.

Decides which batches are applied, when, and which are lost: every batch at most once, in order.
Sockets, threads and log lines are in `listener`, which carries out the returned `Action`, passes
the frames of a replay back and reports the connection.  Time is an argument: `now`, monotonic
seconds.

Work is done in steps of bounded cost.  A method may leave work undone: then the feed `is_busy`,
and only `continue_work` may be called until it is idle.

Degraded means: the index may lack events of this rank, because batches were lost.  A later replay
cannot repair that, since old events must not be applied over younger events.  The state ends when
the rank is known to hold nothing: AllBlocksCleared, or a restart.  In doubt means: no loss is
known, but one is possible (`doubt`).
"""

from indexer.events.event_cursor import END_OF_REPLAY, JUMP_MAX, SequenceVerdict
from indexer.events.fault_notices import StreamFault
from indexer.events.feed_state import FeedState
from indexer.events.gap_recovery import DueAction, GapRecovery, RecoveryPhase
from indexer.events.indexed_stream import SMALL_BYTES_MAX
from indexer.events.message_batch import MessageBatch
from indexer.events.replay_actions import Action, StartReplay, StopReplay
from indexer.events.replay_schedule import SETTLE_S
from indexer.events.step_runner import Steps, Work
from indexer.events.uncertainty import (
    LossReason,
    ReplayAnchor,
    payload_digest,
)


class EventFeed(FeedState):
    """Stream of a rank.  Counters only grow."""

    # Inputs: each call sets `_now` first, so that all steps see the same time.

    def begin(self, now: float, *, nothing_older_comes: bool) -> None:
        """Begin at the place of the own slot, if any.  Called once, before the first batch.

        nothing_older_comes: no batch sent before now will be received.
        """
        self._now = now
        self._run(self._begin_at_position(nothing_older_comes))

    def on_connected(self, now: float) -> Action:
        """Record a connection: live batches come from now on, and earlier batches may have been
        missed.
        """
        self._now = now
        self._mark_interrupted()
        self._show_doubt()
        self._schedule.on_connected(now)
        if self._recovery is None:
            return None
        # The request went to the previous connection, and the waiting batches came from there:
        # the engine still has all valid batches, and old batches must not mix with new batches.
        self._waiting.clear()
        self._recovery.postpone(now, SETTLE_S)
        return StopReplay()

    def on_disconnected(self, now: float) -> None:
        """Record the loss of the connection; nothing can come until the next `on_connected`."""
        self._now = now
        self._mark_interrupted()
        self._show_doubt()
        self._schedule.on_disconnected()

    def on_other_engine(self, reason: str, now: float) -> Action:
        """Record that the following live batches come from another engine."""
        self._now = now
        return self._run(self._begin_life(reason))

    def receive_run(self, run: MessageBatch, now: float) -> int:
        """Apply the leading usual batches that follow the applied batches; return the count.

        The next batch is for `receive`.
        """
        if self._recovery is not None or not self.cursor.is_in_sync:
            return 0
        n_applied = self.indexed.apply_run(run, self.cursor.next_seq, now)
        if n_applied:
            self._now = self.last_event_at = now
            self.cursor.advance_many(n_applied)
            self._consistency.on_next_applied()
            if self._may_doubt:
                self._show_doubt()
        if self.indexed.is_half_cleared:
            self._run(self.indexed.settle_in_steps())
        return n_applied

    def receive(self, seq: int, payload: bytes, now: float) -> Action:
        """Take a live batch."""
        self._now = self.last_event_at = now
        verdict = self.cursor.observe(seq)
        if (
            verdict is SequenceVerdict.NEXT
            and self._recovery is None
            and len(payload) <= SMALL_BYTES_MAX
        ):
            batch = self.indexed.decode_payload(payload, now)
            if self.indexed.apply_small(batch, seq, payload, now):
                self.cursor.advance(seq)
                self._consistency.on_next_applied()
                if self._may_doubt:
                    self._show_doubt()
                return None
            return self._run(self._apply_next(batch, seq, payload))
        return self._run(self._receive_judged(verdict, seq, payload))

    def receive_replayed(self, seq: int, payload: bytes, now: float) -> Action:
        """Take a batch of the latest replay, which an empty payload ends."""
        self._now = now
        return self._run(self._receive_replayed(seq, payload))

    def replay_failed(self, reason: str, now: float) -> Action:
        """Record that the replay could not even be requested."""
        self._now = now
        if self._recovery is None:
            return None
        self._schedule.pause_requests(now)
        return self._run(self._give_up(self._recovery, reason))

    def tick(self, now: float) -> Action:
        """Act on the time, at `wake_at`, after all arrived batches have been passed on."""
        self._now = now
        catch_up = self._recovery
        if catch_up is None and self.indexed.applier.copies.inflated_rank is not None:
            return self._run(self._stop_counting_copies())
        if catch_up is None:
            return self._request_when_due()
        due = catch_up.due_action(now)
        if due is DueAction.NOTHING:
            return None
        if due is DueAction.RETRY:
            return self._request_replay(catch_up)
        self._schedule.pause_requests(now)
        return self._run(self._give_up(catch_up, "no useful answer in time"))

    def continue_work(self, now: float) -> Action:
        """Run the next step of unfinished work."""
        self._now = now
        action = self.steps.continue_work()
        self._show_doubt()
        return action

    # Live batches.

    def _begin_at_position(self, nothing_older_comes: bool) -> Steps:
        place = yield from self.indexed.resume_in_steps()
        if place is not None:
            self.cursor.resume(place.next_seq, nothing_older_comes=nothing_older_comes)
        if place is not None or self.indexed.has_unpositioned_blocks:
            self._consistency.on_resumed(self.indexed.last_batch, self._now)

    def _receive_judged(self, verdict: SequenceVerdict, seq: int, payload: bytes) -> Work:
        if verdict is SequenceVerdict.UNPLACED and not self._waiting:
            yield from self._apply_payload(payload, None)
            return None
        if verdict is SequenceVerdict.NEXT and not self._waiting:
            batch = yield from self.indexed.decode_in_steps(payload, self._now)
            return (yield from self._apply_next(batch, seq, payload))
        if verdict is SequenceVerdict.RESTART:
            return (yield from self._restart_life(seq, payload, self._suspect if seq else None))
        if verdict is SequenceVerdict.STALE and self._is_other_batch(seq, payload):
            return (yield from self._restart_life(seq, payload, None))
        if verdict is SequenceVerdict.STALE or verdict is SequenceVerdict.SUSPECT:
            self.stale += 1
            self._suspect = payload if verdict is SequenceVerdict.SUSPECT else b""
            return None
        # A further batch behind an open gap is not another gap.
        self.gaps += not self._waiting
        self._waiting.append(None if verdict is SequenceVerdict.UNPLACED else seq, payload)
        if self._recovery is None:
            return (yield from self._apply_waiting())
        if self._waiting.is_full:
            return (yield from self._give_up(self._recovery, "limit of waiting batches reached"))
        return None

    def _is_other_batch(self, seq: int, payload: bytes) -> bool:
        """Return whether a replay brought another batch of this number; known for the last
        number only.
        """
        last = self.indexed.last_batch
        if last is None or last.seq != seq or last.digest is None:
            return False
        return last.digest != payload_digest(payload)

    def _restart_life(self, seq: int, payload: bytes, suspect: bytes | None) -> Work:
        """Forget the old life.  suspect: the batch before, if known to be of the new life"""
        stop = yield from self._begin_life(f"sequence number {seq} repeated")
        first = None
        if suspect is not None:
            first = yield from self._receive_again(seq - 1, suspect)
        then = yield from self._receive_again(seq, payload)
        return then or first or stop

    def _begin_life(self, reason: str) -> Work:
        """Forget the old life, and any request for more of the old life."""
        was_asking = self._recovery is not None
        yield from self._reset_for_new_incarnation(reason)
        self._recovery = None
        self._consistency.on_emptied()
        self._schedule.end_pause()
        return StopReplay() if was_asking else None

    def _receive_again(self, seq: int, payload: bytes) -> Work:
        self.last_event_at = self._now
        return (yield from self._receive_judged(self.cursor.observe(seq), seq, payload))

    def _apply_waiting(self, *, replay_runs: bool = False) -> Work:
        """Apply waiting batches, up to a gap that a replay may still close."""
        while self._waiting:
            seq, payload = self._waiting[0]
            if seq is not None and seq > self.cursor.next_seq:
                if replay_runs:
                    return None
                if self._may_request_gap():
                    return self._request_gap()
                self._record_loss(
                    seq, LossReason.UNHELPFUL if self._can_replay else LossReason.NO_REPLAY
                )
            self._waiting.popleft()
            if seq is None:
                yield from self._apply_payload(payload, None)
            elif seq == self.cursor.next_seq:
                yield from self._apply_payload(payload, seq)
                self._advance_cursor(seq, payload, self._now)
            else:
                self.stale += 1
                yield 1
        return self._end_of_episode()

    def _end_of_episode(self) -> Action:
        self.indexed.mark_all_positioned()
        catch_up, self._recovery = self._recovery, None
        if catch_up is None:
            return None
        is_answered = catch_up.phase is RecoveryPhase.LISTENING and catch_up.anchor is None
        if is_answered and self._schedule.on_answered(self._now):
            self._consistency.on_answered()
        return StopReplay()

    # Replay requests.

    def _request_when_due(self) -> Action:
        times = self._schedule
        if not times.is_due(self._now):
            return None
        is_certain = self.doubt is None and not self.has_seen_nothing
        if is_certain and not times.is_due_when_idle(self._now, self.last_event_at):
            return None
        self._recovery = GapRecovery(self._now)
        return self._request_replay(self._recovery)

    def _request_replay(self, catch_up: GapRecovery) -> StartReplay:
        """Request a replay from the last known batch on, which shows the engine's life."""
        anchor = self._consistency.replay_anchor(self.indexed.last_batch)
        catch_up.start_listening(self._now, anchor)
        return StartReplay(self.cursor.next_seq if anchor is None else anchor.seq)

    def _may_request_gap(self) -> bool:
        """Return whether a replay may close the first gap; if so, the time limits begin."""
        if not self._schedule.may_request(self._now):
            return False
        if self._recovery is None:
            self._recovery = GapRecovery(self._now)
        elif not self._recovery.has_time_left(self._now):
            return False
        self._recovery.aim_at_next_gap(self._now)
        return True

    def _request_gap(self) -> Action:
        """Request the gap, at once unless batches of the old connection may still arrive."""
        assert self._recovery is not None
        return StopReplay() if self.doubt is not None else self._request_replay(self._recovery)

    def _stop_counting_copies(self) -> Work:
        """Forget the ranks and rebuild them without counting, since repeated stores are no
        copies.
        """
        applier = self.indexed.applier
        detail = f"rank {applier.copies.inflated_rank} with {applier.copies.total_blocks} blocks"
        self._add_notice(StreamFault.INFLATED, detail)
        self.inflations += 1
        applier.stop_counting()
        if not self._can_replay:
            yield from applier.forget_in_steps(self.indexed.writers)
            self._consistency.on_inflated(self._now)
            return None
        yield from self._forget_all()
        self._consistency.on_inflated(self._now)
        self._recovery = GapRecovery(self._now)
        return self._request_replay(self._recovery)

    def _receive_replayed(self, seq: int, payload: bytes) -> Work:
        catch_up, cursor = self._recovery, self.cursor
        if catch_up is None or catch_up.phase is not RecoveryPhase.LISTENING:
            return None
        if not payload:
            return (yield from self._replay_ended(catch_up))
        catch_up.note_frame(self._now)
        anchor = catch_up.anchor
        first = cursor.next_seq if anchor is None else anchor.seq
        # Without a live batch nothing confirms a far jump, so a damaged number is ignored.
        is_absurd = not self._waiting and seq > cursor.next_seq + JUMP_MAX
        if seq < first or seq == END_OF_REPLAY or is_absurd:
            return None
        batch = yield from self.indexed.decode_in_steps(payload, self._now)
        if self.indexed.is_foreign(batch):
            assert batch is not None
            self.indexed.applier.drops.drop_foreign_replay(batch.data_parallel_rank)
            catch_up.saw_other_rank = True
            return None
        if anchor is not None and not self._is_same_life(catch_up, anchor, seq, payload):
            return (yield from self._begin_anew(catch_up, f"batch {seq} differs from the index"))
        if seq < cursor.next_seq:
            return None
        if seq > cursor.next_seq:
            return (yield from self._handle_replay_gap(catch_up, seq, payload))
        if (yield from self.indexed.apply_replayed_in_steps(batch, seq)):
            self._consistency.on_emptied()
        self._advance_cursor(seq, payload, None)
        self.replayed += 1
        catch_up.note_progress(self._now)
        if self._waiting and cursor.next_seq >= self._gap_end():
            return (yield from self._apply_waiting(replay_runs=True))
        return None

    def _is_same_life(
        self, catch_up: GapRecovery, anchor: ReplayAnchor, seq: int, payload: bytes
    ) -> bool:
        """Judge the first useful frame of an answer.

        A frame that begins later proves nothing and is trusted only on an unbroken connection.
        """
        if seq > anchor.seq and self._consistency.may_have_restarted:
            return False
        if seq == anchor.seq and anchor.digest not in (None, payload_digest(payload)):
            return False
        catch_up.anchor = None
        self._consistency.on_anchor_confirmed()
        return True

    def _begin_anew(self, catch_up: GapRecovery, reason: str) -> Work:
        """Rebuild the rank from a replay, since the engine is in another life than the index."""
        yield from self._reset_for_new_incarnation(reason)
        self._consistency.on_new_life(self._now)
        catch_up.aim_at_next_gap(self._now)
        return self._request_replay(catch_up)

    def _replay_ended(self, catch_up: GapRecovery) -> Work:
        anchor = catch_up.anchor
        is_proof = self._consistency.may_have_restarted and not catch_up.saw_other_rank
        if anchor is not None and is_proof:
            reason = f"the replay has neither batch {anchor.seq} nor later batches"
            return (yield from self._begin_anew(catch_up, reason))
        if self._waiting:
            return (
                yield from self._retry_replay(
                    catch_up, "the replay ended before the gap was closed"
                )
            )
        if anchor is not None or catch_up.saw_other_rank:
            return (yield from self._give_up(catch_up, "the replay lacks batches received live"))
        if self.cursor.next_seq == 0:
            # The engine has published nothing.
            yield from self.indexed.forget_unpositioned_in_steps()
        return (yield from self._apply_waiting())

    def _handle_replay_gap(self, catch_up: GapRecovery, seq: int, payload: bytes) -> Work:
        """Repeat a replay that left batches out, then count the batches as lost."""
        missing = self.cursor.next_seq
        if not catch_up.is_repeated_hole(missing):
            return (yield from self._retry_replay(catch_up, f"batch {missing} is missing"))
        until = min(seq, self._gap_end()) if self._waiting else seq
        self._record_loss(until, LossReason.GONE)
        action: Action = None
        if self._waiting:
            action = yield from self._apply_waiting(replay_runs=True)
        if self._recovery is None:
            return action
        return (yield from self._receive_replayed(seq, payload))

    def _retry_replay(self, catch_up: GapRecovery, reason: str) -> Work:
        if catch_up.note_failed_attempt(self._now):
            return StopReplay()
        return (yield from self._give_up(catch_up, reason))

    def _give_up(self, catch_up: GapRecovery, reason: str) -> Work:
        """Stop the recovery: the batches of the open gap are lost, live batches continue."""
        self._add_notice(StreamFault.REPLAY_FAILED, reason)
        catch_up.phase = RecoveryPhase.GIVEN_UP
        self._schedule.on_given_up(self._now)
        if self._waiting:
            self._record_loss(self._gap_end(), f"{LossReason.UNHELPFUL}: {reason}")
        else:
            self._consistency.on_unanswered(self._now)
        return (yield from self._apply_waiting())
