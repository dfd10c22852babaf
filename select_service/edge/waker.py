"""Lets waiting requests go once per turn of the event loop in which room for them appeared."""

import asyncio
from collections.abc import Callable
from time import monotonic


class Waker:
    """The `wake` of a selector; belongs to the thread of the event loop."""

    def __init__(self) -> None:
        self._serve: Callable[[float], None] | None = None
        self._due = False

    def bind(self, serve: Callable[[float], None]) -> None:
        """serve: takes the time, in seconds of the monotonic clock"""
        self._serve = serve

    def __call__(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        assert self._serve is not None
        self._due = False
        self._serve(monotonic())
