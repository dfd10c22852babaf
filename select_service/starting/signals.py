"""A signal ends the process at once while there is nothing to end gracefully.

Python runs signal handlers between two instructions of the main thread, which may be inside the
compiler for seconds, and what a handler raises inside a callback of the compiler is lost.  So a
thread waits for signals instead, told by the interpreter's low-level handler.
"""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_before_end: list[Callable[[], None]] = []


def before_end(act: Callable[[], None]) -> None:
    """Call `act` when a signal comes; it must be quick and may run on any thread."""
    _before_end.append(act)


def ignore_hangups() -> None:
    """Let SIGHUP do nothing until somebody takes it over: all files are still to be read."""
    signal.signal(signal.SIGHUP, _nothing)


@contextmanager
def leaving_at_once(status: int) -> Iterator[None]:
    """Inside, SIGINT and SIGTERM end the process with this status, whatever the main thread does.

    Afterwards they raise SystemExit(0), until somebody takes them over.
    """
    heard, told = socket.socketpair()
    told.setblocking(False)
    signal.set_wakeup_fd(told.fileno())
    for number in SIGNALS:
        signal.signal(number, _nothing)
    threading.Thread(target=_wait, args=(heard, status), name="early-signals", daemon=True).start()
    try:
        yield
    finally:
        # The next handlers first: a signal between the two must not be lost.
        for number in SIGNALS:
            signal.signal(number, _leave)
        signal.set_wakeup_fd(-1)
        told.close()


def _wait(heard: socket.socket, status: int) -> None:
    """Until a signal comes, or the other end is closed."""
    with heard:
        while numbers := heard.recv(1):
            if numbers[0] in SIGNALS:
                for act in _before_end:
                    act()
                os._exit(status)


def _nothing(number: int, frame: FrameType | None) -> None:
    """The thread acts."""


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)
