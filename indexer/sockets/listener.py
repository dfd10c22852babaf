"""The sockets of one rank's event stream, on the thread that owns them.

Receives, hands to the feed, asks for replays, logs what the feed finds notable.  What a message
means is the feed's business; when a drain is called is the thread's.

No step is long: while the feed has work left, it does a bit of it instead of taking a message.  A
bug ends one listener, never its thread.
"""

import contextlib
import logging
import time
from collections.abc import Callable

import zmq

from indexer.events.actions import Action, StartReplay
from indexer.events.doubt import Degraded
from indexer.events.feed import EventFeed
from indexer.events.kv_source import KvSource
from indexer.events.run import Run
from indexer.sockets.arrivals import Arrivals, Room
from indexer.sockets.ask_pace import AskPace
from indexer.sockets.dial import Sockets
from indexer.sockets.inbox import MESSAGE_BYTES_MAX
from indexer.sockets.listener_status import ListenerStatus, Pulse, State, Unconnected
from indexer.sockets.live_connection import LiveConnection
from indexer.sockets.readiness import Readiness
from indexer.sockets.replay_connection import SEQ_BYTES, ReplayConnection, is_replay
from indexer.sockets.timers import Timers

CONNECT_ANEW_S = 0.5
"""How long after the end of a connection that libzmq does not restore it is connected anew."""
CUT_OFF_NOTICE_S = 60.0
"""An operator hears of it at most so often, for each rank."""
CUT_OFF = (
    "the connection was broken off for a breach of the protocol, such as a message of more than "
    f"{MESSAGE_BYTES_MAX} bytes"
)
DRAIN_STEPS_MAX = 64
"""Of one socket before the others have their turn; each takes a run of messages or less."""
DRAIN_S_MAX = 0.003
ARRIVED_S_MAX = 2.0
"""How long a question may wait until everything that has arrived is taken."""
LOOK_AGAIN_S = 0.01

logger = logging.getLogger("indexer.listener")


class Listener:
    """All methods but `status` belong to one thread, which `open` and `close` are called on too."""

    def __init__(
        self,
        source: KvSource,
        sockets: Sockets,
        readiness: Readiness,
        timers: "Timers[Listener]",
        pace: AskPace,
        room: Room,
    ) -> None:
        """`timers` call `tick`; `pace` and `room` are those of all listeners of the thread."""
        self.source = source
        self.feed = EventFeed(source, room.desk)
        self._sockets = sockets
        self._readiness = readiness
        self._timers = timers
        self._pace = pace
        self._room = room
        self._live: LiveConnection | None = None
        self._replay: ReplayConnection | None = None
        self._woken_at: float | None = None
        """What the timers know."""
        self._open_error: str | None = None
        self._failure: str | None = None
        self._not_before = float("-inf")
        """No tick until then, whatever is due."""
        self._cut_off: str | None = None
        self._faulted_at = 0.0
        """When one of these three texts was set."""
        self._connect_at: float | None = None
        self._cut_off_noticed = float("-inf")
        self._started = False

    def open(self) -> None:
        """Connect.  The engine may be absent; an address libzmq refuses leaves it degraded.

        What arrives is read ahead and waits until `start`.
        """
        try:
            self._live = LiveConnection(
                self._sockets, self.source.endpoint, self._room, time.monotonic()
            )
        except zmq.ZMQError as error:
            self._open_error = f"{self.source.endpoint}: nothing can connect there ({error})"
            self._faulted_at = time.monotonic()
            self._log(logging.ERROR, "KV event listener failed", self._open_error)
            return
        self._readiness.watch(self._live.socket, self.drain_live)
        self._readiness.watch(self._live.monitor, self.drain_monitor)
        self._log(logging.INFO, "KV event listener opened", self.source.endpoint)

    def start(self, *, opened_just_now: bool) -> None:
        """Take what arrives from now on."""
        self._guarded(lambda: self._start(opened_just_now))

    def close(self) -> None:
        self._wake(None)
        self.feed.close()
        self._stop_replay()
        if self._live is not None:
            self._close_live(self._live)
            self._log(logging.INFO, "KV event listener closed", self.source.endpoint)

    def drain_live(self) -> bool:
        """Take a bounded number of live messages.  True: more may be there."""
        return self._guarded(self._drain_live if self._started else self._read_live_ahead)

    def drain_replay(self) -> bool:
        """Take a bounded number of replayed messages.  True: more may be there."""
        return self._guarded(self._drain_replay)

    def drain_monitor(self) -> bool:
        """Take what libzmq tells of the connection.  True: more may be there."""
        return self._guarded(self._look)

    @property
    def wake_at(self) -> float | None:
        """When `tick` should be called next; None while nothing is pending."""
        asks_at, connect_at = self.feed.wake_at, self._connect_at
        if asks_at is None:
            return connect_at
        asks_at = max(asks_at, self._not_before)
        return asks_at if connect_at is None else min(asks_at, connect_at)

    def tick(self, now: float) -> None:
        """To be called at `wake_at`.  What has arrived already comes first."""
        self._woken_at = None
        self._guarded(lambda: self._tick(now))

    def _start(self, opened_just_now: bool) -> bool:
        now = time.monotonic()
        self.feed.begin(now, nothing_older_comes=opened_just_now)
        self._started = True
        if self._live is not None:
            if self._live.is_connected:
                self._act(self.feed.connected(now), now)
            self._readiness.again(self.drain_live)
            self._readiness.again(self.drain_monitor)
        return False

    def _tick(self, now: float) -> bool:
        if self._connect_at is not None and now >= self._connect_at:
            self._connect_anew(now)
        if self._may_tick(now):
            self._act(self.feed.tick(now), now)
        self._end_turn()
        return False

    def _may_tick(self, now: float) -> bool:
        """Not before what has arrived is taken, nor faster than all listeners may ask."""
        due = self.feed.wake_at
        if self.feed.is_busy or due is None or now < due:
            return False
        if self._replay is not None and self._replay.arrivals.has_some:
            self._readiness.again(self.drain_replay)  # looking has taken the news from its file
            self._not_before = now + LOOK_AGAIN_S
            return False
        # Batches of an old connection must not be taken for those of the engine's next life.
        if self._live is not None and self._live.arrivals.has_some:
            self._readiness.again(self.drain_live)
            if self.feed.doubt is not None and now < due + ARRIVED_S_MAX:
                self._not_before = now + LOOK_AGAIN_S
                return False
        if not self.feed.is_asking:
            pause = self._pace.wait(now)
            if pause > 0.0:
                self._not_before = now + pause
                return False
            self._pace.take(now)
        return True

    def status(self) -> ListenerStatus:
        """May be called on any thread; the numbers may stem from two adjacent messages."""
        feed, indexed, applier = self.feed, self.feed.indexed, self.feed.indexed.applier
        live, doubt, degraded = self._live, self.feed.doubt, self._degraded()
        unconnected = self._long_unconnected()
        return ListenerStatus(
            state=self._state(),
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
            last_error=(self._fault() or applier.misfit or indexed.last_error or applier.left_out),
            is_size_wrong=applier.is_size_wrong,
            last_event_monotonic=feed.last_event_at,
            connected=live is not None and live.is_connected,
            connect_error=self._open_error if live is None else live.error,
            unconnected_monotonic=None if unconnected is None else unconnected.since,
            is_counted=applier.is_counted,
            inflations=feed.inflations,
            degraded=None if degraded is None else degraded.why,
            degraded_monotonic=None if degraded is None else degraded.since,
            doubt=None if doubt is None else doubt.why.value,
            doubted_monotonic=None if doubt is None else doubt.since,
            stored_blocks=applier.stored_blocks,
            removed_blocks=applier.removed_blocks,
            dropped=dict(applier.dropped),
        )

    def unconnected(self) -> Unconnected | None:
        """Return the connection that is missing; None while it stands.

        Any thread may call it, as `status`.
        """
        live, endpoint = self._live, self.source.endpoint
        if live is None:
            fault = self._fault()
            return Unconnected(endpoint, self._faulted_at if fault else time.monotonic(), fault)
        lost_at = live.lost_at
        return None if lost_at is None else Unconnected(endpoint, lost_at, live.error)

    def pulse(self) -> Pulse:
        """May be called on any thread, as `status`."""
        return Pulse(self._state(), self.feed.indexed.batches, self.feed.last_event_at)

    def _drain_live(self) -> bool:
        live = self._live
        return self._drain(None if live is None else live.arrivals, self._receive_live)

    def _drain_replay(self) -> bool:
        replay = self._replay
        return self._drain(None if replay is None else replay.arrivals, self._receive_replayed)

    def _drain(self, arrivals: Arrivals | None, receive: Callable[[Run, float], int]) -> bool:
        """Of one socket only: looking at another one takes the news from its file.

        receive: returns how many messages of the run are done with, at least one
        """
        feed, now = self.feed, time.monotonic()
        more, until = True, now + DRAIN_S_MAX
        for _ in range(DRAIN_STEPS_MAX):
            if feed.is_busy:
                self._act(feed.go_on(now), now)
            else:
                run = None if arrivals is None else arrivals.run()
                more = run is not None
                if arrivals is not None and run:
                    arrivals.take(receive(run, now))
                    more = not arrivals.is_over
            if not (more or feed.is_busy):
                break
            now = time.monotonic()
            if now >= until:
                break
        self._end_turn()
        is_left = more or feed.is_busy
        if is_left and arrivals is not None:
            arrivals.read_ahead()
        if arrivals is not None and arrivals.has_news:
            self._readiness.again(self.drain_monitor)
        return is_left

    def _read_live_ahead(self) -> bool:
        if self._live is None:
            return False
        has_more = self._live.arrivals.read_ahead()
        if self._live.arrivals.has_news:
            self._readiness.again(self.drain_monitor)
        return has_more

    def _end_turn(self) -> None:
        for fault, detail in self.feed.indexed.notices.take().items():
            self._log(logging.WARNING, fault.value, detail)
        if self.feed.is_busy:
            self._readiness.again(self.drain_live)
        self._wake(self.wake_at)

    def _wake(self, due: float | None) -> None:
        if due != self._woken_at:
            self._woken_at = due
            self._timers.set(self, due)

    def _guarded(self, step: Callable[[], bool]) -> bool:
        """`step`; a bug in it ends this listener and nothing else."""
        try:
            return step()
        except Exception as error:
            self._failure = f"internal error: {error!r}; register the worker again"
            self._faulted_at = time.monotonic()
            fields = {"worker_id": self.source.worker_id, "dp_rank": self.source.dp_rank}
            logger.exception("KV event listener failed", extra={"fields": fields})
        self._wake(None)
        with contextlib.suppress(zmq.ZMQError):  # whatever it was, it may have hit the sockets too
            self._stop_replay()
            if self._live is not None:
                self._close_live(self._live)
        return False

    def _close_live(self, live: LiveConnection) -> None:
        self._readiness.unwatch(live.socket, self.drain_live)
        self._readiness.unwatch(live.monitor, self.drain_monitor)
        live.close()
        self._live = None

    def _look(self) -> bool:
        """Take what libzmq tells of the connection.  True: more may be there."""
        if self._live is None:
            return False
        now = time.monotonic()
        for is_made in self._live.look(now):
            if not self._started:
                continue  # the feed is told when it begins
            if is_made:
                self._act(self.feed.connected(now), now)
            else:
                self.feed.disconnected(now)
        if self._live.is_cut_off and self._connect_at is None:
            self._connect_at = now + CONNECT_ANEW_S
        self._end_turn()
        return self._live.has_news

    def _receive_live(self, run: Run, now: float) -> int:
        self._cut_off = None  # the number of this message shows what is missing
        if self._live is not None and self._live.arrivals.has_news:
            self._look()  # before the first batch of a new connection
        usual = self.feed.receive_run(run, now)
        if usual:
            return usual
        if run.is_live:
            self._act(self.feed.receive(run.number, run.payload().tobytes(), now), now)
        else:
            self.feed.indexed.applier.drop_frames()
        return 1

    def _receive_replayed(self, run: Run, now: float) -> int:
        frames = run.frames()
        if is_replay(frames):
            seq = int.from_bytes(frames[-2][:SEQ_BYTES], "big")
            self._act(self.feed.receive_replayed(seq, frames[-1], now), now)
        else:
            self.feed.indexed.applier.dropped["replay_frames"] += 1
        return 1

    def _fault(self) -> str | None:
        """What is wrong with the listener itself."""
        return self._failure or self._open_error or self._cut_off

    def _degraded(self) -> Degraded | None:
        """Why the index lacks events of the rank; None: none are known to be missing."""
        fault = self._fault()
        return self.feed.degraded if fault is None else Degraded(fault, self._faulted_at)

    def _long_unconnected(self) -> Unconnected | None:
        """Return the connection that is missing for UNCONNECTED_S."""
        missing = self.unconnected()
        return missing if missing is not None and missing.lasts(time.monotonic()) else None

    def _state(self) -> State:
        if self._failure or self._open_error:
            return "degraded"
        if self._long_unconnected() is not None:
            return "unconnected"
        if self.feed.catching_up:
            return "catching_up"
        if self._degraded() is not None:
            return "degraded"
        if self.feed.doubt is not None:
            return "unverified"
        return "no_events_yet" if self.feed.knows_nothing else "connected"

    def _act(self, action: Action, now: float) -> None:
        if action is None:
            return
        self._stop_replay()
        if isinstance(action, StartReplay):
            try:
                self._start_replay(action.start)
            except zmq.ZMQError as error:
                self._stop_replay()
                reason = f"{self.source.replay_endpoint}: {error}"
                self._act(self.feed.replay_failed(reason, now), now)

    def _connect_anew(self, now: float) -> None:
        """Unless libzmq does it after all."""
        self._connect_at = None
        if self._live is not None and self._live.is_cut_off:
            self._cut_off, self._faulted_at = f"{self.source.endpoint}: {CUT_OFF}", now
            if now - self._cut_off_noticed >= CUT_OFF_NOTICE_S:
                self._cut_off_noticed = now
                self._log(logging.WARNING, "KV event listener is connected anew", self._cut_off)
            self._live.connect_anew()
            self._connect_at = now + CONNECT_ANEW_S if self._live.is_cut_off else None

    def _start_replay(self, start: int) -> None:
        assert self.source.replay_endpoint is not None
        replay = ReplayConnection(self._sockets, self.source.replay_endpoint, self._room)
        self._replay = replay
        self._readiness.watch(replay.socket, self.drain_replay)
        replay.ask(start)

    def _stop_replay(self) -> None:
        if self._replay is not None:
            self._readiness.unwatch(self._replay.socket, self.drain_replay)
            self._replay.close()
            self._replay = None

    def _log(self, level: int, message: str, detail: str) -> None:
        fields = {"worker_id": self.source.worker_id, "dp_rank": self.source.dp_rank}
        logger.log(level, message, extra={"fields": {**fields, "detail": detail}})
