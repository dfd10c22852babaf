"""Compiled answers where a key is needed.

The first request of a connection goes the ordinary way, which judges its key and notes the very
value of `authorization` that it came with.  From then on requests of the connection with that
value, byte for byte and given once, are answered by compiled code, as long as the keys do not
change; all others go the ordinary way, which may find another key in them.

A key that is bound to tenants has an answerer that knows no partitions and no reservations but
theirs; keys with the same tenants share it.  Quotas are asked before; a request that the ordinary
path answers is given back to them, since that counts it itself.
"""

import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import numpy as np

from select_service.access.guard import EVERYTHING, Grant, Guard
from select_service.access.roles import CALLER
from select_service.access.shares import Holder
from select_service.core.selector import Selector
from select_service.fast.answerer import Answerer
from select_service.fast.protocol import Lean, LeanProtocol, Watch
from select_service.fast.request_layout import NONE
from select_service.fast.service_answerer import ServiceAnswerer
from select_service.http.connection import Connection, Verified
from select_service.http.head import Headers
from select_service.http.protocol import BoundedProtocol
from select_service.metrics.service_metrics import Metrics

ANSWERERS_MAX = 64
"""Different sets of tenants whose requests are answered by compiled code, 2 MiB each; the requests
of further ones go the ordinary way."""

Before = Callable[[Answerer], Answerer] | None

log = logging.getLogger("select_service.keys")


class Passes:
    """Who answers the requests of which keys."""

    def __init__(self, guard: Guard, selector: Selector, metrics: Metrics) -> None:
        self.guard, self.selector = guard, selector
        self._metrics = metrics
        self._headers: Headers = []
        self._hosts: Sequence[bytes] | None = None
        self._answerers: dict[frozenset[str] | None, ServiceAnswerer] = {}
        self.unbound = self._answerers[None] = ServiceAnswerer(selector, metrics)
        """Of keys that are bound to no tenants."""

    def answerer_of(self, tenants: frozenset[str] | None) -> ServiceAnswerer | None:
        """None: there are too many."""
        answerer = self._answerers.get(tenants)
        if answerer is None and len(self._answerers) < ANSWERERS_MAX:
            answerer = ServiceAnswerer(self.selector, self._metrics, tenants)
            answerer.say(self._headers)
            if self._hosts is not None:
                answerer.ask_hosts(self._hosts)
            self._answerers[tenants] = answerer
            if len(self._answerers) == ANSWERERS_MAX:
                fields = {"sets_of_tenants": ANSWERERS_MAX}
                log.warning(
                    "keys of further tenants are answered in Python", extra={"fields": fields}
                )
        return answerer

    def ask_hosts(self, hosts: Sequence[bytes] | None) -> None:
        """Before the first connection: give up requests for other hosts; None: for none."""
        self._hosts = hosts
        if hosts is not None:
            self.unbound.ask_hosts(hosts)

    def say(self, headers: Headers) -> None:
        """Every answer begins with these from now on."""
        self._headers = headers
        for answerer in self._answerers.values():
            answerer.say(headers)


class KeyedAnswerer:
    """The `Answerer` of one connection.

    _known: by which key it answers, and _generation: of the keys then
    _inner: who answers; None: nobody.  _value: kept alive for it
    _bookings: what the key may book;  _use: of its requests; None: they are not counted
    """

    __slots__ = (
        "_bookings",
        "_generation",
        "_inner",
        "_known",
        "_passes",
        "_quotas",
        "_use",
        "_value",
        "connection",
        "end",
    )

    def __init__(self, passes: Passes) -> None:
        self.end = 0
        self.connection = Connection()
        self._passes, self._generation = passes, passes.guard.generation
        self._known: Verified | None = None
        self._inner: ServiceAnswerer | None = None

    @property
    def is_select(self) -> bool:
        """See `Answerer`."""
        return self._inner is not None and self._inner.is_select

    def answer(self, data: bytes, at: int, file: int = NONE) -> bytes | None:
        """See `Answerer`."""
        if (
            self._known is not self.connection.verified
            or self._generation != self._passes.guard.generation
        ):
            self._look()
        inner = self._inner
        if inner is None or not self._may_go_on():
            self.end = 0
            return None
        inner.ask_for(*self._value[:2])
        answer = inner.answer(data, at, file)
        self.end = inner.end
        self._count(inner, answer)
        return answer

    @property
    def grant(self) -> Grant:
        """Whose requests are answered."""
        return EVERYTHING if self._known is None else self._known.grant

    def _look(self) -> None:
        """Who is it that calls now?"""
        guard = self._passes.guard
        self._known, self._generation = self.connection.verified, guard.generation
        self._inner = None
        if self._known is None or not guard.stands(self._known.grant):
            return
        grant = self._known.grant
        if grant.has(CALLER):
            value = np.frombuffer(self._known.value, np.uint8)
            self._value = value.ctypes.data, value.size, value
            assert grant.key is not None
            self._quotas, self._bookings = grant.key.quotas, guard.bookings_of(grant)
            is_paced = self._quotas.requests_per_s is not None
            self._use = guard.use_of(grant.key) if is_paced else None
            self._inner = self._passes.answerer_of(grant.tenants)

    def _may_go_on(self) -> bool:
        """Do the quotas of the key allow whatever is asked for?  If not, the ordinary path looks
        closer."""
        bookings, use = self._bookings, self._use
        if bookings is not None and not bookings.may_book():
            return False
        return use is None or use.take(self._quotas, monotonic())

    def _count(self, inner: ServiceAnswerer, answer: bytes | None) -> None:
        """answer: what it gave; None: the ordinary path is to answer, or the request goes on"""
        if answer is None:
            if self._use is not None:
                self._use.give_back(self._quotas)
        elif self._bookings is not None and (row := inner.booked_row) != NONE:
            self._bookings.booked(row)


class KeyedProtocol(LeanProtocol):
    """One connection."""

    __slots__ = ("_keyed", "_passes")

    def __init__(self, passes: Passes, before: Before, watch: Watch, *server: Any) -> None:
        """before: see `Lean`"""
        self._passes, self._keyed = passes, KeyedAnswerer(passes)
        super().__init__(self._keyed if before is None else before(self._keyed), watch, *server)

    def _who(self) -> Holder:
        return self._passes.guard.holder(self._keyed.grant)

    def _new_ordinary(self) -> BoundedProtocol:
        ordinary = super()._new_ordinary()
        self._keyed.connection = ordinary.connection
        return ordinary


class KeyedLean(Lean):
    """Makes the protocol of every connection of one server, where a key is needed."""

    def __init__(self, passes: Passes, before: Before = None) -> None:
        """before: see `Lean`"""
        super().__init__(passes.unbound, before)
        self._passes, self.say = passes, passes.say

    def new(self, *server: Any) -> LeanProtocol:
        """See `Lean.new`."""
        return KeyedProtocol(self._passes, self.before, self.watch, *server)
