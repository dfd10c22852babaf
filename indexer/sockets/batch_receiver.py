"""EDGE: buffer for the messages of a run, shared by all sockets of a thread.

A run is the messages available at one moment; a compiled call receives it.
"""

import ctypes
import errno
import importlib
from typing import Any, NamedTuple

import numpy as np
import zmq
from numpy.typing import NDArray

from indexer.events.event_decoder import PAYLOAD_BYTES_MAX
from indexer.events.message_batch import MessageBatch
from indexer.events.message_batch_layout import END, FRAMES_MAX, ROW_LENGTH
from indexer.page_memory import RETURN_STEP_BYTES, return_pages, zeroed_array
from indexer.sockets import receive_kernels as kernels
from indexer.sockets.socket_options import Socket

RUN_MESSAGES_MAX = 32
RUN_BYTES_MAX = 256 * 1024
"""Bytes of a run; the last message may exceed the limit."""
MESSAGE_BYTES_MAX = PAYLOAD_BYTES_MAX
"""Longest frame; libzmq ends the connection of a peer that sends a longer one."""
OTHER_FRAMES_BYTES_MAX = 64 * 1024
"""Bytes of the other frames of the longest message."""
SKIPPED_FRAMES_MAX = 500
"""Surplus frames of a message that are skipped per step."""
KEPT_BYTES = 1 << 20
"""Memory beyond this is returned after a run."""

BUFFER_BYTES = RUN_BYTES_MAX + MESSAGE_BYTES_MAX + OTHER_FRAMES_BYTES_MAX

_USED = kernels.DRY - 1


class SocketReceiver(NamedTuple):
    """Arguments and results of the receiving kernel for a socket."""

    job: NDArray[np.int64]

    def close(self) -> None:
        """Forbid receiving, before the sockets are closed."""
        self.job[kernels.SOCKET] = self.job[kernels.BESIDE] = 0


class ReceiveBuffer:
    """Inbox of a thread, with one run at a time."""

    def __init__(self) -> None:
        self._buffer = zeroed_array(BUFFER_BYTES, np.uint8)
        self._messages = np.zeros((RUN_MESSAGES_MAX, ROW_LENGTH), np.int64)
        self._is_large = False
        self._functions = _function_addresses("zmq_recv", "zmq_getsockopt", "zmq_errno")

    def make_receiver(
        self, socket: Socket, frames_max: int, beside: "Socket | None" = None
    ) -> SocketReceiver:
        """Return an intake of a socket.

        frames_max: of a longer message the first frames_max + 1 frames are kept
        beside:     socket to check after each run
        """
        assert frames_max < FRAMES_MAX
        job = np.zeros(kernels.JOB_LENGTH, np.int64)
        job[[kernels.RECV, kernels.GETSOCKOPT, kernels.ERRNO]] = self._functions
        job[kernels.SELF] = job.ctypes.data
        job[kernels.BUFFER] = self._buffer.ctypes.data
        job[kernels.BUFFER_BYTES] = BUFFER_BYTES
        job[kernels.SOCKET] = socket.underlying
        job[kernels.BESIDE] = 0 if beside is None else beside.underlying
        job[kernels.FRAMES_MAX] = frames_max
        job[kernels.SKIPPED_MAX] = SKIPPED_FRAMES_MAX
        return SocketReceiver(job)

    def receive(
        self, intake: SocketReceiver, *, one: bool = False
    ) -> tuple[MessageBatch, bool, bool]:
        """Receive the available messages, perhaps none; they replace the last run.

        one: only the first of them.  Raises zmq.ZMQError.
        Returns (messages, the socket is empty, the socket beside it has a message).
        """
        intake.job[kernels.RUN_BYTES] = 1 if one else RUN_BYTES_MAX
        if self._is_large:
            self._return_memory()
        found = kernels.receive_run(intake.job, self._buffer, self._messages)
        used = found & _USED
        if used:
            self._is_large = bool(self._messages[used - 1, END] > KEPT_BYTES)
        elif not found & kernels.DRY:
            self._raise_error(int(intake.job[kernels.ERROR]))
        run = MessageBatch(self._buffer, self._messages[:used])
        return run, bool(found & kernels.DRY), bool(found & kernels.BESIDE_READY)

    @staticmethod
    def _raise_error(error: int) -> None:
        """Raise a permanent error of libzmq; ignore transient errors."""
        if error not in (0, errno.EINTR):
            raise zmq.ZMQError(error)

    def _return_memory(self) -> None:
        self._is_large = False
        for first in range(KEPT_BYTES, BUFFER_BYTES, RETURN_STEP_BYTES):
            return_pages(self._buffer, first, min(RETURN_STEP_BYTES, BUFFER_BYTES - first))


def _function_addresses(*names: str) -> list[int]:
    """Return the addresses of functions in the libzmq that pyzmq uses."""
    backend: Any = importlib.import_module("zmq.backend.cython._zmq")
    # Another copy of libzmq in the process would not know the sockets of pyzmq.
    library = ctypes.PyDLL(backend.__file__)
    pointers = [ctypes.cast(getattr(library, name), ctypes.c_void_p) for name in names]
    return [pointer.value or 0 for pointer in pointers]
