"""EDGE: resolver of host names, on daemon threads that nothing waits for.

Without an answering name server, getaddrinfo blocks for half a minute, and nothing can interrupt
it.  So names are resolved neither by libzmq (its I/O thread would serve no other socket meanwhile,
and its end would wait) nor on a thread that the end of the process waits for, but on a few daemon
threads here.  Callers have their own time limits.
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

from indexer.sockets.egress_guard import EgressGuard
from indexer.zmq_endpoints import is_address

THREADS_MAX = 16
"""Names that can block without an answer before others have to wait."""
NAMES_MAX = 8192
"""Limit of waiting names; beyond it lookups are refused."""
ADDRESSES_MAX = 16
"""Limit of addresses used per name."""


class ResolvedAddresses(NamedTuple):
    """Result of a lookup: permitted numeric addresses, IPv4 first.  Empty with `error` set on
    failure.

    is_refused: all addresses of the host are refused by the policy
    """

    found: tuple[str, ...] = ()
    error: str | None = None
    is_refused: bool = False


LookupCallback: TypeAlias = Callable[[ResolvedAddresses], None]
Lookup: TypeAlias = Callable[..., Sequence[tuple[Any, ...]]]


class Resolver:
    """Resolver.  All methods are thread-safe."""

    def __init__(
        self, lookup: Lookup = socket.getaddrinfo, egress_guard: EgressGuard | None = None
    ) -> None:
        """boundary: guard that judges every address; None allows all"""
        self.egress_guard = egress_guard or EgressGuard()
        self._lookup = lookup
        self._lock = threading.Lock()
        self._has_work = threading.Condition(self._lock)
        self._waiting: dict[str, list[LookupCallback]] = {}
        """Callbacks of names that wait or are being resolved."""
        self._queue: deque[str] = deque()
        self._later: list[tuple[float, int, str, LookupCallback]] = []
        self._numbers = count()
        self._threads = 0
        self._idle = 0

    def resolve(self, host: str, callback: LookupCallback, after_s: float = 0.0) -> None:
        """Resolve a name and call `tell` once: at once for an address, else on a resolver
        thread, or never.

        after_s: earliest start, in seconds from now.  `tell` must not raise or block.
        """
        if is_address(host):
            callback(self.filter_addresses(host, (host,)))
            return
        with self._lock:
            refusal = self._queue_lookup(host, callback, after_s)
        if refusal is not None:
            callback(ResolvedAddresses(error=refusal))

    def filter_addresses(self, host: str, addresses: Sequence[str]) -> ResolvedAddresses:
        """Return the addresses that the policy permits."""
        reasons = {address: self.egress_guard.check_address(host, address) for address in addresses}
        found = tuple(address for address, why in reasons.items() if why is None)
        if found or not reasons:
            return ResolvedAddresses(found)
        return ResolvedAddresses(error=next(iter(reasons.values())), is_refused=True)

    def retry_threads(self) -> None:
        """Retry to start a thread for waiting names.  Call this now and then."""
        with self._lock:
            if self._later and not self._threads:
                self._wake_thread()

    def _queue_lookup(self, host: str, tell: LookupCallback, after_s: float) -> str | None:
        """Queue a lookup; return the reason if it is refused."""
        if len(self._waiting) + len(self._later) >= NAMES_MAX:
            return f"limit of {NAMES_MAX} concurrent name lookups reached; retry later"
        if after_s > 0.0:
            heapq.heappush(self._later, (monotonic() + after_s, next(self._numbers), host, tell))
            self._wake_thread()
            return None
        self._enqueue(host, tell)
        if self._threads:
            return None
        self._queue.remove(host)
        del self._waiting[host]
        return "no thread could be started for the name lookup"

    def _enqueue(self, host: str, tell: LookupCallback) -> None:
        others = self._waiting.get(host)
        if others is not None:
            # Many ranks share a host: one lookup answers all of them.
            others.append(tell)
            return
        self._waiting[host] = [tell]
        self._queue.append(host)
        self._wake_thread()

    def _wake_thread(self) -> None:
        """Wake an idle thread, and start one if needed: idle threads may be woken for others
        already.
        """
        self._has_work.notify()
        if self._idle < max(1, len(self._queue)) and self._threads < THREADS_MAX:
            # at a limit of the machine the existing threads must do
            with contextlib.suppress(RuntimeError):
                # Daemon threads: a hanging getaddrinfo must not keep the process alive.
                threading.Thread(target=self._run_thread, name="names", daemon=True).start()
                self._threads += 1

    def _run_thread(self) -> None:
        while True:
            with self._lock:
                host = self._next_host()
            addresses = self._resolve_host(host)
            with self._lock:
                waiting = self._waiting.pop(host)
            # Without the lock: a callback may look up another name.
            for tell in waiting:
                tell(addresses)

    def _next_host(self) -> str:
        """Wait for the next name."""
        self._idle += 1
        while True:
            wait_s = self._enqueue_due()
            if self._queue:
                self._idle -= 1
                return self._queue.popleft()
            self._has_work.wait(wait_s)

    def _enqueue_due(self) -> float | None:
        """Enqueue delayed lookups that are due.  Return the seconds until the next."""
        now = monotonic()
        while self._later and self._later[0][0] <= now:
            _, _, host, tell = heapq.heappop(self._later)
            self._enqueue(host, tell)
        return self._later[0][0] - now if self._later else None

    def _resolve_host(self, host: str) -> ResolvedAddresses:
        try:
            found = self._lookup(host, None, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            return ResolvedAddresses(error=f"{host}: {error.strerror}")
        except (OSError, UnicodeError) as error:
            return ResolvedAddresses(error=f"{host}: {error}")
        found = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)
        names = dict.fromkeys(str(entry[4][0]) for entry in found)
        return self.filter_addresses(host, tuple(names)[:ADDRESSES_MAX])
