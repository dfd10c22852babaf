"""Fast path for connections that need an API key.

The first request of a connection takes the ordinary path, which checks the key and records the
exact value of its `authorization` header.  Later requests of the connection with the same value,
byte for byte and given once, take the fast path until the keys change; all others take the ordinary
path.

Keys bound to tenants get a handler that only knows partitions and reservations of these tenants;
keys with the same tenants share one.  Quotas are charged first; a request that falls back to the
ordinary path is refunded, since that path charges it again.
"""

import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import numpy as np

from select_service.auth.guard import UNRESTRICTED_GRANT, Grant, Guard
from select_service.auth.limit_shares import Holder
from select_service.auth.roles import CALLER
from select_service.core.selector import SelectorCore
from select_service.fastpath.fast_handler import FastHandler
from select_service.fastpath.fast_path import FastPath
from select_service.fastpath.fastpath_protocol import FastPathProtocol
from select_service.fastpath.parsing.request_layout import NONE
from select_service.fastpath.service_handler import ServiceHandler
from select_service.fastpath.timeout_watch import TimeoutWatch
from select_service.http.bounded_protocol import BoundedProtocol
from select_service.http.client_connection import ClientConnection, VerifiedCredentials
from select_service.http.request_head import Headers
from select_service.metrics.service_metrics import ServiceMetrics

HANDLERS_MAX = 64
"""Most sets of tenants with a handler of their own, 2 MiB each; requests of further sets take the
ordinary path.
"""

WrapHandler = Callable[[FastHandler], FastHandler] | None

log = logging.getLogger("select_service.keys")


class FastPathAuth:
    """Handlers of the fast path by the tenants of keys."""

    def __init__(self, guard: Guard, selector: SelectorCore, metrics: ServiceMetrics) -> None:
        self.guard, self.selector = guard, selector
        self._metrics = metrics
        self._headers: Headers = []
        self._hosts: Sequence[bytes] | None = None
        self._handlers: dict[frozenset[str] | None, ServiceHandler] = {}
        self.unbound_handler = self._handlers[None] = ServiceHandler(selector, metrics)
        """Handler for keys that are not bound to tenants."""

    def handler_of(self, tenants: frozenset[str] | None) -> ServiceHandler | None:
        """Return the handler for these tenants; None if there are too many."""
        answerer = self._handlers.get(tenants)
        if answerer is None and len(self._handlers) < HANDLERS_MAX:
            answerer = ServiceHandler(self.selector, self._metrics, tenants)
            answerer.set_common_headers(self._headers)
            if self._hosts is not None:
                answerer.restrict_hosts(self._hosts)
            self._handlers[tenants] = answerer
            if len(self._handlers) == HANDLERS_MAX:
                fields = {"sets_of_tenants": HANDLERS_MAX}
                log.warning("fast path limit of tenant sets reached", extra={"fields": fields})
        return answerer

    def restrict_hosts(self, hosts: Sequence[bytes] | None) -> None:
        """Restrict the fast path to these hosts, before the first connection; None means all."""
        self._hosts = hosts
        if hosts is not None:
            self.unbound_handler.restrict_hosts(hosts)

    def set_common_headers(self, headers: Headers) -> None:
        """Set the headers that every response begins with from now on."""
        self._headers = headers
        for answerer in self._handlers.values():
            answerer.set_common_headers(headers)


class AuthenticatedHandler:
    """`FastHandler` of a connection with a key.

    _credentials: credentials in use, and _generation: of the keys at that time
    _handler: handler, or None for no fast path.  _header_value: header value, kept alive for the
    handler
    _bookings: booking limits of the key;  _usage: usage with a request rate; None means unlimited
    """

    __slots__ = (
        "_auth",
        "_bookings",
        "_credentials",
        "_generation",
        "_handler",
        "_header_value",
        "_quotas",
        "_usage",
        "connection",
        "end",
    )

    def __init__(self, auth: FastPathAuth) -> None:
        self.end = 0
        self.connection = ClientConnection()
        self._auth, self._generation = auth, auth.guard.generation
        self._credentials: VerifiedCredentials | None = None
        self._handler: ServiceHandler | None = None

    def answer_request(self, data: bytes, at: int, socket_fd: int = NONE) -> bytes | None:
        """See `FastHandler`."""
        is_current = self._generation == self._auth.guard.generation
        if not is_current or self._credentials is not self.connection.verified:
            self._adopt_credentials()
        inner = self._handler
        if inner is None or not self._charge_quotas():
            self.end = 0
            return None
        # Set before each request: connections of other keys share this handler.
        inner.require_authorization(*self._header_value[:2])
        answer = inner.answer_request(data, at, socket_fd)
        self.end = inner.end
        self._settle_quotas(inner, answer)
        return answer

    @property
    def grant(self) -> Grant:
        """Grant of the requests on the fast path."""
        return UNRESTRICTED_GRANT if self._credentials is None else self._credentials.grant

    def _adopt_credentials(self) -> None:
        """Adopt the credentials last verified on the connection."""
        guard = self._auth.guard
        self._credentials, self._generation = self.connection.verified, guard.generation
        self._handler = None
        # The keys file may have been replaced since the connection was authenticated.
        if self._credentials is None or not guard.is_current(self._credentials.grant):
            return
        grant = self._credentials.grant
        if grant.has_any_role(CALLER):
            value = np.frombuffer(self._credentials.value, np.uint8)
            self._header_value = value.ctypes.data, value.size, value
            assert grant.key is not None
            self._quotas, self._bookings = grant.key.quotas, guard.bookings_of(grant)
            is_paced = self._quotas.requests_per_s is not None
            self._usage = guard.usage_of(grant.key) if is_paced else None
            self._handler = self._auth.handler_of(grant.tenants)

    def _charge_quotas(self) -> bool:
        """Return whether the quotas of the key allow any request; otherwise the ordinary path
        checks closer.
        """
        bookings, use = self._bookings, self._usage
        if bookings is not None and not bookings.may_book():
            return False
        return use is None or use.take_request(self._quotas, monotonic())

    def _settle_quotas(self, inner: ServiceHandler, answer: bytes | None) -> None:
        """Settle the quotas.  answer: response; None if the ordinary path answers, or more bytes
        are needed
        """
        if answer is None:
            if self._usage is not None:
                self._usage.return_request(self._quotas)
        elif self._bookings is not None and (row := inner.booked_row) != NONE:
            self._bookings.count_booking(row)


class AuthenticatedProtocol(FastPathProtocol):
    """Protocol of a connection with a key."""

    __slots__ = ("_auth", "_authenticated")

    def __init__(
        self, auth: FastPathAuth, wrap_handler: WrapHandler, watch: TimeoutWatch, *server: Any
    ) -> None:
        """wrap_handler: see `FastPath`"""
        self._auth, self._authenticated = auth, AuthenticatedHandler(auth)
        super().__init__(
            self._authenticated if wrap_handler is None else wrap_handler(self._authenticated),
            watch,
            *server,
        )

    def _holder_of_parts(self) -> Holder:
        return self._auth.guard.holder_of_grant(self._authenticated.grant)

    def _new_ordinary(self) -> BoundedProtocol:
        ordinary = super()._new_ordinary()
        self._authenticated.connection = ordinary.connection
        return ordinary


class AuthenticatedFastPath(FastPath):
    """Factory of the protocols of a server with API keys."""

    def __init__(self, auth: FastPathAuth, wrap_handler: WrapHandler = None) -> None:
        """wrap_handler: see `FastPath`"""
        super().__init__(auth.unbound_handler, wrap_handler)
        self._auth, self.set_common_headers = auth, auth.set_common_headers

    def make_protocol(self, *server: Any) -> FastPathProtocol:
        """See `FastPath.make_protocol`."""
        return AuthenticatedProtocol(self._auth, self.wrap_handler, self.timeout_watch, *server)
