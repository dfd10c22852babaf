"""EDGE: callbacks of the event loop that cannot fail unnoticed.

What a callback raises never reaches the task that supervises the process: the loop prints it, and a
socket whose descriptor tells of changes only is not read again.  So every callback that is given to
the loop goes through `Callbacks.supervised`: its failures are counted and told of once per episode,
and the caller goes on.
"""

import logging
from collections.abc import Callable
from time import monotonic
from typing import ParamSpec

from select_service.edge.episodes import Episodes

log = logging.getLogger("select_service.callbacks")

P = ParamSpec("P")


class Callbacks:
    """Belongs to the thread of the event loop."""

    def __init__(self) -> None:
        self.failures: dict[str, int] = {}
        """Calls that raised, by the name of the callback."""
        self._episodes = Episodes()

    def supervised(self, name: str, callback: Callable[P, None]) -> Callable[P, None]:
        """The callback without its exceptions.  name: for the log and the metric."""
        self.failures.setdefault(name, 0)

        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                callback(*args, **kwargs)
            except Exception:
                self.failed(name)

        return run

    def failed(self, name: str) -> None:
        """Count what has just been caught, and tell of it once per episode."""
        self.failures[name] = self.failures.get(name, 0) + 1
        if self._episodes.begins(name, monotonic()):
            log.exception("a callback failed; going on", extra={"fields": {"callback": name}})
