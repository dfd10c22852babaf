"""One rank's event stream: (sequence number, payload) -> index changes, or a replay to ask for.

Decides what is applied, when, and what is lost: every batch at most once and in order.
Sockets, threads and log lines are in `listener`, which does what the returned `Action` says, hands
the frames of a replay back and tells of the connection.  Time is an argument: `now`, monotonic
seconds.

Work is done in steps of bounded cost.  A verb may leave some undone: then the feed `is_busy`, and
nothing but `go_on` may be called until it is not.

Degraded means: the index may lack events of this rank, because batches were lost.  A later replay
cannot mend that, since old events must not be applied over younger ones.  It ends when the rank is
known to hold nothing: AllBlocksCleared, or a restart.  In doubt means: nothing is known to be
missing, but something may be (`doubt`).
"""

from indexer.events.actions import Action, StartReplay, StopReplay
from indexer.events.ask_times import SETTLE_S, AskTimes
from indexer.events.catch_up import CatchUp, Due, Phase, Waiting
from indexer.events.cursor import END_OF_REPLAY, JUMP_MAX, EventCursor, Verdict
from indexer.events.desk import Desk
from indexer.events.doubt import Anchor, Degraded, Doubt, Missing, payload_digest
from indexer.events.event_types import Batch
from indexer.events.indexed_stream import SMALL_BYTES_MAX, IndexedStream
from indexer.events.kv_source import KvSource
from indexer.events.notices import Fault
from indexer.events.run import Run
from indexer.events.standing import Standing
from indexer.events.stepping import Stepping, Steps, Work


class EventFeed:
    """The stream of one rank.  Counters only grow."""

    def __init__(self, source: KvSource, desk: Desk | None = None) -> None:
        """desk: shared by all feeds of a thread"""
        self.indexed = IndexedStream(source, desk or Desk())
        self._can_replay = source.replay_endpoint is not None
        self._standing = Standing(self._can_replay)
        self._ask_times = AskTimes(self._can_replay)
        self.cursor = EventCursor()
        self._now = float("-inf")
        """When the present verb was called."""
        self._stepping = Stepping()
        self._run = self._stepping.run
        self._waiting = Waiting()
        self._catch_up: CatchUp | None = None
        self._suspect = b""
        """Payload of the message the cursor suspects to begin a new life."""
        self.last_event_at: float | None = None
        self.gaps = 0
        self.replayed = 0
        self.lost = 0
        self.stale = 0
        self.restarts = 0
        self.inflations = 0

    # --- what others see

    @property
    def doubt(self) -> Doubt | None:
        return self._standing.doubt

    @property
    def degraded(self) -> Degraded | None:
        return self._standing.degraded

    @property
    def catching_up(self) -> bool:
        """Known batches are on their way."""
        learns = self._catch_up is not None and self._catch_up.has_helped
        return bool(self._waiting) or (learns and self.doubt is None)

    @property
    def is_asking(self) -> bool:
        """A replay was asked for, or will be as soon as it may be."""
        return self._catch_up is not None

    @property
    def knows_nothing(self) -> bool:
        """Nothing has come, neither live nor by a replay or a dump."""
        return self.last_event_at is None and self.cursor.next_seq == 0

    @property
    def is_busy(self) -> bool:
        return self._stepping.is_busy

    @property
    def wake_at(self) -> float | None:
        """When `tick` should be called next; None while nothing is pending."""
        if self._catch_up is not None:
            return self._catch_up.wake_at
        is_inflated = self.indexed.applier.inflated_rank is not None
        return self._now if is_inflated else self._ask_times.due_at

    # --- verbs

    def begin(self, now: float, *, nothing_older_comes: bool) -> None:
        """To be called once, before the first batch: go on at the place of the own slot, if any.

        nothing_older_comes: no batch sent before now will be received.
        """
        self._now = now
        self._run(self._begin(nothing_older_comes))

    def connected(self, now: float) -> Action:
        """Live batches come from now on; those before may have been missed."""
        self._now = now
        self._doubt_the_gap()
        self._ask_times.connected(now)
        if self._catch_up is None:
            return None
        # The question went to what was there before.  So did what waits: if it counts, the engine
        # has it still, and if not, it must not be mixed with what comes.
        self._waiting.clear()
        self._catch_up.put_off(now, SETTLE_S)
        return StopReplay()

    def disconnected(self, now: float) -> None:
        """Until the next `connected` nothing can come."""
        self._now = now
        self._doubt_the_gap()
        self._ask_times.disconnected()

    def receive_run(self, run: Run, now: float) -> int:
        """Those of the next live batches that are usual, and follow what is applied already.

        Returns how many: the one behind them is for `receive`.
        """
        if self._catch_up is not None or not self.cursor.is_even:
            return 0
        n_applied = self.indexed.apply_run(run, self.cursor.next_seq, now)
        if n_applied:
            self._now = self.last_event_at = now
            self.cursor.follow(n_applied)
            self._standing.applied_next()
        if self.indexed.is_half_cleared:
            self._run(self.indexed.settling())
        return n_applied

    def receive(self, seq: int, payload: bytes, now: float) -> Action:
        """One live batch."""
        self._now = self.last_event_at = now
        verdict = self.cursor.observe(seq)
        if verdict is Verdict.NEXT and self._catch_up is None and len(payload) <= SMALL_BYTES_MAX:
            batch = self.indexed.decoded(payload, now)
            if self.indexed.apply_small(batch, seq, payload, now):
                self.cursor.advance(seq)
                self._standing.applied_next()
                return None
            return self._run(self._apply_next(batch, seq, payload))
        return self._run(self._receive(verdict, seq, payload))

    def receive_replayed(self, seq: int, payload: bytes, now: float) -> Action:
        """One batch of the replay last asked for; an empty payload ends it."""
        self._now = now
        return self._run(self._receive_replayed(seq, payload))

    def replay_failed(self, reason: str, now: float) -> Action:
        """The replay could not even be asked for."""
        self._now = now
        if self._catch_up is None:
            return None
        self._ask_times.leave_alone(now)
        return self._run(self._give_up(self._catch_up, reason))

    def tick(self, now: float) -> Action:
        """Time passed.  Call it at `wake_at`, after handing over what has arrived."""
        self._now = now
        catch_up = self._catch_up
        if catch_up is None and self.indexed.applier.inflated_rank is not None:
            return self._run(self._deflate())
        if catch_up is None:
            return self._ask_when_due()
        due = catch_up.due(now)
        if due is Due.NOTHING:
            return None
        if due is Due.RETRY:
            return self._ask(catch_up)
        self._ask_times.leave_alone(now)
        return self._run(self._give_up(catch_up, "no useful answer in time"))

    def go_on(self, now: float) -> Action:
        """The next step of what is under way."""
        self._now = now
        return self._stepping.go_on()

    def close(self) -> None:
        """Leave what is under way as it is; the index stays consistent."""
        self._stepping.close()

    def check_invariants(self) -> None:
        self.cursor.check_invariants()
        self._waiting.check_invariants()
        if self.is_busy:
            return
        assert self._catch_up is not None or not self._waiting
        assert not self._waiting or self._target() > self.cursor.next_seq
        last = self.indexed.last
        assert last is None or last.seq == self.cursor.next_seq - 1

    # --- live batches

    def _begin(self, nothing_older_comes: bool) -> Steps:
        place = yield from self.indexed.resuming()
        if place is not None:
            self.cursor.resume(place.next_seq, nothing_older_comes=nothing_older_comes)
        if place is not None or self.indexed.has_unplaced_blocks:
            self._standing.resumed(self.indexed.last, self._now)

    def _receive(self, verdict: Verdict, seq: int, payload: bytes) -> Work:
        if verdict is Verdict.UNPLACED and not self._waiting:
            yield from self._apply(payload, None)
            return None
        if verdict is Verdict.NEXT and not self._waiting:
            batch = yield from self.indexed.decoding(payload, self._now)
            return (yield from self._apply_next(batch, seq, payload))
        if verdict is Verdict.RESTART:
            return (yield from self._restart(seq, payload, self._suspect if seq else None))
        if verdict is Verdict.STALE and self._is_another(seq, payload):
            return (yield from self._restart(seq, payload, None))
        if verdict is Verdict.STALE or verdict is Verdict.SUSPECT:
            self.stale += 1
            self._suspect = payload if verdict is Verdict.SUSPECT else b""
            return None
        self.gaps += not self._waiting
        self._waiting.append(None if verdict is Verdict.UNPLACED else seq, payload)
        if self._catch_up is None:
            return (yield from self._settle())
        if self._waiting.is_full:
            return (yield from self._give_up(self._catch_up, "too many live batches are waiting"))
        return None

    def _is_another(self, seq: int, payload: bytes) -> bool:
        """Has a replay brought another batch of this number?  Known of the last one only."""
        last = self.indexed.last
        if last is None or last.seq != seq or last.digest is None:
            return False
        return last.digest != payload_digest(payload)

    def _restart(self, seq: int, payload: bytes, suspect: bytes | None) -> Work:
        """Forget the old life.  suspect: the batch before, if it is known of the new one"""
        was_asking = self._catch_up is not None
        yield from self._forget_life(f"sequence number {seq} again")
        self._catch_up = None
        self._standing.empty()
        self._ask_times.begin_anew()
        first = None
        if suspect is not None:
            first = yield from self._receive_again(seq - 1, suspect)
        then = yield from self._receive_again(seq, payload)
        return then or first or (StopReplay() if was_asking else None)

    def _receive_again(self, seq: int, payload: bytes) -> Work:
        self.last_event_at = self._now
        return (yield from self._receive(self.cursor.observe(seq), seq, payload))

    def _forget_life(self, reason: str) -> Steps:
        """The engine has begun a new life: nothing of the old one counts."""
        self.restarts += 1
        self._notice(Fault.RESTARTED, reason)
        yield from self._forget()

    def _forget(self) -> Steps:
        """Begin as if nothing had come yet."""
        self._waiting.clear()
        self._suspect = b""
        self._standing.forgotten()
        self.cursor.restart()
        yield from self.indexed.forgetting()

    def _settle(self, *, replay_runs: bool = False) -> Work:
        """Apply what waits, up to a gap that a replay may still close."""
        while self._waiting:
            seq, payload = self._waiting[0]
            if seq is not None and seq > self.cursor.next_seq:
                if replay_runs:
                    return None
                if self._may_ask():
                    return self._ask_for_the_gap()
                self._lose(seq, Missing.UNHELPFUL if self._can_replay else Missing.NO_REPLAY)
            self._waiting.popleft()
            if seq is None:
                yield from self._apply(payload, None)
            elif seq == self.cursor.next_seq:
                yield from self._apply(payload, seq)
                self._advance(seq, payload, self._now)
            else:
                self.stale += 1
                yield 1
        return self._end_of_episode()

    def _end_of_episode(self) -> Action:
        self.indexed.place_all()
        catch_up, self._catch_up = self._catch_up, None
        if catch_up is None:
            return None
        is_answered = catch_up.phase is Phase.LISTENING and catch_up.anchor is None
        if is_answered and self._ask_times.answered(self._now):
            self._standing.answered()
        return StopReplay()

    # --- questions

    def _doubt_the_gap(self) -> None:
        if not self.knows_nothing:
            self._standing.interrupted(self.indexed.last, self._now)

    def _ask_when_due(self) -> Action:
        times = self._ask_times
        if not times.is_due(self._now):
            return None
        is_certain = self.doubt is None and not self.knows_nothing
        if is_certain and not times.is_due_when_idle(self._now, self.last_event_at):
            return None
        self._catch_up = CatchUp(self._now)
        return self._ask(self._catch_up)

    def _ask(self, catch_up: CatchUp) -> StartReplay:
        """From the last batch that is known on, so that the answer shows whose it is."""
        anchor = self._standing.anchor(self.indexed.last)
        catch_up.listen(self._now, anchor)
        return StartReplay(self.cursor.next_seq if anchor is None else anchor.seq)

    def _may_ask(self) -> bool:
        """May the gap in front be replayed?  If so, the waiting for it begins."""
        if not self._ask_times.may_ask(self._now):
            return False
        if self._catch_up is None:
            self._catch_up = CatchUp(self._now)
        elif not self._catch_up.may_go_on(self._now):
            return False
        self._catch_up.aim(self._now)
        return True

    def _ask_for_the_gap(self) -> Action:
        """At once, unless what arrived before a new connection may still be on its way here."""
        assert self._catch_up is not None
        return StopReplay() if self.doubt is not None else self._ask(self._catch_up)

    def _deflate(self) -> Work:
        """What was counted are no copies: forget the ranks, and learn them without counting."""
        applier = self.indexed.applier
        self._notice(Fault.INFLATED, f"rank {applier.inflated_rank}, {applier.total_blocks} blocks")
        self.inflations += 1
        applier.stop_counting()
        if not self._can_replay:
            yield from applier.forgetting(self.indexed.writers)
            self._standing.inflated(self._now)
            return None
        yield from self._forget()
        self._standing.inflated(self._now)
        self._catch_up = CatchUp(self._now)
        return self._ask(self._catch_up)

    def _receive_replayed(self, seq: int, payload: bytes) -> Work:
        catch_up, cursor = self._catch_up, self.cursor
        if catch_up is None or catch_up.phase is not Phase.LISTENING:
            return None
        if not payload:
            return (yield from self._replay_ended(catch_up))
        catch_up.heard(self._now)
        anchor = catch_up.anchor
        first = cursor.next_seq if anchor is None else anchor.seq
        is_absurd = not self._waiting and seq > cursor.next_seq + JUMP_MAX
        if seq < first or seq == END_OF_REPLAY or is_absurd:
            return None
        batch = yield from self.indexed.decoding(payload, self._now)
        if self.indexed.is_foreign(batch):
            assert batch is not None
            self.indexed.applier.drop_replayed(batch.data_parallel_rank)
            catch_up.saw_other_rank = True
            return None
        if anchor is not None and not self._is_same_life(catch_up, anchor, seq, payload):
            return (yield from self._begin_anew(catch_up, f"batch {seq} is not the one applied"))
        if seq < cursor.next_seq:
            return None
        if seq > cursor.next_seq:
            return (yield from self._hole(catch_up, seq, payload))
        if (yield from self.indexed.applying_replayed(batch, seq)):
            self._standing.empty()
        self._advance(seq, payload, None)
        self.replayed += 1
        catch_up.progressed(self._now)
        if self._waiting and cursor.next_seq >= self._target():
            return (yield from self._settle(replay_runs=True))
        return None

    def _is_same_life(self, catch_up: CatchUp, anchor: Anchor, seq: int, payload: bytes) -> bool:
        """Judge the first useful frame of an answer.

        One that begins later proves nothing; it is only believed of an unbroken connection.
        """
        if seq > anchor.seq and self._standing.was_cut_off:
            return False
        if seq == anchor.seq and anchor.digest not in (None, payload_digest(payload)):
            return False
        catch_up.anchor = None
        self._standing.anchored()
        return True

    def _begin_anew(self, catch_up: CatchUp, reason: str) -> Work:
        """The engine is in another life than the index: learn what it has now."""
        yield from self._forget_life(reason)
        self._standing.new_life_replayed(self._now)
        catch_up.aim(self._now)
        return self._ask(catch_up)

    def _replay_ended(self, catch_up: CatchUp) -> Work:
        anchor = catch_up.anchor
        is_proof = self._standing.was_cut_off and not catch_up.saw_other_rank
        if anchor is not None and is_proof:
            reason = f"its replay has neither batch {anchor.seq} nor later ones"
            return (yield from self._begin_anew(catch_up, reason))
        if self._waiting:
            return (yield from self._retry(catch_up, "it ended before the gap was closed"))
        if anchor is not None or catch_up.saw_other_rank:
            return (yield from self._give_up(catch_up, "it does not have what came live"))
        if self.cursor.next_seq == 0:
            yield from self.indexed.forgetting_unplaced()  # it has published nothing
        return (yield from self._settle())

    def _target(self) -> int:
        """The live number that ends the open gap: while one is open, it waits in front."""
        seq = self._waiting[0][0]
        assert seq is not None
        return seq

    def _hole(self, catch_up: CatchUp, seq: int, payload: bytes) -> Work:
        """The replay left batches out: ask once more, then believe that they are gone."""
        missing = self.cursor.next_seq
        if not catch_up.is_same_hole(missing):
            return (yield from self._retry(catch_up, f"batch {missing} is missing"))
        until = min(seq, self._target()) if self._waiting else seq
        self._lose(until, Missing.GONE)
        action: Action = None
        if self._waiting:
            action = yield from self._settle(replay_runs=True)
        if self._catch_up is None:
            return action
        return (yield from self._receive_replayed(seq, payload))

    def _retry(self, catch_up: CatchUp, reason: str) -> Work:
        if catch_up.attempt_failed(self._now):
            return StopReplay()
        return (yield from self._give_up(catch_up, reason))

    def _give_up(self, catch_up: CatchUp, reason: str) -> Work:
        """No answer.  The open gap stays open: its batches are lost, the live ones go on."""
        self._notice(Fault.REPLAY_FAILED, reason)
        catch_up.phase = Phase.GIVEN_UP
        self._ask_times.given_up(self._now)
        if self._waiting:
            self._lose(self._target(), f"{Missing.UNHELPFUL}: {reason}")
        else:
            self._standing.unanswered(self._now)
        return (yield from self._settle())

    # --- changes of the index

    def _lose(self, until: int, why: str) -> None:
        lost = f"batches {self.cursor.next_seq} to {until - 1}: {why}"
        self.lost += self.cursor.skip_to(until)
        self.indexed.lose()
        self._standing.lost(lost, self._now)
        self._notice(Fault.LOST, lost)

    def _advance(self, seq: int, payload: bytes, live_at: float | None) -> None:
        self.cursor.advance(seq)
        self.indexed.advance(seq, payload, live_at)

    def _apply(self, payload: bytes, seq: int | None) -> Steps:
        batch = yield from self.indexed.decoding(payload, self._now)
        if (yield from self.indexed.applying(batch, seq)):
            self._standing.empty()

    def _apply_next(self, batch: Batch | None, seq: int, payload: bytes) -> Work:
        if seq == 0:
            yield from self.indexed.forgetting_unplaced()
        if (yield from self.indexed.applying(batch, seq)):
            self._standing.empty()
        self._advance(seq, payload, self._now)
        self._standing.applied_next()
        return None

    def _notice(self, fault: Fault, detail: str) -> None:
        self.indexed.notices.add(fault, detail, self._now)
