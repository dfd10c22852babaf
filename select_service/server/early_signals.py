"""Immediate exit on a signal while there is nothing to shut down gracefully.

Python runs signal handlers between two instructions of the main thread, which may be inside the
compiler for seconds, and an exception raised by a handler inside a compiler callback is lost.  A
thread therefore waits for signals, woken by the interpreter's low-level handler.
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
_exit_callbacks: list[Callable[[], None]] = []


def add_exit_callback(act: Callable[[], None]) -> None:
    """Register a callback for the arrival of a signal.

    It must be quick and may run on any thread.
    """
    _exit_callbacks.append(act)


def ignore_hangups() -> None:
    """Ignore SIGHUP until a handler is installed: no file has been read yet."""
    signal.signal(signal.SIGHUP, _ignore_signal)


@contextmanager
def exit_immediately_on_signal(status: int) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the process with this status inside the context.

    After the context, the signals raise SystemExit(0) until another handler is installed.
    """
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    # The interpreter's C handler writes the signal number here, even while Python code is blocked.
    signal.set_wakeup_fd(sender.fileno())
    for number in SIGNALS:
        signal.signal(number, _ignore_signal)
    threading.Thread(
        target=_wait_for_signal, args=(receiver, status), name="early-signals", daemon=True
    ).start()
    try:
        yield
    finally:
        # The next handlers first: a signal between the two must not be lost.
        for number in SIGNALS:
            signal.signal(number, _raise_system_exit)
        signal.set_wakeup_fd(-1)
        sender.close()


def _wait_for_signal(receiver: socket.socket, status: int) -> None:
    """Wait for a signal, or for the other end to be closed."""
    with receiver:
        while numbers := receiver.recv(1):
            if numbers[0] in SIGNALS:
                for act in _exit_callbacks:
                    act()
                # Not sys.exit: the main thread may be inside the compiler and never see an
                # exception.
                os._exit(status)


def _ignore_signal(number: int, frame: FrameType | None) -> None:
    """Do nothing: the thread acts."""


def _raise_system_exit(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)
