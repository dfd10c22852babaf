"""Wake-up of queued requests, at most once per event loop iteration in which capacity was freed."""

import asyncio
from collections.abc import Callable
from time import monotonic


class QueueWaker:
    """Callable passed to a selector as `wake`.  Belongs to the thread of the event loop."""

    def __init__(self) -> None:
        self._serve: Callable[[float], None] | None = None
        self._due = False

    def bind_queue(self, serve: Callable[[float], None]) -> None:
        """Set the function that serves the queue; its argument is the monotonic time in seconds."""
        self._serve = serve

    def __call__(self) -> None:
        if not self._due:
            self._due = True
            # Deferred and merged: one request may free capacity many times, and serving inside of
            # `free` would re-enter the selector.
            asyncio.get_running_loop().call_soon(self._serve_queue)

    def _serve_queue(self) -> None:
        assert self._serve is not None
        self._due = False
        self._serve(monotonic())
