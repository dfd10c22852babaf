"""Where sockets may lead: judged by whoever built the process, and of the very address.

Names are looked up by us and sockets are given addresses only, so an address that was judged is the
one that is connected to: a name that leads elsewhere a moment later changes nothing.
"""

import threading
from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

Refusal: TypeAlias = Callable[[str, str | None], str | None]
"""The host as it was asked for, and its address, None for what stays on this machine (ipc, inproc)
-> why nothing may be connected to there; None: it may.  Called on any thread."""


def _nowhere(host: str, address: str | None) -> str | None:
    return None


class Boundary:
    """All methods may be called on any thread."""

    def __init__(self, refusal: Refusal = _nowhere) -> None:
        self.refusal = refusal
        self._refused: Counter[str] = Counter()
        self._lock = threading.Lock()

    def count(self, purpose: str) -> None:
        """A connection for this purpose was refused."""
        with self._lock:
            self._refused[purpose] += 1

    def refused(self) -> dict[str, int]:
        """How many were, by purpose; without those of which none was."""
        with self._lock:
            return dict(self._refused)
