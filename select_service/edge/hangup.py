"""EDGE: SIGHUP says that files may have changed."""

import asyncio
import signal
import threading
from collections.abc import Callable, Sequence


class Hangup:
    """Tells all who follow files.  Belongs to one event loop.

    Where nobody does, and on other threads than the first, SIGHUP is what it was.
    """

    def __init__(self, told: Sequence[Callable[[], None]]) -> None:
        self._told = told
        self._is_on = bool(told) and threading.current_thread() is threading.main_thread()

    def start(self) -> None:
        if self._is_on:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._tell)

    def stop(self) -> None:
        if self._is_on:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)

    def _tell(self) -> None:
        for told in self._told:
            told()
