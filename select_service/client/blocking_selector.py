"""Client for threads: an `AsyncSelector` on an event loop in a thread of its own.

The first call starts the thread. A forked process starts another thread.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar, Unpack
from weakref import WeakSet

from select_service.client.async_selector import AsyncSelector
from select_service.client.client_options import Options
from select_service.client.lease import Lease
from select_service.client.lease_fields import LeaseFields, PairLeaseFields
from select_service.client.loop_thread import LoopThread
from select_service.client.pair_lease import PairLease
from select_service.client.prompt_hasher import PromptHasher
from select_service.client.route_table import BlockingRoutes, ClientRoute
from select_service.schemas.pairs import PairSelection, SelectPairAndReserveRequest
from select_service.schemas.reservations import Reservation, ReservationRequest
from select_service.schemas.selection import SelectAndReserveRequest, Selection

P = ParamSpec("P")
A = TypeVar("A")


class _RunningClient(NamedTuple):
    """Client of this process and the thread of its event loop."""

    selector: AsyncSelector
    thread: LoopThread


class Selector(BlockingRoutes):
    """Blocking `AsyncSelector` for any number of threads; one more thread renews all leases.

    A forked process uses the selector like its parent, over connections of its own. A lease stays
    with the process that began the lease.
    """

    def __init__(self, urls: Sequence[str], **options: Unpack[Options]) -> None:
        """urls: URLs of all selectors that share their reservations.  Raises ValueError."""
        self._unstarted: AsyncSelector | None = AsyncSelector(urls, **options)
        self._urls, self._options = tuple(urls), options
        self._running: _RunningClient | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        _selectors.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Abandon all live leases; send the pending calls for at most `deadline_s` seconds."""
        with self._lock:
            self._is_closed = True
            # Taken under the lock, closed outside: closing waits for calls, which may need the
            # lock.
            running, self._running = self._running, None
        if running is not None:
            running.thread.call(running.selector.close)
            running.thread.close()

    def reset_after_fork(self) -> None:
        """Forget the thread of the parent in a process that was just forked."""
        self._lock = threading.Lock()  # a thread of the parent may hold the former lock forever
        self._running = None

    def _ensure_started(self) -> _RunningClient:
        """Return the running client; start the thread if needed.  Raises RuntimeError if closed."""
        running = self._running
        if running is not None:
            return running
        with self._lock:
            if self._is_closed:
                raise RuntimeError("this Selector is closed: make another one")
            if self._running is None:
                selector = self._unstarted or AsyncSelector(self._urls, **self._options)
                # A forked child builds its own client: the first one belongs to the loop of the
                # parent.
                self._unstarted = None
                self._running = _RunningClient(selector, LoopThread(selector))
            return self._running

    def call(self, route: ClientRoute[P, A], *args: P.args, **kwargs: P.kwargs) -> A:
        """Call a route that creates no reservation, see `ClientCore.call`."""
        return self._run(lambda selector: selector.core.call(route, *args, **kwargs))

    def _run(self, act: Callable[[AsyncSelector], Coroutine[Any, Any, A]]) -> A:
        """Run a coroutine function of the client on its thread."""
        selector, thread = self._ensure_started()
        return thread.call(act, selector)

    @contextlib.contextmanager
    def lease(
        self,
        prompt: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        deadline_s: float | None = None,
        **fields: Unpack[LeaseFields],
    ) -> Iterator[Lease]:
        """See `AsyncSelector.lease`."""
        with self.begin(prompt, headers=headers, deadline_s=deadline_s, **fields) as lease:
            yield lease

    def begin(
        self,
        prompt: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        deadline_s: float | None = None,
        **fields: Unpack[LeaseFields],
    ) -> Lease:
        """See `AsyncSelector.begin`."""
        selector, thread = self._ensure_started()
        given = selector.body_fields(prompt, fields)
        return thread.call(selector.open_lease, Lease, given, headers, deadline_s)

    @contextlib.contextmanager
    def pair_lease(
        self,
        prompt: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        deadline_s: float | None = None,
        **fields: Unpack[PairLeaseFields],
    ) -> Iterator[PairLease]:
        """See `AsyncSelector.pair_lease`."""
        with self.begin_pair(prompt, headers=headers, deadline_s=deadline_s, **fields) as lease:
            yield lease

    def begin_pair(
        self,
        prompt: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        deadline_s: float | None = None,
        **fields: Unpack[PairLeaseFields],
    ) -> PairLease:
        """See `AsyncSelector.begin_pair`."""
        selector, thread = self._ensure_started()
        given = selector.body_fields(prompt, fields)
        return thread.call(selector.open_lease, PairLease, given, headers, deadline_s)

    @contextlib.contextmanager
    def lease_group(
        self,
        n: int,
        prompt: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        deadline_s: float | None = None,
        **fields: Unpack[LeaseFields],
    ) -> Iterator[list[Lease]]:
        """See `AsyncSelector.lease_group`."""
        leases = self.begin_group(n, prompt, headers=headers, deadline_s=deadline_s, **fields)
        with contextlib.ExitStack() as stack:
            for lease in leases:
                stack.enter_context(lease)
            yield leases

    def begin_group(
        self,
        n: int,
        prompt: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        deadline_s: float | None = None,
        **fields: Unpack[LeaseFields],
    ) -> list[Lease]:
        """See `AsyncSelector.begin_group`."""
        selector, thread = self._ensure_started()
        given = {**selector.body_fields(prompt, fields), "n": n}
        return thread.call(selector.open_group, Lease, given, headers, deadline_s)

    def prompt_hasher(
        self,
        lora_name: str | None = None,
        cache_salt: str | None = None,
        *,
        model_name: str | None = None,
        tenant_id: str | None = None,
    ) -> PromptHasher:
        """See `AsyncSelector.prompt_hasher`."""
        return self._run(
            lambda selector: selector.prompt_hasher(
                lora_name, cache_salt, model_name=model_name, tenant_id=tenant_id
            )
        )

    def dump(self, path: Path, *, url: str | None = None, compact: bool = False) -> int:
        """See `AsyncSelector.dump`."""
        return self._run(lambda selector: selector.dump(path, url=url, compact=compact))

    def select_and_reserve(self, body: SelectAndReserveRequest) -> Selection:
        """Reserve a rank exactly once, whatever answers are lost; the caller renews and frees."""
        return self._run(lambda selector: selector.select_and_reserve(body))

    def select_pair_and_reserve(self, body: SelectPairAndReserveRequest) -> PairSelection:
        """Reserve a pair, whatever answers are lost; the caller renews and frees."""
        return self._run(lambda selector: selector.select_pair_and_reserve(body))

    def reserve(self, body: ReservationRequest) -> Reservation:
        """Reserve a rank that the caller chose exactly once; the caller renews and frees."""
        return self._run(lambda selector: selector.reserve(body))


# Weak, so that a selector which the program drops does not stay alive for forks.
_selectors: WeakSet[Selector] = WeakSet()


def _reset_all_after_fork() -> None:
    for selector in tuple(_selectors):
        selector.reset_after_fork()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_reset_all_after_fork)
