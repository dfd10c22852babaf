"""EDGE: the threads that receive KV events and write them into the index.

`follow` states which streams of some workers should exist; every rank stays on one thread while it
is open, so its batches are applied in order.  The sockets are in `listener`, the decisions in
`events.feed`.

A thread never ends because of what arrives.  Should a bug end one, Python's thread hook prints it,
`failure` tells the supervisor, and the other threads go on.
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

from indexer.events.kv_source import KvSource
from indexer.sockets.arrivals import Room
from indexer.sockets.ask_pace import AskPace
from indexer.sockets.boundary import Boundary
from indexer.sockets.curve import CurvePair, CurveServer, new_pair
from indexer.sockets.descriptors import allow_many, present_room
from indexer.sockets.dial import Sockets
from indexer.sockets.gathering import Gathering
from indexer.sockets.listener import Listener
from indexer.sockets.listener_status import ListenerStatus, Pulse, Unconnected
from indexer.sockets.names import Names
from indexer.sockets.readiness import Readiness
from indexer.sockets.timers import Timers

FOLLOW_S_MAX = 2.0
"""How long `follow` waits for the closings.  A thread looks for commands between two drains, so
a wait of this length means that the thread is dead or the machine is stalled."""
CLOSE_S_MAX = 1.0
SOCKETS_MAX = 65_535
"""libzmq's default is 1023 per context; a rank needs three, two of which tell of the connection of
the first, and one more while it catches up."""
RANK_SOCKETS = 4
IO_THREADS = 4
LISTENERS_AT_ONCE = 4
"""Opened, started, closed or called by their timers before others have their turn: half a
millisecond each."""

__all__ = ["Ingest", "KvSource", "ListenerStatus"]

Key: TypeAlias = tuple[int, int]

logger = logging.getLogger("indexer.ingest")


@dataclass(slots=True)
class _Change:
    """What one thread has to do, in this order."""

    close: dict[Listener, None] = field(default_factory=dict)
    start: bool = False
    open: dict[Listener, None] = field(default_factory=dict)

    def add(self, later: "_Change") -> None:
        """Both in one.  However many are added, a listener is named once at most."""
        for listener in later.close:
            if listener in self.open:
                del self.open[listener]
            else:
                self.close[listener] = None
        self.start |= later.start
        self.open |= later.open


class _Changes:
    """Those that one thread has yet to make, in one, and who waits for them."""

    def __init__(self) -> None:
        self._told = threading.Condition()
        self._next = _Change()
        self._asked = self._taken = self._done = 0
        """How many changes there have been, how many of them the thread knows, and how many have
        closed what they close."""

    def __bool__(self) -> bool:
        return self._asked > self._done

    @property
    def has_new(self) -> bool:
        """Is there anything to `take`?"""
        return self._asked > self._taken

    def ask(self, change: _Change) -> int:
        """The number to wait for."""
        with self._told:
            self._next.add(change)
            self._asked += 1
            return self._asked

    def take(self) -> tuple[_Change, int]:
        """What is to be done now, and the number to be told when all is closed."""
        with self._told:
            change, self._next = self._next, _Change()
            self._taken = self._asked
            return change, self._asked

    def closed(self, number: int) -> None:
        with self._told:
            self._done = number
            self._told.notify_all()

    def wait(self, number: int, timeout_s: float) -> bool:
        """Until what was asked before is closed.  False: not in time."""
        with self._told:
            return self._told.wait_for(lambda: self._done >= number, timeout_s)


class _IngestThread(threading.Thread):
    """Serves its listeners until asked to stop."""

    def __init__(self, number: int, held: bool) -> None:
        super().__init__(name=f"ingest-{number}", daemon=True)
        self._held = held
        self.readiness = Readiness()
        self.timers: Timers[Listener] = Timers()
        self.pace = AskPace()
        self.room = Room()
        self._gathering = Gathering()
        self.is_serving = True
        self.failure: BaseException | None = None
        self.n_listeners = 0
        """Kept by whoever changes the listeners."""
        self._open: dict[Listener, None] = {}
        self._stopping = False
        self._changes = _Changes()
        self._todo = _Change()
        """What is left of the changes that were taken, up to this number:"""
        self._number = 0
        self._to_start: dict[Listener, None] = {}
        """Those that were held, and are open."""
        self._calls: deque[Callable[[], None]] = deque()
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_out.setblocking(False)
        self._wake_in.setblocking(False)
        self.readiness.watch_file(self._wake_out.fileno(), self._drain_wakes)

    def request(self, change: _Change) -> int:
        """The number to `await_closed`."""
        number = self._changes.ask(change)
        self._wake()
        return number

    def await_closed(self, number: int, timeout_s: float) -> bool:
        """Until nothing is written for those to be closed.  False: not in time."""
        return self._changes.wait(number, timeout_s)

    def call(self, call: Callable[[], None]) -> None:
        """Have it called soon on this thread; may be called on any."""
        self._calls.append(call)
        self._wake()

    def stop(self) -> None:
        self._stopping = True
        self._wake()

    def release(self) -> None:
        """After the end of the thread: close what others used to wake it."""
        assert not self.is_alive()
        self._wake_in.close()

    def run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        finally:
            self.is_serving = False
            self.failure = sys.exception()
            for listener in self._open:
                listener.close()
            self._changes.closed(self._changes.take()[1])
            self.readiness.close()
            self._wake_out.close()

    def _turn(self) -> None:
        has_more = self._todo.close or self._to_start or self._todo.open
        if self._gathering.rest_s and not (has_more or self.readiness.has_some):
            self._gathering.rest()
        now = time.monotonic()
        drains = self.readiness.wait(0.0 if has_more else self.timers.patience(now))
        looked = time.monotonic()
        for drain in drains:
            if drain():
                self.readiness.again(drain)
            self._make_changes()
        self._make_changes()
        now = time.monotonic()
        for listener in self.timers.take_due(now, LISTENERS_AT_ONCE):
            listener.tick(now)
        self._gathering.turned(looked, *self.room.take_received())

    def _make_changes(self) -> None:
        """A few of them: those who wait for closings wait for nothing else."""
        if self._changes.has_new:
            self._take_changes()
        for _ in range(LISTENERS_AT_ONCE):
            if not self._change_one():
                return

    def _take_changes(self) -> None:
        change, self._number = self._changes.take()
        self._todo.add(change)
        if self._todo.start and self._held:
            self._held = False
            self._to_start = self._open.copy()
        if not self._todo.close:
            self._changes.closed(self._number)

    def _change_one(self) -> bool:
        """Close, start or open one listener.  False: there is none."""
        todo = self._todo
        if todo.close:
            listener = _pop_first(todo.close)
            listener.close()
            del self._open[listener]
            self._to_start.pop(listener, None)
            if not todo.close:
                self._changes.closed(self._number)
        elif self._to_start:
            _pop_first(self._to_start).start(opened_just_now=False)
        elif todo.open:
            listener = _pop_first(todo.open)
            self._open[listener] = None
            listener.open()
            if not self._held:
                listener.start(opened_just_now=True)
        else:
            return False
        return True

    def _wake(self) -> None:
        # A full buffer is reason enough to wake already; the other errors are an ended thread's.
        with contextlib.suppress(OSError):
            self._wake_in.send(b"\0")

    def _drain_wakes(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            self._wake_out.recv(4096)
        if self._calls:
            self._calls.popleft()()
        return bool(self._calls)


_Running: TypeAlias = tuple[_IngestThread, Listener]


class Ingest:
    """Listeners of all ranks.  Methods may be called on any thread but the ingest threads.

    held: listeners connect, but what they receive is kept until `release`.
    boundary: where this process may connect to; None: everywhere
    own: our pair of keys, for engines that want to know who listens
    """

    def __init__(
        self,
        threads: int,
        *,
        held: bool = False,
        boundary: Boundary | None = None,
        own: CurvePair | None = None,
    ) -> None:
        assert threads >= 1
        self._own = own
        allow_many()
        self.names = Names(boundary=boundary)
        """For everybody in the process who has names to look up."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(IO_THREADS)
        self._context.set(zmq.MAX_SOCKETS, min(SOCKETS_MAX, self._context.get(zmq.SOCKET_LIMIT)))
        self._changing = threading.Lock()
        """Held from the first command of a change to its last answer, up to FOLLOW_S_MAX."""
        self._listeners: dict[int, dict[int, _Running]] = {}
        """By worker id and rank.  Those of a worker are replaced as a whole, and who looks copies
        the outer table in one step of the interpreter: looking needs no lock."""
        self._threads = [_IngestThread(number, held) for number in range(threads)]
        for thread in self._threads:
            thread.start()
        room = present_room()
        self.ranks_max = min(room.ranks, SOCKETS_MAX // RANK_SOCKETS)
        """Ranks that can be listened to."""
        self.asking_max = room.asking
        """Connections that are left to ask others over HTTP."""

    def follow(self, changed: Mapping[int, Iterable[KvSource]]) -> None:
        """Open and close listeners until those of the workers in `changed` match their sources.

        changed: by worker id, all sources of its ranks, perhaps none.  Equal ones are left alone,
        and so are other workers: O(ranks of the workers in `changed`).  On return nothing more is
        written through the writers of closed listeners.
        """
        with self._changing:
            changes: dict[_IngestThread, _Change] = {}
            for worker_id, sources in changed.items():
                self._plan(worker_id, {source.dp_rank: source for source in sources}, changes)
            _make(changes)

    def _plan(
        self, worker_id: int, wanted: dict[int, KvSource], changes: dict[_IngestThread, _Change]
    ) -> None:
        """Enter what `wanted` changes, and add to `changes` what each thread has to do for it.

        wanted: by rank
        """
        running = self._listeners.get(worker_id, {})
        kept: dict[int, _Running] = {}
        for dp_rank, each in running.items():
            thread, listener = each
            source = wanted.get(dp_rank)
            if source is not None and _is_same(listener.source, source):
                listener.feed.indexed.writers = source.writers
                listener.feed.indexed.applier.total_blocks = source.total_blocks
                kept[dp_rank] = each
            else:
                changes.setdefault(thread, _Change()).close[listener] = None
                thread.n_listeners -= 1
        for dp_rank, source in wanted.items():
            if dp_rank not in kept:
                thread, listener = kept[dp_rank] = self._new(source)
                changes.setdefault(thread, _Change()).open[listener] = None
        if kept:
            self._listeners[worker_id] = kept
        else:
            self._listeners.pop(worker_id, None)

    def _new(self, source: KvSource) -> _Running:
        thread = min(self._threads, key=_burden)
        thread.n_listeners += 1
        server = None if source.server_key is None else self._server(source.server_key)
        sockets = Sockets(self._context, self.names, thread.call, server=server)
        listener = Listener(
            source, sockets, thread.readiness, thread.timers, thread.pace, thread.room
        )
        return thread, listener

    def _server(self, public_key: str) -> CurveServer:
        """An engine that wants to know nobody gets a pair that is made for this process."""
        if self._own is None:
            self._own = new_pair()
        return CurveServer(public_key.encode(), self._own)

    def release(self) -> None:
        """Let the listeners take what has arrived; their writers are as they shall begin."""
        with self._changing:
            _make({thread: _Change(start=True) for thread in self._threads})

    def n_ranks(self) -> int:
        """Return how many ranks are listened to."""
        return sum(thread.n_listeners for thread in self._threads)

    def statuses(self) -> Iterator[tuple[Key, ListenerStatus]]:
        """Of every rank, each when it is asked for.

        Like those that follow it waits for no thread, whatever `follow` waits for.
        """
        return ((key, listener.status()) for key, listener in self._running())

    def status_of(self, key: Key) -> ListenerStatus | None:
        """None when the rank is not listened to."""
        found = self._listeners.get(key[0], {}).get(key[1])
        return None if found is None else found[1].status()

    def pulse_of(self, key: Key) -> Pulse | None:
        """None when the rank is not listened to."""
        found = self._listeners.get(key[0], {}).get(key[1])
        return None if found is None else found[1].pulse()

    def connections(self) -> Iterator[tuple[Key, Unconnected | None]]:
        """Yield every rank with the connection that is missing, None where it stands."""
        return ((key, listener.unconnected()) for key, listener in self._running())

    def server_of(self, key: Key) -> CurveServer | None:
        """With which keys the engine of a rank is talked to; None: with none."""
        found = self._listeners.get(key[0], {}).get(key[1])
        public_key = None if found is None else found[1].source.server_key
        return None if public_key is None else self._server(public_key)

    def sources(self) -> dict[Key, KvSource]:
        """What the listeners were told.  O(ranks)."""
        return {key: listener.source for key, listener in self._running()}

    def _running(self) -> Iterator[tuple[Key, Listener]]:
        """As they are now, however slowly they are asked for."""
        return (
            ((worker_id, dp_rank), listener)
            for worker_id, ranks in self._listeners.copy().items()
            for dp_rank, (_, listener) in ranks.items()
        )

    def failure(self) -> BaseException | None:
        """What ended a thread that was not asked to end; None while all is well."""
        return next((thread.failure for thread in self._threads if thread.failure), None)

    def close(self) -> None:
        """Stop the threads, at most CLOSE_S_MAX."""
        until = time.monotonic() + CLOSE_S_MAX
        for thread in self._threads:
            thread.stop()
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        # Ending the context waits for every socket, so only when their owners have closed them.
        if not any(thread.is_alive() for thread in self._threads):
            for thread in self._threads:
                thread.release()
            self._context.term()


def _pop_first(listeners: dict[Listener, None]) -> Listener:
    listener = next(iter(listeners))
    del listeners[listener]
    return listener


def _make(changes: dict[_IngestThread, _Change]) -> None:
    until = time.monotonic() + FOLLOW_S_MAX
    changes = {thread: change for thread, change in changes.items() if thread.is_serving}
    numbers = {thread: thread.request(change) for thread, change in changes.items()}
    for thread, number in numbers.items():
        if not thread.await_closed(number, max(0.0, until - time.monotonic())):
            logger.error("%s does not respond", thread.name)


def _is_same(running: KvSource, wanted: KvSource) -> bool:
    """May the listener go on?  Its own writer must be the very object, siblings may change."""
    return (
        running.endpoint == wanted.endpoint
        and running.replay_endpoint == wanted.replay_endpoint
        and running.server_key == wanted.server_key
        and running.block_size == wanted.block_size
        and running.is_eagle == wanted.is_eagle
        and running.counted == wanted.counted
        and running.writers[running.dp_rank] is wanted.writers[wanted.dp_rank]
    )


def _burden(thread: _IngestThread) -> tuple[bool, int]:
    return not thread.is_serving, thread.n_listeners
