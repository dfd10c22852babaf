"""SIGHUP handler that reloads followed files; the signal never ends the process."""

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterable

from select_service.adapters.reload.file_watch import FollowedFiles

log = logging.getLogger("select_service")


def ignore_hangups() -> None:
    """Ignore SIGHUP until `SighupReload.start`: files are first read later than this."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


class SighupReload:
    """SIGHUP handler that reloads all followed files.  Belongs to one event loop.

    Outside the main thread, which alone receives signals, SIGHUP keeps its previous effect.
    """

    def __init__(self, followed: Callable[[], Iterable[FollowedFiles]]) -> None:
        """followed: function that returns the followed files at the time of the signal"""
        self._followed = followed
        self._is_on = threading.current_thread() is threading.main_thread()

    def start(self) -> None:
        """Install the handler."""
        if self._is_on:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload_all)

    def stop(self) -> None:
        """Ignore the signal from now on: the process is about to end."""
        if self._is_on:
            # Removing the handler restores SIG_DFL, with which SIGHUP would kill the process mid-
            # shutdown.
            asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
            ignore_hangups()

    def _reload_all(self) -> None:
        followed = list(self._followed())
        paths = sorted({str(path) for each in followed for path in each.paths})
        fields = {"paths": paths}
        log.info("SIGHUP received, reloading followed files", extra={"fields": fields})
        for each in followed:
            each.trigger_read()
