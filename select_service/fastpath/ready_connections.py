"""Connections that a kernel reads, answers and writes, many in one call.

A connection is watched while it waits for the beginning of a usual request and nothing is pending.
Its transport does not read meanwhile; an epoll of our own, which the event loop watches, reports
which sockets have input.  Everything else ends the watch first, so that the transport reads again:
parts of requests, what the handler declines, the end of the input, and answers that the client does
not accept at once.
"""

import asyncio
import select
from typing import Any, Protocol

import numpy as np

from select_service.core.array_types import store_pointer
from select_service.fastpath import ready_layout as layout
from select_service.fastpath.service_handler import ServiceHandler


class ReadyConnection(Protocol):
    """Connection that can be watched."""

    def handle_answer(self, data: bytes, answer: bytes | None) -> None:
        """Handle received bytes after `FastHandler.answer_request` for their first request."""

    def stop_watching(self) -> None:
        """Let the transport read again."""

    def abort_after_bug(self) -> None:
        """Abort the connection."""


class ReadyConnections:
    """Watched connections of a server, all with the same handler."""

    def __init__(self, handler: ServiceHandler) -> None:
        """Create the epoll, which exists on Linux only."""
        from select_service.fastpath.ready_kernels import serve_ready

        self._serve_ready = serve_ready
        self._handler, self._random = handler, handler.draw_random
        self._epoll = select.epoll()
        self._header = np.zeros(layout.READY_LENGTH, np.int64)
        self._numbers = self._header.data
        self._events = np.zeros(layout.EVENTS_MAX * layout.EVENT_WORDS, np.int32)
        self._received = np.zeros(layout.RECEIVED_BYTES_MAX, np.uint8)
        self._draws = np.zeros(layout.EVENTS_MAX, np.float64)
        self._watched = np.zeros(layout.SOCKETS_MAX, np.uint8)
        for pair, array in (
            (layout.EVENTS, self._events),
            (layout.RECEIVED, self._received),
            (layout.DRAWS, self._draws),
            (layout.WATCHED, self._watched),
        ):
            store_pointer(self._header, pair, array)
        self._header[layout.EPOLL] = self._epoll.fileno()
        self._header[layout.DRAWN] = layout.EVENTS_MAX
        self._bytes = self._received.data
        # A memory view is faster than the array for single numbers.
        self._random_numbers: Any = self._draws.data
        self._connections: dict[int, ReadyConnection] = {}

    def watch(self, connection: ReadyConnection, socket_fd: int) -> bool:
        """Watch a connection with a paused transport.  Returns whether that is possible."""
        if socket_fd >= layout.SOCKETS_MAX:
            return False
        # The transport has stopped reading, so only one reader takes bytes from the socket.
        try:
            self._epoll.register(socket_fd, select.EPOLLIN)
        except OSError:
            # The system limits how many sockets a user may watch.
            return False
        if not self._connections:
            asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._serve)
        self._connections[socket_fd] = connection
        self._watched[socket_fd] = layout.WATCHED_QUIET
        return True

    def unwatch(self, socket_fd: int) -> None:
        """End the watch of an open socket."""
        # First, because the kernel may have an event of this socket left from its last poll.
        self._watched[socket_fd] = layout.UNWATCHED
        self._epoll.unregister(socket_fd)
        del self._connections[socket_fd]
        if not self._connections:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())

    def take_activity(self, socket_fd: int) -> bool:
        """Return whether the connection got an answer since the last call."""
        is_active: bool = self._watched[socket_fd] == layout.WATCHED_ACTIVE
        self._watched[socket_fd] = layout.WATCHED_QUIET
        return is_active

    def _serve(self) -> None:
        """Serve the connections that are ready, for a bounded time."""
        numbers, draws, random = self._numbers, self._random_numbers, self._random
        # From the generator of the service, so that a seeded service repeats its choices.
        for at in range(numbers[layout.DRAWN]):
            draws[at] = random()
        begins = True
        while self._serve_until_python(begins):
            begins = False

    def _serve_until_python(self, begins: bool) -> bool:
        """Serve connections up to and including the first that needs Python.

        Return whether any are left.
        begins: whether to query first which connections are ready
        """
        self._numbers[layout.HAS_SELECTIONS] = self._handler.keeps_selections
        try:
            status: int = self._serve_ready(self._header, self._handler.header, begins)
        except Exception:
            # One connection ends, and the others of the same events are still served.
            self._connections[self._numbers[layout.SOCKET]].abort_after_bug()
            return True
        if status == layout.NEEDS_PYTHON:
            self._finish_request()
        return status == layout.NEEDS_PYTHON

    def _finish_request(self) -> None:
        """Finish the last request in Python, where the kernel left it."""
        numbers = self._numbers
        socket_fd, n_bytes = numbers[layout.SOCKET], numbers[layout.N_RECEIVED]
        connection = self._connections[socket_fd]
        try:
            if n_bytes <= 0:
                # The transport finds the same, and handles it.
                connection.stop_watching()
                return
            data, draw = (
                bytes(self._bytes[:n_bytes]),
                self._random_numbers[numbers[layout.DRAWN] - 1],
            )
            end = numbers[layout.OUTCOME]
            # `data` is a copy: the kernel receives the next request into the same buffer.
            answer = self._handler.finish_request(end, data, 0, draw, socket_fd)
            connection.handle_answer(data, answer)
        except Exception:
            connection.abort_after_bug()
