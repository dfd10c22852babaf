"""Guard of outgoing connections: a policy judges every address before a socket gets it.

The process resolves names itself and gives sockets addresses only, so the judged address is the
connected one: a name that resolves differently a moment later changes nothing.
"""

import threading
from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

AddressCheck: TypeAlias = Callable[[str, str | None], str | None]
"""Policy: (host as configured, its address or None for ipc and inproc) -> reason of a refusal,
or None. Called on any thread.
"""


def _allow_all(host: str, address: str | None) -> str | None:
    return None


class EgressGuard:
    """Guard with counters.  All methods are thread-safe."""

    def __init__(self, check_address: AddressCheck = _allow_all) -> None:
        self.check_address = check_address
        self._refused: Counter[str] = Counter()
        self._lock = threading.Lock()

    def count_refusal(self, purpose: str) -> None:
        """Count a refused connection for this purpose."""
        with self._lock:
            self._refused[purpose] += 1

    def refusal_counts(self) -> dict[str, int]:
        """Return the refused connections by purpose, without zeros."""
        with self._lock:
            return dict(self._refused)
