"""Event loop callbacks with counted and logged exceptions.

An exception in a callback never reaches the task that supervises the process: the loop prints the
exception, and a socket with an edge-triggered descriptor is not read again.  Every callback passed
to the loop is therefore wrapped by `GuardedCallbacks.guard_callback`: failures are counted and
logged once per episode, and the loop continues.
"""

import logging
from collections.abc import Callable
from time import monotonic
from typing import ParamSpec

from select_service.adapters.logs.log_throttle import LogThrottle

log = logging.getLogger("select_service.callbacks")

P = ParamSpec("P")


class GuardedCallbacks:
    """Failure counters of callbacks.  Belongs to the thread of the event loop."""

    def __init__(self) -> None:
        self.failures: dict[str, int] = {}
        """Number of failed calls by callback name."""
        self._episodes = LogThrottle()

    def guard_callback(self, name: str, callback: Callable[P, None]) -> Callable[P, None]:
        """Return the callback wrapped so that no exception leaves it.

        name: name for the log and the metric
        """
        self.failures.setdefault(name, 0)

        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                callback(*args, **kwargs)
            except Exception:
                self.record_failure(name)

        return run

    def record_failure(self, name: str) -> None:
        """Count the exception just caught, and log the first of an episode."""
        self.failures[name] = self.failures.get(name, 0) + 1
        if self._episodes.begins_episode(name, monotonic()):
            log.exception("callback failed; continuing", extra={"fields": {"callback": name}})
