"""The ASGI application: which handler a request reaches, and who supervises it."""

import errno
import logging

from starlette.requests import Request
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from select_service.api.documentation import NOUNS
from select_service.api.resource import NoSuchRoute, Resource
from select_service.api.service import (
    InternalError,
    Service,
    trace_of,
)
from select_service.errors import CapacityExceeded, SelectError, ShuttingDown
from select_service.http.codec import error_response
from select_service.http.endpoint import Endpoint
from select_service.http.hosts import AllowedHosts, HostNotAllowed, OriginNotAllowed, check_origin
from select_service.settings.reach import allowed_hosts

log = logging.getLogger("select_service")

LOGGED_PATH_CHARS_MAX = 256


class Application:
    """The ASGI application: routes on the raw path, and is the supervisor of every request."""

    def __init__(self, service: Service) -> None:
        self._service = service
        hosts = allowed_hosts(service.config)
        self._hosts = None if hosts is None else AllowedHosts(hosts)
        self._has_no_keys = service.config["api_keys_file"] is None
        resources = {path: Resource(path, endpoints) for path, endpoints in _by_path().items()}
        self._plain = {path: each for path, each in resources.items() if "{" not in path}
        self._router = Router(
            [Route(path, each) for path, each in resources.items() if "{" in path],
            redirect_slashes=False,
            default=NoSuchRoute(tuple(resources)),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, in this order: what every handler needs, where it leads, who asks.

        Who may call is declared with each route, and asked for by its `Resource` before anything of
        the request but its head is read.
        """
        assert scope["type"] == "http"
        scope["service"] = self._service
        # A reservation id may hold an encoded slash, so segments are split before they are decoded.
        scope["path"] = path = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
        try:
            if self._hosts is not None:
                self._hosts.check(scope["headers"])
            if self._has_no_keys:
                check_origin(scope["method"], scope["headers"])
        except (HostNotAllowed, OriginNotAllowed) as error:
            self._service.metrics.request("unknown", "any", error.status)
            await error_response(error)(scope, receive, send)
            return
        try:
            await self._plain.get(path, self._router)(scope, receive, send)
        except Exception as error:
            await self._failed(_answer_to(error), scope, receive, send)

    def refused(self, status: int) -> None:
        """Count an answer that the connection gave before a request had come in."""
        self._service.metrics.request("unknown", "any", status)

    def failed(self, callback: str) -> None:
        """Count, and tell of, what a callback of the event loop raised."""
        self._service.callback_failed(callback)

    def draining(self) -> None:
        """GET /ready says so, for those who choose where requests go."""
        self._service.is_draining = True
        log.info("draining", extra={"fields": {"seconds": self._service.config["drain_s"]}})

    def ending(self) -> None:
        """Requests that wait for a worker are answered at once."""
        error = ShuttingDown("the service is ending; nothing was done")
        self._service.selector.gate.dismiss(error)
        self._service.live.end()
        if self._service.selector.mover is not None:
            self._service.selector.mover.end()

    async def _failed(
        self, answer: SelectError, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """The one log line of what no handler expects, and `answer` unless one has begun."""
        request = Request(scope)
        fields = {"method": request.method, "path": scope["path"][:LOGGED_PATH_CHARS_MAX]}
        log.exception("request failed", extra={"fields": fields | trace_of(request)})
        if "answering" in scope:
            return  # uvicorn closes the connection, so that the client sees an answer cut short
        resource = scope.get("resource", "unknown")
        self._service.metrics.request(resource, request.method, answer.status)
        await error_response(answer)(scope, receive, send)


def _answer_to(error: Exception) -> SelectError:
    """What a client is told of a failure that is none of its own."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return CapacityExceeded("there is no memory left for this request; ask again later")
    return InternalError("internal error; the log of the service has more")


def _by_path() -> dict[str, list[Endpoint]]:
    found: dict[str, list[Endpoint]] = {}
    for noun in NOUNS:
        for endpoint in noun.endpoints:
            found.setdefault(endpoint.route.path, []).append(endpoint)
    return found
