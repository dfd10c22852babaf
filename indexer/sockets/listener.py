"""Listener of a rank's event stream: its sockets, on the owning thread.

Receives messages, passes them to the feed, requests replays, logs the feed's notices.  The feed
interprets messages; the thread decides when a drain runs.

No step is long: while the feed has work left, a drain does a bit of it instead of taking a
message.  A bug ends one listener, never its thread.
"""

import contextlib
import logging
import time
from collections.abc import Callable

import zmq

from indexer.events.event_feed import EventFeed
from indexer.events.kv_event_source import KvSource
from indexer.events.message_batch import MessageBatch
from indexer.events.replay_actions import Action, StartReplay
from indexer.events.topic_watch import TopicWatch
from indexer.events.uncertainty import KnownLoss
from indexer.sockets.batch_receiver import MESSAGE_BYTES_MAX
from indexer.sockets.listener_status import (
    ListenerStatus,
    MissingConnection,
    StreamPulse,
    StreamState,
)
from indexer.sockets.listener_timers import ListenerTimers
from indexer.sockets.live_connection import LiveConnection
from indexer.sockets.read_ahead import ReadAheadQueue, ReceiveBudget
from indexer.sockets.replay_connection import SEQ_BYTES, ReplayConnection, is_replay
from indexer.sockets.replay_rate_limiter import ReplayRateLimiter
from indexer.sockets.socket_poller import SocketPoller
from indexer.sockets.zmq_connector import SocketSettings

RECONNECT_DELAY_S = 0.5
"""Seconds from the end of a connection that libzmq does not restore to the new connection."""
CUT_OFF_NOTICE_S = 60.0
"""Shortest time between warnings about broken connections, for each rank, in seconds."""
CUT_OFF = (
    "the connection was closed after a protocol violation, such as a message of more than "
    f"{MESSAGE_BYTES_MAX} bytes"
)
DRAIN_STEPS_MAX = 64
"""Steps for a socket before the others have their turn; each takes a run of messages or less."""
DRAIN_S_MAX = 0.003
REQUEST_DELAY_S_MAX = 2.0
"""Longest delay of a replay request until all arrived messages are taken, in seconds."""
RECHECK_S = 0.01

logger = logging.getLogger("indexer.listener")


class RankListener:
    """Listener of a rank.  All methods but `status` belong to one thread, also `open` and
    `close`.
    """

    def __init__(
        self,
        source: KvSource,
        sockets: SocketSettings,
        readiness: SocketPoller,
        timers: "ListenerTimers[RankListener]",
        replay_limiter: ReplayRateLimiter,
        budget: ReceiveBudget,
    ) -> None:
        """`timers` call `tick`; `replay_limiter` and `budget` are shared by all listeners of the
        thread.
        """
        self.source = source
        self._topics = TopicWatch()
        self.feed = EventFeed(source, budget.scratch)
        self._sockets = sockets
        self._readiness = readiness
        self._timers = timers
        self._replay_limiter = replay_limiter
        self._budget = budget
        self._live: LiveConnection | None = None
        self._replay: ReplayConnection | None = None
        self._woken_at: float | None = None
        """Time passed to the timers."""
        self._open_error: str | None = None
        self._failure: str | None = None
        self._not_before = float("-inf")
        """Earliest time of the next tick, even if something is due."""
        self._cut_off: str | None = None
        self._faulted_at = 0.0
        """Time when one of the three fault texts was set."""
        self._connect_at: float | None = None
        self._cut_off_noticed = float("-inf")
        self._started = False

    def open(self) -> None:
        """Connect.  The engine may be absent; an address that libzmq refuses leaves the rank
        degraded.

        Arriving messages are read ahead and wait until `start`.
        """
        try:
            self._live = LiveConnection(
                self._sockets, self.source.endpoint, self._budget, time.monotonic()
            )
        except zmq.ZMQError as error:
            self._open_error = f"{self.source.endpoint}: nothing can connect there ({error})"
            self._faulted_at = time.monotonic()
            self._log_event(logging.ERROR, "KV event listener failed", self._open_error)
            return
        self._readiness.watch(self._live.socket, self.drain_live)
        self._readiness.watch(self._live.monitor, self.drain_monitor)
        self._log_event(logging.INFO, "KV event listener opened", self.source.endpoint)

    def start(self, *, opened_just_now: bool) -> None:
        """Begin to apply messages."""
        self._run_guarded(lambda: self._start_feed(opened_just_now))

    def close(self) -> None:
        self._set_timer(None)
        self.feed.close()
        self._stop_replay()
        if self._live is not None:
            self._close_live(self._live)
            self._log_event(logging.INFO, "KV event listener closed", self.source.endpoint)

    def drain_live(self) -> bool:
        """Take a bounded number of live messages.  True: more may be there."""
        return self._run_guarded(self._drain_live if self._started else self._read_live_ahead)

    def drain_replay(self) -> bool:
        """Take a bounded number of replayed messages.  True: more may be there."""
        return self._run_guarded(self._drain_replay)

    def drain_monitor(self) -> bool:
        """Take libzmq's events of the connection.  True: more may be there."""
        return self._run_guarded(self._take_connection_events)

    @property
    def wake_at(self) -> float | None:
        """Time of the next `tick`; None while nothing is pending."""
        asks_at, connect_at = self.feed.wake_at, self._connect_at
        if asks_at is None:
            return connect_at
        asks_at = max(asks_at, self._not_before)
        return asks_at if connect_at is None else min(asks_at, connect_at)

    def tick(self, now: float) -> None:
        """Act on the time, at `wake_at`.  Arrived messages come first."""
        self._woken_at = None
        self._run_guarded(lambda: self._tick_feed(now))

    def _start_feed(self, opened_just_now: bool) -> bool:
        now = time.monotonic()
        self.feed.begin(now, nothing_older_comes=opened_just_now)
        self._started = True
        if self._live is not None:
            if self._live.is_connected:
                self._carry_out_action(self.feed.on_connected(now), now)
            self._readiness.call_again(self.drain_live)
            self._readiness.call_again(self.drain_monitor)
        return False

    def _tick_feed(self, now: float) -> bool:
        if self._connect_at is not None and now >= self._connect_at:
            self._reconnect(now)
        if self._may_tick(now):
            self._carry_out_action(self.feed.tick(now), now)
        self._end_turn()
        return False

    def _may_tick(self, now: float) -> bool:
        """Return whether the feed may act: arrived messages are taken and the rate limit
        permits.
        """
        due = self.feed.wake_at
        if self.feed.is_busy or due is None or now < due:
            return False
        if self._replay is not None and self._replay.queue.has_messages:
            self._readiness.call_again(self.drain_replay)  # the check consumed the notification
            self._not_before = now + RECHECK_S
            return False
        # Batches of an old connection must not be taken for those of the engine's next life.
        if self._live is not None and self._live.queue.has_messages:
            self._readiness.call_again(self.drain_live)
            if self.feed.doubt is not None and now < due + REQUEST_DELAY_S_MAX:
                self._not_before = now + RECHECK_S
                return False
        if not self.feed.is_requesting:
            pause = self._replay_limiter.seconds_until_permit(now)
            if pause > 0.0:
                self._not_before = now + pause
                return False
            self._replay_limiter.take_permit(now)
        return True

    def status(self) -> ListenerStatus:
        """Return the status, on any thread; the numbers may stem from two adjacent messages."""
        feed, indexed, applier = self.feed, self.feed.indexed, self.feed.indexed.applier
        live, doubt, degraded = self._live, self.feed.doubt, self._known_loss()
        unconnected = self._long_missing_connection()
        return ListenerStatus(
            state=self._stream_state(),
            endpoint=self.source.endpoint,
            replay_endpoint=self.source.replay_endpoint,
            last_sequence=feed.cursor.last_sequence,
            batches=indexed.batches,
            gaps=feed.gaps,
            replayed=feed.replayed,
            lost=feed.lost,
            stale=feed.stale,
            restarts=feed.restarts,
            decode_errors=indexed.decode_errors,
            last_error=(
                self._own_fault()
                or applier.drops.registration_fault
                or indexed.last_error
                or applier.drops.last_skipped
            ),
            is_size_wrong=applier.drops.is_size_wrong,
            last_event_monotonic=feed.last_event_at,
            connected=live is not None and live.is_connected,
            connect_error=self._open_error if live is None else live.error,
            unconnected_monotonic=None if unconnected is None else unconnected.since,
            is_counted=applier.copies.is_counted,
            inflations=feed.inflations,
            degraded=None if degraded is None else degraded.reason,
            degraded_monotonic=None if degraded is None else degraded.since,
            doubt=None if doubt is None else doubt.reason.value,
            doubted_monotonic=None if doubt is None else doubt.since,
            stored_blocks=applier.stored_blocks,
            removed_blocks=applier.removed_blocks,
            dropped=dict(applier.drops.counts),
            unknown_fields=dict(indexed.unknown_fields),
            lookahead_events=applier.lookahead_events,
            plain_eagle_events=applier.plain_eagle_events,
            inside_block_events=applier.groups.inside_block_events,
            has_registered_size=applier.drops.size_fits,
            cache_groups=indexed.read_cache_groups(),
            engine_changes=self._topics.changes,
            engine_change=self._topics.last_change,
        )

    def missing_connection(self) -> MissingConnection | None:
        """Return the missing connection; None while connected.

        Any thread may call this, as `status`.
        """
        live, endpoint = self._live, self.source.endpoint
        if live is None:
            fault = self._own_fault()
            return MissingConnection(
                endpoint, self._faulted_at if fault else time.monotonic(), fault
            )
        lost_at = live.lost_at
        return None if lost_at is None else MissingConnection(endpoint, lost_at, live.error)

    def pulse(self) -> StreamPulse:
        """Return the pulse, on any thread, as `status`."""
        indexed = self.feed.indexed
        return StreamPulse(
            self._stream_state(), indexed.batches, self.feed.last_event_at, indexed.has_bound
        )

    def _drain_live(self) -> bool:
        live = self._live
        return self._drain_socket(None if live is None else live.queue, self._receive_live)

    def _drain_replay(self) -> bool:
        replay = self._replay
        return self._drain_socket(None if replay is None else replay.queue, self._receive_replayed)

    def _drain_socket(
        self, arrivals: ReadAheadQueue | None, receive: Callable[[MessageBatch, float], int]
    ) -> bool:
        """Drain a single socket: a check of another one would consume its notification.

        receive: returns the number of messages of the run that are done; 0 for work before the next
        """
        feed, steps, now = self.feed, self.feed.steps, time.monotonic()
        more, until = True, now + DRAIN_S_MAX
        for _ in range(DRAIN_STEPS_MAX):
            if steps.is_busy:
                self._carry_out_action(feed.continue_work(now), now)
            else:
                run = None if arrivals is None else arrivals.next_messages()
                more = run is not None
                if arrivals is not None and run is not None and run.first < run.stop:
                    arrivals.mark_done(receive(run, now))
                    more = not arrivals.is_drained
            if not (more or steps.is_busy):
                break
            now = time.monotonic()
            if now >= until:
                break
        self._end_turn()
        is_left = more or steps.is_busy
        # Unread messages leave libzmq's short queue before the sender has to drop some.
        if is_left and arrivals is not None:
            arrivals.read_ahead()
        if arrivals is not None and arrivals.has_news:
            self._readiness.call_again(self.drain_monitor)
        return is_left

    def _read_live_ahead(self) -> bool:
        if self._live is None:
            return False
        has_more = self._live.queue.read_ahead()
        if self._live.queue.has_news:
            self._readiness.call_again(self.drain_monitor)
        return has_more

    def _end_turn(self) -> None:
        for fault, detail in self.feed.indexed.notices.take_pending().items():
            self._log_event(logging.WARNING, fault.value, detail)
        if self.feed.steps.is_busy:
            self._readiness.call_again(self.drain_live)
        self._set_timer(self.wake_at)

    def _set_timer(self, due: float | None) -> None:
        if due != self._woken_at:
            self._woken_at = due
            self._timers.set_time(self, due)

    def _run_guarded(self, step: Callable[[], bool]) -> bool:
        """Run `step`; a bug in it ends this listener and nothing else."""
        try:
            return step()
        except Exception as error:
            self._failure = f"internal error: {error!r}; register the worker again"
            self._faulted_at = time.monotonic()
            fields = {"worker_id": self.source.worker_id, "dp_rank": self.source.dp_rank}
            logger.exception("KV event listener failed", extra={"fields": fields})
        self._set_timer(None)
        with contextlib.suppress(zmq.ZMQError):  # the error may have been one of the sockets, too
            self._stop_replay()
            if self._live is not None:
                self._close_live(self._live)
        return False

    def _close_live(self, live: LiveConnection) -> None:
        self._readiness.unwatch(live.socket, self.drain_live)
        self._readiness.unwatch(live.monitor, self.drain_monitor)
        # Order matters: descriptor numbers are reused, so a watch must end before its socket does.
        live.close()
        self._live = None

    def _take_connection_events(self) -> bool:
        """Take libzmq's events of the connection.  True: more may be there."""
        if self._live is None:
            return False
        now = time.monotonic()
        for is_made in self._live.take_events(now):
            if not self._started:
                continue  # `start` informs the feed
            if is_made:
                self._carry_out_action(self.feed.on_connected(now), now)
            else:
                self.feed.on_disconnected(now)
        if self._live.is_cut_off and self._connect_at is None:
            self._connect_at = now + RECONNECT_DELAY_S
        self._end_turn()
        return self._live.has_news

    def _receive_live(self, run: MessageBatch, now: float) -> int:
        self._cut_off = None  # the number of this message shows what is missing
        if self._live is not None and self._live.queue.has_news:
            self._take_connection_events()  # before the first batch of a new connection
        usual = self.feed.receive_run(run, now)
        if usual:
            return usual
        if run.is_live and (change := self._take_topic(run.topic)) is not None:
            self._carry_out_action(self.feed.on_other_engine(change, now), now)
            return 0
        if run.is_live:
            self._carry_out_action(
                self.feed.receive(run.sequence_number, run.payload_ahead().tobytes(), now), now
            )
        else:
            self.feed.indexed.applier.drops.drop_malformed_message()
        return 1

    def _take_topic(self, topic: bytes) -> str | None:
        """Record the topic of the next message; return a description of another engine."""
        if topic == self._topics.topic:
            return None
        change = self._topics.take_topic(topic)
        self.feed.indexed.applier.common_forms.set_topic(topic)
        return change

    def _receive_replayed(self, run: MessageBatch, now: float) -> int:
        frames = run.next_frames()
        if is_replay(frames):
            seq = int.from_bytes(frames[-2][:SEQ_BYTES], "big")
            self._carry_out_action(self.feed.receive_replayed(seq, frames[-1], now), now)
        else:
            self.feed.indexed.applier.drops.counts["replay_frames"] += 1
        return 1

    def _own_fault(self) -> str | None:
        """Return the fault of the listener itself, or None."""
        return self._failure or self._open_error or self._cut_off

    def _known_loss(self) -> KnownLoss | None:
        """Return the reason why the index lacks events of the rank; None without a known loss."""
        fault = self._own_fault()
        return self.feed.degraded if fault is None else KnownLoss(fault, self._faulted_at)

    def _long_missing_connection(self) -> MissingConnection | None:
        """Return a connection missing for at least UNCONNECTED_S, or None."""
        missing = self.missing_connection()
        return missing if missing is not None and missing.is_long(time.monotonic()) else None

    def _stream_state(self) -> StreamState:
        if self._failure or self._open_error:
            return "degraded"
        if self._long_missing_connection() is not None:
            return "unconnected"
        if self.feed.is_catching_up:
            return "catching_up"
        if self._known_loss() is not None:
            return "degraded"
        if self.feed.doubt is not None:
            return "unverified"
        return "no_events_yet" if self.feed.has_seen_nothing else "connected"

    def _carry_out_action(self, action: Action, now: float) -> None:
        if action is None:
            return
        self._stop_replay()
        if isinstance(action, StartReplay):
            try:
                self._start_replay(action.start)
            except zmq.ZMQError as error:
                self._stop_replay()
                reason = f"{self.source.replay_endpoint}: {error}"
                self._carry_out_action(self.feed.replay_failed(reason, now), now)

    def _reconnect(self, now: float) -> None:
        """Connect again, unless libzmq has done so."""
        self._connect_at = None
        if self._live is not None and self._live.is_cut_off:
            self._cut_off, self._faulted_at = f"{self.source.endpoint}: {CUT_OFF}", now
            if now - self._cut_off_noticed >= CUT_OFF_NOTICE_S:
                self._cut_off_noticed = now
                self._log_event(logging.WARNING, "KV event listener reconnected", self._cut_off)
            self._live.reconnect()
            self._connect_at = now + RECONNECT_DELAY_S if self._live.is_cut_off else None

    def _start_replay(self, start: int) -> None:
        assert self.source.replay_endpoint is not None
        replay = ReplayConnection(self._sockets, self.source.replay_endpoint, self._budget)
        self._replay = replay
        self._readiness.watch(replay.socket, self.drain_replay)
        replay.request(start)

    def _stop_replay(self) -> None:
        if self._replay is not None:
            self._readiness.unwatch(self._replay.socket, self.drain_replay)
            self._replay.close()
            self._replay = None

    def _log_event(self, level: int, message: str, detail: str) -> None:
        fields = {"worker_id": self.source.worker_id, "dp_rank": self.source.dp_rank}
        logger.log(level, message, extra={"fields": {**fields, "detail": detail}})
