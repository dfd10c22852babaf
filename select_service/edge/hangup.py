"""EDGE: SIGHUP says that files may have changed, and ends nothing."""

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

log = logging.getLogger("select_service")


def ignore_hangups() -> None:
    """Let SIGHUP do nothing until somebody takes it over: files are read later than this."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


class FileFollower(Protocol):
    """Reads files again when they change."""

    @property
    def paths(self) -> Sequence[Path]: ...
    def look_now(self) -> None:
        """Read the files whether they have changed or not."""


class Hangup:
    """Lets all followers of files read them again.  Belongs to one event loop.

    On other threads than the first, which get no signals, SIGHUP does what it did.
    """

    def __init__(self, followers: Callable[[], Iterable[FileFollower]]) -> None:
        """followers: returns those that there are when the signal comes"""
        self._followers = followers
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
        followers = list(self._followers())
        paths = sorted({str(path) for each in followers for path in each.paths})
        fields = {"paths": paths}
        log.info("SIGHUP received, followed files are read again", extra={"fields": fields})
        for each in followers:
            each.look_now()
