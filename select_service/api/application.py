"""ASGI application: dispatches requests to handlers and supervises every request."""

import errno
import logging

from starlette.requests import Request
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from select_service.api.documentation import ENDPOINT_GROUPS
from select_service.api.resource import NoSuchRoute, Resource
from select_service.api.service_context import InternalError, ServiceContext, trace_fields
from select_service.base.errors import CapacityExceeded, SelectError, ShuttingDown
from select_service.config.open_interfaces import allowed_hosts
from select_service.http.body_codec import error_response
from select_service.http.endpoint import RouteHandler
from select_service.http.host_checks import (
    HostCheck,
    HostNotAllowed,
    OriginNotAllowed,
    check_origin,
)

log = logging.getLogger("select_service")

LOGGED_PATH_CHARS_MAX = 256


class ApiApplication:
    """ASGI application with routes on the raw path; also the supervisor of every request."""

    def __init__(self, service: ServiceContext) -> None:
        self._service = service
        hosts = allowed_hosts(service.config)
        self._host_check = None if hosts is None else HostCheck(hosts)
        self._has_no_keys = service.config["api_keys_file"] is None
        resources = {
            path: Resource(path, endpoints) for path, endpoints in _endpoints_by_path().items()
        }
        # Most requests hit a fixed path: a dictionary finds it without trying regular expressions.
        self._resources_by_fixed_path = {
            path: each for path, each in resources.items() if "{" not in path
        }
        self._router = Router(
            [Route(path, each) for path, each in resources.items() if "{" in path],
            redirect_slashes=False,
            default=NoSuchRoute(tuple(resources)),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request: attach the service, check host and origin, then dispatch by path.

        Each route declares its required role; the `Resource` authenticates the client before
        reading anything beyond the head of the request.
        """
        assert scope["type"] == "http"
        scope["service"] = self._service
        # Reservation ids may contain an encoded slash: split the path first, decode segments later.
        scope["path"] = path = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
        try:
            if self._host_check is not None:
                self._host_check.check_host(scope["headers"])
            # Browsers attach no API key on their own, so with keys another origin's page has no
            # access.
            if self._has_no_keys:
                check_origin(scope["method"], scope["headers"])
        except (HostNotAllowed, OriginNotAllowed) as error:
            self._service.metrics.count_request("unknown", "any", error.status)
            await error_response(error)(scope, receive, send)
            return
        try:
            await self._resources_by_fixed_path.get(path, self._router)(scope, receive, send)
        except Exception as error:
            await self._answer_failure(_failure_response(error), scope, receive, send)

    def count_refused(self, status: int) -> None:
        """Count a response that the connection sent before a complete request arrived."""
        self._service.metrics.count_request("unknown", "any", status)

    def report_failure(self, callback: str) -> None:
        """Count and report an exception raised by a callback of the event loop."""
        self._service.callbacks.record_failure(callback)

    def start_draining(self) -> None:
        """Mark the service as draining, so that GET /ready removes this replica from load
        balancers.
        """
        self._service.process.is_draining = True
        log.info("draining", extra={"fields": {"seconds": self._service.config["drain_s"]}})

    def start_shutdown(self) -> None:
        """Answer waiting requests at once with an error and end all streams."""
        error = ShuttingDown("the service is shutting down; nothing was done")
        self._service.gate.refuse_all_waiting(error)
        self._service.live.frame_broadcaster.end_streams()
        # Ends the long polls and streams that wait for migrations.
        if self._service.mover is not None:
            self._service.mover.notify_shutdown()

    async def _answer_failure(
        self, answer: SelectError, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Log an unexpected exception once; send `answer` unless a response has already begun."""
        request = Request(scope)
        fields = {"method": request.method, "path": scope["path"][:LOGGED_PATH_CHARS_MAX]}
        log.exception("request failed", extra={"fields": fields | trace_fields(request)})
        if "answering" in scope:
            return  # uvicorn then closes the connection: clients see a truncation
        resource = scope.get("resource", "unknown")
        self._service.metrics.count_request(resource, request.method, answer.status)
        await error_response(answer)(scope, receive, send)


def _failure_response(error: Exception) -> SelectError:
    """Return the error response for a failure that the client did not cause."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return CapacityExceeded("out of memory for this request; retry later")
    return InternalError("internal error; see the service's log")


def _endpoints_by_path() -> dict[str, list[RouteHandler]]:
    """Group the endpoints of all resources by path."""
    found: dict[str, list[RouteHandler]] = {}
    for noun in ENDPOINT_GROUPS:
        for endpoint in noun.endpoints:
            found.setdefault(endpoint.route.path, []).append(endpoint)
    return found
