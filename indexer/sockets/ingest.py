"""EDGE: threads that receive KV events and write them into the index.

`reconcile` sets the streams of some workers; every rank stays on one thread while open, so its
batches are applied in order.  The sockets are in `listener`, the decisions in `events.event_feed`.

No message may end a thread.  If a bug ends one, Python's thread hook prints the error, `failure`
returns it to the supervisor, and the other threads continue.
"""

import contextlib
import logging
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import zmq

from indexer.events.kv_event_source import KvSource
from indexer.sockets.batching_delay import BatchingDelay
from indexer.sockets.curve_keypairs import CurveKeyPair, CurveServerKeys, new_key_pair
from indexer.sockets.dns_resolver import Resolver
from indexer.sockets.egress_guard import EgressGuard
from indexer.sockets.file_descriptors import current_limits, raise_descriptor_limit
from indexer.sockets.listener import RankListener
from indexer.sockets.listener_status import ListenerStatus, MissingConnection, StreamPulse
from indexer.sockets.listener_timers import ListenerTimers
from indexer.sockets.read_ahead import ReceiveBudget
from indexer.sockets.replay_rate_limiter import ReplayRateLimiter
from indexer.sockets.socket_poller import SocketPoller
from indexer.sockets.zmq_connector import SocketSettings

RECONCILE_S_MAX = 2.0
"""Seconds that `reconcile` waits for closings.  A thread checks for commands between two drains, so
a wait of this length means that the thread is dead or the machine is stalled.
"""
CLOSE_S_MAX = 1.0
SOCKETS_MAX = 65_535
"""Sockets per context, where libzmq's default is 1023; a rank needs three, two of them for
monitoring the connection of the first, and one more during a replay.
"""
RANK_SOCKETS = 4
IO_THREADS = 4
LISTENERS_AT_ONCE = 4
"""Listeners opened, started, closed or called by timers per turn: half a millisecond each."""

__all__ = ["Ingest", "KvSource", "ListenerStatus"]

Key: TypeAlias = tuple[int, int]

logger = logging.getLogger("indexer.ingest")


@dataclass(slots=True)
class _ListenerChange:
    """Changes of listeners for a thread, in this order."""

    close: dict[RankListener, None] = field(default_factory=dict)
    start: bool = False
    open: dict[RankListener, None] = field(default_factory=dict)

    def merge_later(self, later: "_ListenerChange") -> None:
        """Merge later changes.  However many are added, a listener occurs at most once."""
        for listener in later.close:
            # Opened and closed before the thread got to it: neither is needed.
            if listener in self.open:
                del self.open[listener]
            else:
                self.close[listener] = None
        self.start |= later.start
        self.open |= later.open


class _PendingChanges:
    """Pending changes of a thread, merged, and the waiting callers."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._next = _ListenerChange()
        self._requested = self._done = 0
        """Numbers of changes requested, and finished with their closings."""
        self.has_new = False
        """True if `take_changes` would return a change."""

    def __bool__(self) -> bool:
        return self._requested > self._done

    def add_change(self, change: _ListenerChange) -> int:
        """Add a change; return the number to wait for."""
        with self._condition:
            self._next.merge_later(change)
            self._requested += 1
            self.has_new = True
            return self._requested

    def take_changes(self) -> tuple[_ListenerChange, int]:
        """Return the pending changes, and the number to report when all closings are done."""
        with self._condition:
            change, self._next = self._next, _ListenerChange()
            self.has_new = False
            return change, self._requested

    def mark_closed(self, number: int) -> None:
        with self._condition:
            self._done = number
            self._condition.notify_all()

    def wait_until_closed(self, number: int, timeout_s: float) -> bool:
        """Wait for all closings up to `number`.  Return False on timeout."""
        with self._condition:
            return self._condition.wait_for(lambda: self._done >= number, timeout_s)


class _IngestThread(threading.Thread):
    """Thread that serves its listeners until stopped."""

    def __init__(self, number: int, held: bool) -> None:
        super().__init__(name=f"ingest-{number}", daemon=True)
        self._is_held = held
        self.readiness = SocketPoller()
        self.timers: ListenerTimers[RankListener] = ListenerTimers()
        self.replay_limiter = ReplayRateLimiter()
        self.budget = ReceiveBudget()
        self._gathering = BatchingDelay()
        self.is_serving = True
        self.failure: BaseException | None = None
        self.n_listeners = 0
        """Number of listeners, updated by the code that changes them."""
        self._open: dict[RankListener, None] = {}
        self._stopping = False
        self._changes = _PendingChanges()
        self._remaining = _ListenerChange()
        """Rest of the changes taken, up to `_number`."""
        self._number = 0
        self._to_start: dict[RankListener, None] = {}
        """Open listeners that were held back and wait for their start."""
        self._calls: deque[Callable[[], None]] = deque()
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_out.setblocking(False)
        self._wake_in.setblocking(False)
        self.readiness.watch_file(self._wake_out.fileno(), self._drain_wakes)

    def request_change(self, change: _ListenerChange) -> int:
        """Request a change; return the number for `await_closed`."""
        number = self._changes.add_change(change)
        self._wake_thread()
        return number

    def await_closed(self, number: int, timeout_s: float) -> bool:
        """Wait until closed listeners can write no more.  Return False on timeout."""
        return self._changes.wait_until_closed(number, timeout_s)

    def call_soon(self, call: Callable[[], None]) -> None:
        """Schedule a call on this thread.  Thread-safe."""
        self._calls.append(call)
        self._wake_thread()

    def request_stop(self) -> None:
        self._stopping = True
        self._wake_thread()

    def close_wake_socket(self) -> None:
        """Close the wake-up socket, after the end of the thread."""
        assert not self.is_alive()
        self._wake_in.close()

    def run(self) -> None:
        try:
            while not self._stopping:
                self._run_turn()
        finally:
            self.is_serving = False
            self.failure = sys.exception()
            for listener in self._open:
                listener.close()
            # Callers of `reconcile` must not wait for a thread that has ended.
            self._changes.mark_closed(self._changes.take_changes()[1])
            self.readiness.close()
            self._wake_out.close()

    def _run_turn(self) -> None:
        has_more = self._remaining.close or self._to_start or self._remaining.open
        if self._gathering.pause_s and not (has_more or self.readiness.has_pending):
            self._gathering.pause()
        now = time.monotonic()
        drains = self.readiness.wait_for_drains(
            0.0 if has_more else self.timers.seconds_until_due(now)
        )
        looked = time.monotonic()
        for drain in drains:
            # Changes are made between two drains, so that `reconcile` waits for a drain and not for
            # a turn.
            if drain():
                self.readiness.call_again(drain)
            self._make_changes()
        if not drains:
            self._make_changes()
        now = time.monotonic()
        for listener in self.timers.take_due(now, LISTENERS_AT_ONCE):
            listener.tick(now)
        self._gathering.note_turn(looked, *self.budget.take_counts())

    def _make_changes(self) -> None:
        """Make a few changes, closings first, since callers wait for those."""
        if self._changes.has_new:
            self._take_changes()
        for _ in range(LISTENERS_AT_ONCE):
            todo = self._remaining
            if not (todo.close or self._to_start or todo.open):
                return
            self._change_one()

    def _take_changes(self) -> None:
        change, self._number = self._changes.take_changes()
        self._remaining.merge_later(change)
        if self._remaining.start and self._is_held:
            self._is_held = False
            self._to_start = self._open.copy()
        if not self._remaining.close:
            self._changes.mark_closed(self._number)

    def _change_one(self) -> None:
        """Close, start or open a listener.  Requires one that is left."""
        todo = self._remaining
        if todo.close:
            listener = _pop_first(todo.close)
            listener.close()
            del self._open[listener]
            self._to_start.pop(listener, None)
            if not todo.close:
                self._changes.mark_closed(self._number)
        elif self._to_start:
            _pop_first(self._to_start).start(opened_just_now=False)
        else:
            listener = _pop_first(todo.open)
            self._open[listener] = None
            listener.open()
            if not self._is_held:
                listener.start(opened_just_now=True)

    def _wake_thread(self) -> None:
        # A full buffer wakes the thread already; other errors mean that the thread has ended.
        with contextlib.suppress(OSError):
            self._wake_in.send(b"\0")

    def _drain_wakes(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            self._wake_out.recv(4096)
        if self._calls:
            self._calls.popleft()()
        return bool(self._calls)


_Running: TypeAlias = tuple[_IngestThread, RankListener]


class Ingest:
    """Listeners of all ranks.  Methods may be called on any thread except the ingest threads.

    held: listeners connect, but received messages are queued until `release`.
    boundary: guard of outgoing connections; None allows all
    own_pair: key pair of this process, for engines that authenticate listeners
    """

    def __init__(
        self,
        threads: int,
        *,
        held: bool = False,
        egress_guard: EgressGuard | None = None,
        own_pair: CurveKeyPair | None = None,
    ) -> None:
        assert threads >= 1
        self._own_pair = own_pair
        raise_descriptor_limit()
        self.resolver = Resolver(egress_guard=egress_guard)
        """Resolver for all parts of the process."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(IO_THREADS)
        self._context.set(zmq.MAX_SOCKETS, min(SOCKETS_MAX, self._context.get(zmq.SOCKET_LIMIT)))
        self._changing = threading.Lock()
        """Lock from the first command of a change to its last answer, up to RECONCILE_S_MAX."""
        self._listeners: dict[int, dict[int, _Running]] = {}
        """Listeners by worker id and rank.  The table of a worker is replaced as a whole, and
        readers copy
        the outer table in one step of the interpreter: reading needs no lock.
        """
        self._threads = [_IngestThread(number, held) for number in range(threads)]
        for thread in self._threads:
            thread.start()
        room = current_limits()
        self.ranks_max = min(room.ranks, SOCKETS_MAX // RANK_SOCKETS)
        """Limit of ranks to listen to."""
        self.outgoing_http_max = room.outgoing_http
        """Limit of outgoing HTTP connections."""

    def reconcile(self, changed: Mapping[int, Iterable[KvSource]]) -> None:
        """Open and close listeners until those of the workers in `changed` match their sources.

        changed: by worker id, all sources of its ranks, perhaps none.  Equal ones stay as they
        are, and
        so do other workers: O(ranks of the workers in `changed`).  On return closed listeners no
        longer write through their writers.
        """
        with self._changing:
            changes: dict[_IngestThread, _ListenerChange] = {}
            for worker_id, sources in changed.items():
                self._plan_worker(
                    worker_id, {source.dp_rank: source for source in sources}, changes
                )
            _apply_changes(changes)

    def _plan_worker(
        self,
        worker_id: int,
        wanted: dict[int, KvSource],
        changes: dict[_IngestThread, _ListenerChange],
    ) -> None:
        """Update the table to `wanted`, and add the resulting work of each thread to `changes`.

        wanted: by rank
        """
        running = self._listeners.get(worker_id, {})
        kept: dict[int, _Running] = {}
        for dp_rank, each in running.items():
            thread, listener = each
            source = wanted.get(dp_rank)
            if source is not None and _can_keep_listener(listener.source, source):
                listener.feed.indexed.writers = source.writers
                listener.feed.indexed.applier.copies.total_blocks = source.total_blocks
                kept[dp_rank] = each
            else:
                changes.setdefault(thread, _ListenerChange()).close[listener] = None
                thread.n_listeners -= 1
        for dp_rank, source in wanted.items():
            if dp_rank not in kept:
                thread, listener = kept[dp_rank] = self._make_listener(source)
                changes.setdefault(thread, _ListenerChange()).open[listener] = None
        if kept:
            self._listeners[worker_id] = kept
        else:
            self._listeners.pop(worker_id, None)

    def _make_listener(self, source: KvSource) -> _Running:
        thread = min(self._threads, key=_load_order)
        thread.n_listeners += 1
        server = None if source.server_key is None else self._server_keys(source.server_key)
        sockets = SocketSettings(self._context, self.resolver, thread.call_soon, server=server)
        listener = RankListener(
            source, sockets, thread.readiness, thread.timers, thread.replay_limiter, thread.budget
        )
        return thread, listener

    def _server_keys(self, public_key: str) -> CurveServerKeys:
        """Return the keys for an engine; without a configured pair, a pair is made for this
        process.
        """
        if self._own_pair is None:
            self._own_pair = new_key_pair()
        return CurveServerKeys(public_key.encode(), self._own_pair)

    def start_held_listeners(self) -> None:
        """Let held listeners apply received messages; their writers must be in the initial
        state.
        """
        with self._changing:
            _apply_changes({thread: _ListenerChange(start=True) for thread in self._threads})

    def count_ranks(self) -> int:
        """Return the number of ranks with a listener."""
        return sum(thread.n_listeners for thread in self._threads)

    def statuses(self) -> Iterator[tuple[Key, ListenerStatus]]:
        """Yield the status of every rank, each computed on demand.

        Like the methods below, this waits for no thread, even while `reconcile` does.
        """
        return ((key, listener.status()) for key, listener in self._running_listeners())

    def status_of(self, key: Key) -> ListenerStatus | None:
        """Return the status of a rank; None without a listener."""
        found = self._listeners.get(key[0], {}).get(key[1])
        return None if found is None else found[1].status()

    def pulse_of(self, key: Key) -> StreamPulse | None:
        """Return the pulse of a rank; None without a listener."""
        found = self._listeners.get(key[0], {}).get(key[1])
        return None if found is None else found[1].pulse()

    def missing_connections(self) -> Iterator[tuple[Key, MissingConnection | None]]:
        """Yield every rank with its missing connection, or None if connected."""
        return ((key, listener.missing_connection()) for key, listener in self._running_listeners())

    def server_keys_of(self, key: Key) -> CurveServerKeys | None:
        """Return the keys for the engine of a rank; None means unencrypted."""
        found = self._listeners.get(key[0], {}).get(key[1])
        public_key = None if found is None else found[1].source.server_key
        return None if public_key is None else self._server_keys(public_key)

    def sources(self) -> dict[Key, KvSource]:
        """Return the sources of all listeners.  O(ranks)."""
        return {key: listener.source for key, listener in self._running_listeners()}

    def _running_listeners(self) -> Iterator[tuple[Key, RankListener]]:
        """Yield the listeners of this moment, however slow the reader is."""
        return (
            ((worker_id, dp_rank), listener)
            for worker_id, ranks in self._listeners.copy().items()
            for dp_rank, (_, listener) in ranks.items()
        )

    def failure(self) -> BaseException | None:
        """Return the error that ended a thread; None if all are running."""
        return next((thread.failure for thread in self._threads if thread.failure), None)

    def close(self) -> None:
        """Stop the threads, within CLOSE_S_MAX."""
        until = time.monotonic() + CLOSE_S_MAX
        for thread in self._threads:
            thread.request_stop()
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        # Ending the context waits for every socket, so only when the owners have closed them.
        if not any(thread.is_alive() for thread in self._threads):
            for thread in self._threads:
                thread.close_wake_socket()
            self._context.term()


def _pop_first(listeners: dict[RankListener, None]) -> RankListener:
    listener = next(iter(listeners))
    del listeners[listener]
    return listener


def _apply_changes(changes: dict[_IngestThread, _ListenerChange]) -> None:
    until = time.monotonic() + RECONCILE_S_MAX
    changes = {thread: change for thread, change in changes.items() if thread.is_serving}
    numbers = {thread: thread.request_change(change) for thread, change in changes.items()}
    for thread, number in numbers.items():
        if not thread.await_closed(number, max(0.0, until - time.monotonic())):
            logger.error("%s does not respond", thread.name)


def _can_keep_listener(running: KvSource, wanted: KvSource) -> bool:
    """Return whether a listener may stay: its own writer must be identical, siblings may change."""
    return (
        running.endpoint == wanted.endpoint
        and running.replay_endpoint == wanted.replay_endpoint
        and running.server_key == wanted.server_key
        and running.block_size == wanted.block_size
        and running.is_eagle == wanted.is_eagle
        and running.facts == wanted.facts
        and running.counted == wanted.counted
        and running.writers[running.dp_rank] is wanted.writers[wanted.dp_rank]
    )


def _load_order(thread: _IngestThread) -> tuple[bool, int]:
    return not thread.is_serving, thread.n_listeners
