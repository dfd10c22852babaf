"""EDGE: host names become addresses on threads that nobody waits for.

A name server that does not answer keeps getaddrinfo for half a minute, and nothing can break it
off.  So names are never looked up by libzmq (whose I/O thread would serve no other socket
meanwhile, and whose end would wait) nor on a thread that the end of the process waits for, but
here: on a few daemon threads.  Whoever asks has a time limit of his own.
"""

import contextlib
import heapq
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

from indexer.endpoints import is_address
from indexer.sockets.boundary import Boundary

THREADS_MAX = 16
"""As many names that nobody answers for may be asked for before others have to wait."""
NAMES_MAX = 8192
"""Names that wait; beyond it one is not looked up."""
ADDRESSES_MAX = 16
"""Taken of one name."""


class Addresses(NamedTuple):
    """Of a host, those that may be connected to: numeric, IPv4 first.  None of them, and why, when
    there are none.

    is_refused: there are some, and none may be connected to
    """

    found: tuple[str, ...] = ()
    error: str | None = None
    is_refused: bool = False


Tell: TypeAlias = Callable[[Addresses], None]
Lookup: TypeAlias = Callable[..., Sequence[tuple[Any, ...]]]


class Names:
    """All methods may be called on any thread."""

    def __init__(
        self, lookup: Lookup = socket.getaddrinfo, boundary: Boundary | None = None
    ) -> None:
        """boundary: judges every address; None: all may be connected to"""
        self.boundary = boundary or Boundary()
        self._lookup = lookup
        self._lock = threading.Lock()
        self._wanted = threading.Condition(self._lock)
        self._waiting: dict[str, list[Tell]] = {}
        """Who wants to be told, of names that wait or are being looked up."""
        self._queue: deque[str] = deque()
        self._later: list[tuple[float, int, str, Tell]] = []
        self._numbers = count()
        self._threads = 0
        self._idle = 0

    def look_up(self, host: str, tell: Tell, after_s: float = 0.0) -> None:
        """Have `tell` called once: at once for an address, else on a thread of ours, or never.

        after_s: not before so many seconds.  `tell` must not raise, and be quick.
        """
        if is_address(host):
            tell(self.judged(host, (host,)))
            return
        with self._lock:
            refusal = self._take(host, tell, after_s)
        if refusal is not None:
            tell(Addresses(error=refusal))

    def judged(self, host: str, addresses: Sequence[str]) -> Addresses:
        """Those of its addresses that may be connected to."""
        reasons = {address: self.boundary.refusal(host, address) for address in addresses}
        found = tuple(address for address, why in reasons.items() if why is None)
        if found or not reasons:
            return Addresses(found)
        return Addresses(error=next(iter(reasons.values())), is_refused=True)

    def tend(self) -> None:
        """To be called now and then: for names that wait while no thread could be begun."""
        with self._lock:
            if self._later and not self._threads:
                self._find_thread()

    def _take(self, host: str, tell: Tell, after_s: float) -> str | None:
        """Returns why it will not be looked up."""
        if len(self._waiting) + len(self._later) >= NAMES_MAX:
            return f"{NAMES_MAX} names are being looked up, the most there may be"
        if after_s > 0.0:
            heapq.heappush(self._later, (monotonic() + after_s, next(self._numbers), host, tell))
            self._find_thread()
            return None
        self._enqueue(host, tell)
        if self._threads:
            return None
        self._queue.remove(host)
        del self._waiting[host]
        return "there is no thread to look names up on"

    def _enqueue(self, host: str, tell: Tell) -> None:
        others = self._waiting.get(host)
        if others is not None:
            others.append(tell)
            return
        self._waiting[host] = [tell]
        self._queue.append(host)
        self._find_thread()

    def _find_thread(self) -> None:
        """Those that are idle were perhaps woken already, each for one of the queue."""
        self._wanted.notify()
        if self._idle < max(1, len(self._queue)) and self._threads < THREADS_MAX:
            with contextlib.suppress(RuntimeError):  # a limit of the machine: with those there are
                threading.Thread(target=self._serve, name="names", daemon=True).start()
                self._threads += 1

    def _serve(self) -> None:
        while True:
            with self._lock:
                host = self._next()
            addresses = self._of(host)
            with self._lock:
                waiting = self._waiting.pop(host)
            for tell in waiting:
                tell(addresses)

    def _next(self) -> str:
        """Waits for a name."""
        self._idle += 1
        while True:
            wait_s = self._due()
            if self._queue:
                self._idle -= 1
                return self._queue.popleft()
            self._wanted.wait(wait_s)

    def _due(self) -> float | None:
        """Enqueue what was to be looked up by now.  Returns the seconds until more is."""
        now = monotonic()
        while self._later and self._later[0][0] <= now:
            _, _, host, tell = heapq.heappop(self._later)
            self._enqueue(host, tell)
        return self._later[0][0] - now if self._later else None

    def _of(self, host: str) -> Addresses:
        try:
            found = self._lookup(host, None, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            return Addresses(error=f"{host}: {error.strerror}")
        except (OSError, UnicodeError) as error:
            return Addresses(error=f"{host}: {error}")
        found = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)
        names = dict.fromkeys(str(entry[4][0]) for entry in found)
        return self.judged(host, tuple(names)[:ADDRESSES_MAX])
