"""EDGE: SIGHUP says that files may have changed, and ends nothing."""

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterable

from select_service.edge.file_changes import FollowedFiles

log = logging.getLogger("select_service")


def ignore_hangups() -> None:
    """Let SIGHUP do nothing until somebody takes it over: files are read later than this."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


class Hangup:
    """Lets all files that are followed be read again.  Belongs to one event loop.

    On other threads than the first, which get no signals, SIGHUP does what it did.
    """

    def __init__(self, followed: Callable[[], Iterable[FollowedFiles]]) -> None:
        """followed: returns those that there are when the signal comes"""
        self._followed = followed
        self._is_on = threading.current_thread() is threading.main_thread()

    def start(self) -> None:
        if self._is_on:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._look)

    def stop(self) -> None:
        """Ignore the signal: the process is about to end."""
        if self._is_on:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
            ignore_hangups()

    def _look(self) -> None:
        followed = list(self._followed())
        paths = sorted({str(path) for each in followed for path in each.paths})
        fields = {"paths": paths}
        log.info("SIGHUP received, followed files are read again", extra={"fields": fields})
        for each in followed:
            each.look_now()
