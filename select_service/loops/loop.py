"""Python's side of one loop: its memory, its thread, what it hands over and asks, its end."""

import ctypes
import logging
import os
import select
import socket
import threading
from collections.abc import Callable
from random import SystemRandom
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from indexer.mutex import Mutex
from select_service.core.arrays import name_array
from select_service.fast.request_layout import NONE, TEXT_BYTES_MAX
from select_service.fast.serve_layout import UNKNOWN
from select_service.http import protocol as bounds
from select_service.loops import loop_layout as layout
from select_service.loops.libc_kernels import EVENT_WORDS
from select_service.loops.loop_kernels import run

PARKED_S_MAX = 1.0
"""How long Python may take to mend something before the connection is handed over."""

log = logging.getLogger("select_service")

_free = ctypes.CDLL(None).free
_free.argtypes = [ctypes.c_void_p]
_free.restype = None


class Limits(NamedTuple):
    """Of a loop.  Those of one connection are those of `http.protocol`."""

    connections: int = bounds.CONNECTIONS_MAX
    idle_s: float = bounds.KEEP_ALIVE_S
    crowded_s: float = bounds.CROWDED_KEEP_ALIVE_S
    request_s: float = bounds.REQUEST_READ_S_MAX
    unread_s: float = bounds.UNREAD_S_MAX
    parked_s: float = PARKED_S_MAX


class Handed(NamedTuple):
    """A connection that is the event loop's now.

    received: what came in and is not answered;  unsent: the rest of answers;  why: loop_layout
    returns: how often it had come back to the loop
    """

    fd: int
    received: bytes
    unsent: bytes
    why: int
    returns: int


class Question(NamedTuple):
    """What Python has to mend.  kind: STALE, UNKNOWN or UNTOLD of fast.serve_layout

    row, slot: of UNTOLD;  names_hash, names: of UNKNOWN; a name that is not given is None
    """

    kind: int
    row: int
    slot: int
    names_hash: int
    names: tuple[str | None, str | None]


class InputLoop:
    """Everything but `start`, `stop` and `close` is for who holds `mutex`."""

    def __init__(
        self,
        listener: socket.socket,
        state: npt.NDArray[np.int64],
        limits: Limits,
    ) -> None:
        """listener: of this loop alone, which closes it
        state: of the answering (fast.serve_layout)
        """
        self.mutex = Mutex()
        self.header = np.zeros(layout.LOOP_LENGTH, np.int64)
        self.error: int | None = None
        """Of the system, once the loop has ended by itself."""
        self.thread: threading.Thread | None = None
        self.listener = listener
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.told = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when there is something for `take` or `question`."""
        self._kept: list[npt.NDArray[Any]] = [state]
        self._name_arrays(state, limits)
        self._name_numbers(limits)
        listener.setblocking(False)

    def _name_arrays(self, state: npt.NDArray[np.int64], limits: Limits) -> None:
        n = limits.connections
        self._handed = np.zeros((2 * n, layout.HANDED_LENGTH), np.int64)
        self._returned = np.zeros((n, layout.RETURN_LENGTH), np.int64)
        self._names = np.zeros(2 * TEXT_BYTES_MAX, np.uint8)
        self.connections = np.zeros(n * layout.ROW_LENGTH, np.int64)
        self.counters = np.zeros(layout.N_COUNTERS, np.int64)
        arrays: dict[int, npt.NDArray[Any]] = {
            layout.STATE: state,
            layout.CONNECTIONS: self.connections,
            layout.EVENTS: np.zeros(layout.EVENTS_MAX * EVENT_WORDS, np.int32),
            layout.EVENT: np.zeros(EVENT_WORDS, np.int32),
            layout.RECEIVED: np.zeros(layout.RECEIVED_BYTES, np.uint8),
            layout.ANSWERS: np.zeros(layout.ANSWERS_BYTES, np.uint8),
            layout.HANDED: self._handed,
            layout.NAMES: self._names,
            layout.WORD: np.zeros(1, np.int64),
            layout.COUNTERS: self.counters,
            layout.RETURNED: self._returned,
        }
        for pair, array in arrays.items():
            name_array(self.header, pair, array)
            self._kept.append(array)

    def _name_numbers(self, limits: Limits) -> None:
        header = self.header
        header[layout.MUTEX] = self.mutex.address
        header[layout.EPOLL] = self._epoll.fileno()
        header[layout.LISTENER] = self.listener.fileno()
        header[layout.WAKE], header[layout.TELL] = self._wake, self.told
        header[layout.SEED] = SystemRandom().getrandbits(62) | 1
        header[layout.FREE_ROW] = NONE
        header[layout.IDLE_NS] = int(limits.idle_s * 1e9)
        header[layout.CROWDED_NS] = int(limits.crowded_s * 1e9)
        header[layout.REQUEST_NS] = int(limits.request_s * 1e9)
        header[layout.UNREAD_NS] = int(limits.unread_s * 1e9)
        header[layout.PARKED_NS] = int(limits.parked_s * 1e9)

    def start(self, number: int, ended: Callable[[], object]) -> None:
        """ended: called on the thread, at its end.  Raises RuntimeError without a thread."""

        def serve() -> None:
            try:
                self.error = run(self.header)
            finally:
                ended()

        self.thread = threading.Thread(target=serve, name=f"input-loop-{number}", daemon=True)
        self.thread.start()

    @property
    def is_stopping(self) -> bool:
        return bool(self.header[layout.STOPS])

    def stop(self, keeps_idle: bool) -> None:
        """Let the thread end; what it has in hand can be taken then.

        keeps_idle: connections too on which nothing has come in
        """
        self.header[layout.STOPS] = layout.KEEPS_IDLE if keeps_idle else layout.DROPS_IDLE
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """The thread has ended, or never begun."""
        for fd, _ in self._returned[: self.header[layout.N_RETURNED]].tolist():
            os.close(fd)
        self.listener.close()
        self._epoll.close()
        os.close(self._wake)
        os.close(self.told)

    def take(self) -> list[Handed]:
        """Connections that were handed over since the last call.

        Where no memory is left for what came from a client, its connection is closed.
        """
        n = int(self.header[layout.N_HANDED])
        self.header[layout.N_HANDED] = 0
        handed = []
        for record in self._handed[:n].tolist():
            try:
                handed.append(_handed(record))
            except MemoryError:
                os.close(record[0])
                log.error("connection closed, no memory is left for its request")
        return handed

    def give_back(self, fd: int, returns: int) -> bool:
        """A connection with nothing in hand comes back.  False: the loop does not take it."""
        n = int(self.header[layout.N_RETURNED])
        if self.is_stopping or n == len(self._returned):
            return False
        self._returned[n] = fd, returns
        self.header[layout.N_RETURNED] = n + 1
        os.eventfd_write(self._wake, 1)
        return True

    def question(self) -> Question | None:
        header = self.header[layout.QUESTION : layout.Q_TENANT + 1].tolist()
        kind, row, slot, names_hash, *lengths = header
        if kind == 0:
            return None
        names: tuple[str | None, str | None] = (None, None)
        if kind == UNKNOWN:
            names = self._name(0, lengths[0]), self._name(TEXT_BYTES_MAX, lengths[1])
        return Question(kind, row, slot, names_hash, names)

    def _name(self, at: int, length: int) -> str | None:
        if length == NONE:
            return None
        return self._names[at : at + length].tobytes().decode("ascii")

    def mended(self) -> None:
        """What was asked for is done, or cannot be: whoever waits is looked at again."""
        self.header[layout.QUESTION] = 0
        os.eventfd_write(self._wake, 1)


def _handed(record: list[int]) -> Handed:
    fd, buffer, held, unsent, length, sent, why, returns = record
    try:
        received = ctypes.string_at(buffer, held) if buffer else b""
        rest = ctypes.string_at(unsent + sent, length - sent) if unsent else b""
    finally:
        _free(buffer)
        _free(unsent)
    return Handed(fd, received, rest, why, returns)
