"""The client for threads: the one for asyncio, on an event loop in a thread of its own.

The thread begins with the first call, and anew in a process that is forked.
"""

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, ParamSpec, Self, TypeVar, Unpack
from weakref import WeakSet

from select_service.bodies.reservations import Reservation, ReservationRequest
from select_service.bodies.selection import SelectAndReserveRequest, Selection
from select_service.client.async_selector import AsyncSelector
from select_service.client.blocking_routes import BlockingRoutes
from select_service.client.hashing import PromptHasher
from select_service.client.lease import Lease
from select_service.client.lease_fields import LeaseFields
from select_service.client.loop_thread import LoopThread
from select_service.client.options import Options
from select_service.client.routes import Route

P = ParamSpec("P")
A = TypeVar("A")


class _Running(NamedTuple):
    """The client of this process, and the thread on which it lives."""

    selector: AsyncSelector
    thread: LoopThread


class Selector(BlockingRoutes):
    """As `AsyncSelector`, for any number of threads; one more renews and tells for all.

    A process that is forked uses it as its parent does, with connections of its own; leases stay
    with the process that began them.
    """

    def __init__(self, urls: Sequence[str], **options: Unpack[Options]) -> None:
        """urls: of all selectors that share their bookings.  Raises ValueError."""
        self._unused: AsyncSelector | None = AsyncSelector(urls, **options)
        self._urls, self._options = tuple(urls), options
        self._running: _Running | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        _selectors.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leases that live are abandoned; what is left to tell is told within `deadline_s`."""
        with self._lock:
            self._is_closed = True
            running, self._running = self._running, None
        if running is not None:
            running.thread.call(running.selector.close)
            running.thread.close()

    def leave_to_parent(self) -> None:
        """Begin anew in a process that was just forked: the thread has stayed in its parent."""
        self._lock = threading.Lock()  # a thread of the parent may have held the former one
        self._running = None

    def _started(self) -> _Running:
        """Raises RuntimeError when it is closed."""
        running = self._running
        if running is not None:
            return running
        with self._lock:
            if self._is_closed:
                raise RuntimeError("this Selector is closed: make another one")
            if self._running is None:
                selector = self._unused or AsyncSelector(self._urls, **self._options)
                self._unused = None
                self._running = _Running(selector, LoopThread(selector))
            return self._running

    def call(self, route: Route[P, A], *args: P.args, **kwargs: P.kwargs) -> A:
        """As `Link.call`: any route that books nothing."""
        selector, thread = self._started()
        return thread.call(lambda: selector.link.call(route, *args, **kwargs))

    @contextlib.contextmanager
    def lease(
        self,
        prompt: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        deadline_s: float | None = None,
        **fields: Unpack[LeaseFields],
    ) -> Iterator[Lease]:
        """As `AsyncSelector.lease`."""
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
        """As `AsyncSelector.begin`."""
        selector, thread = self._started()
        given = selector.fields(prompt, fields)
        return thread.call(selector.begun, Lease, given, headers, deadline_s)

    def prompt_hasher(
        self,
        lora_name: str | None = None,
        cache_salt: str | None = None,
        *,
        model_name: str | None = None,
        tenant_id: str | None = None,
    ) -> PromptHasher:
        """As `AsyncSelector.prompt_hasher`."""
        selector, thread = self._started()
        return thread.call(
            lambda: selector.prompt_hasher(
                lora_name, cache_salt, model_name=model_name, tenant_id=tenant_id
            )
        )

    def dump(self, path: Path, *, url: str | None = None, compact: bool = False) -> int:
        """As `AsyncSelector.dump`."""
        selector, thread = self._started()
        return thread.call(selector.dump, path, url=url, compact=compact)

    def select_and_reserve(self, body: SelectAndReserveRequest) -> Selection:
        """A booking that the caller renews and frees by itself.  Made once, whatever is lost."""
        selector, thread = self._started()
        return thread.call(selector.select_and_reserve, body)

    def reserve(self, body: ReservationRequest) -> Reservation:
        """The same on a rank that the caller chose."""
        selector, thread = self._started()
        return thread.call(selector.reserve, body)


_selectors: WeakSet[Selector] = WeakSet()


def _leave_to_parent() -> None:
    for selector in tuple(_selectors):
        selector.leave_to_parent()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_leave_to_parent)
