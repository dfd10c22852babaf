"""EDGE: where the messages of one run are laid down, for all sockets of one thread.

A run are messages that are there together; it is received in one compiled call.
"""

import ctypes
import errno
import importlib
from typing import Any, NamedTuple

import numpy as np
import zmq
from numpy.typing import NDArray

from indexer.events.kv_events import PAYLOAD_BYTES_MAX
from indexer.events.run import Run
from indexer.events.run_layout import END, FRAMES_MAX, ROW_LENGTH
from indexer.pages import GIVE_BACK_BYTES, give_back, zeros
from indexer.sockets import receive_kernels as kernels
from indexer.sockets.options import Socket

RUN_MESSAGES_MAX = 32
RUN_BYTES_MAX = 256 * 1024
"""The last message may exceed it."""
MESSAGE_BYTES_MAX = PAYLOAD_BYTES_MAX
"""libzmq ends the connection of a peer that sends a longer frame."""
OTHER_FRAMES_BYTES_MAX = 64 * 1024
"""Of the other frames of the longest message."""
SKIPPED_FRAMES_MAX = 500
"""Of a message that has too many, at once."""
KEPT_BYTES = 1 << 20
"""Memory beyond it is given back after a run."""

BUFFER_BYTES = RUN_BYTES_MAX + MESSAGE_BYTES_MAX + OTHER_FRAMES_BYTES_MAX

_USED = kernels.DRY - 1


class Intake(NamedTuple):
    """One socket's side of an inbox: what its kernel is told, and tells."""

    job: NDArray[np.int64]

    def close(self) -> None:
        """The sockets are to be closed: from now on receiving from them is an error."""
        self.job[kernels.SOCKET] = self.job[kernels.BESIDE] = 0


class Received(NamedTuple):
    """is_dry: nothing was left in the socket; has_news: the socket beside it has a message"""

    run: Run
    is_dry: bool
    has_news: bool


class Inbox:
    """Belongs to one thread.  It holds one run at a time."""

    def __init__(self) -> None:
        self._buffer = zeros(BUFFER_BYTES, np.uint8)
        self._messages = np.zeros((RUN_MESSAGES_MAX, ROW_LENGTH), np.int64)
        self._is_large = False
        self._functions = _addresses("zmq_recv", "zmq_getsockopt", "zmq_errno")

    def intake(self, socket: Socket, frames_max: int, beside: "Socket | None" = None) -> Intake:
        """frames_max: of a longer message the first frames_max + 1 are kept

        beside: looked at after each run
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
        return Intake(job)

    def received(self, intake: Intake, *, one: bool = False) -> Received:
        """The messages that wait, perhaps none; they take the place of the last run.

        one: only the first of them.  Raises zmq.ZMQError.
        """
        intake.job[kernels.RUN_BYTES] = 1 if one else RUN_BYTES_MAX
        if self._is_large:
            self._shrink()
        found = kernels.receive_run(intake.job, self._buffer, self._messages)
        used = found & _USED
        if used:
            self._is_large = bool(self._messages[used - 1, END] > KEPT_BYTES)
        elif not found & kernels.DRY:
            self._raise_error(int(intake.job[kernels.ERROR]))
        run = Run(self._buffer, self._messages[:used])
        return Received(run, bool(found & kernels.DRY), bool(found & kernels.BESIDE_READY))

    @staticmethod
    def _raise_error(error: int) -> None:
        """One that will not go away by itself."""
        if error not in (0, errno.EINTR):
            raise zmq.ZMQError(error)

    def _shrink(self) -> None:
        self._is_large = False
        for first in range(KEPT_BYTES, BUFFER_BYTES, GIVE_BACK_BYTES):
            give_back(self._buffer, first, min(GIVE_BACK_BYTES, BUFFER_BYTES - first))


def _addresses(*names: str) -> list[int]:
    """Of functions of libzmq, the one that pyzmq is linked with."""
    backend: Any = importlib.import_module("zmq.backend.cython._zmq")
    library = ctypes.PyDLL(backend.__file__)
    pointers = [ctypes.cast(getattr(library, name), ctypes.c_void_p) for name in names]
    return [pointer.value or 0 for pointer in pointers]
