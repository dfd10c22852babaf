"""The ASGI application: which handler a request reaches, and who supervises it."""

import logging
from collections.abc import Mapping

from starlette.requests import Request
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from select_service.api import (
    admission,
    documentation,
    inspection,
    probes,
    replica_peers,
    reservations,
    selection,
    workers,
)
from select_service.api.route_table import ROUTES
from select_service.api.service import (
    Handler,
    InternalError,
    Resource,
    Service,
    no_such_route,
    trace_of,
)
from select_service.errors import ShuttingDown
from select_service.http.codec import error_response

log = logging.getLogger("select_service")

LOGGED_PATH_CHARS_MAX = 256

HANDLERS: Mapping[str, Handler] = {
    "select_and_reserve": selection.select_and_reserve,
    "select": selection.select,
    "create_reservation": reservations.create,
    "list_reservations": reservations.listing,
    "prefill_complete": reservations.prefill_complete,
    "output_block": reservations.output_block,
    "renew_reservation": reservations.renew,
    "free_reservation": reservations.free,
    "set_busy_threshold": admission.set_threshold,
    "busy_thresholds": admission.thresholds,
    "shed": admission.shed,
    "admission_state": admission.state,
    "register_worker": workers.register,
    "list_workers": workers.listing,
    "patch_worker": workers.patch,
    "delete_worker": workers.delete,
    "register_peer": replica_peers.register,
    "deregister_peer": replica_peers.deregister,
    "list_peers": replica_peers.listing,
    "replica_status": replica_peers.status,
    "loads": inspection.loads,
    "potential_loads": inspection.potential_loads,
    "overlap_scores": inspection.overlap_scores,
    "dump": inspection.dump,
    "config": inspection.config,
    "health": probes.health,
    "ready": probes.ready,
    "metrics": probes.metrics,
    "openapi": documentation.openapi,
    "docs": documentation.docs,
}


class Application:
    """The ASGI application: routes on the raw path, and is the supervisor of every request."""

    def __init__(self, service: Service) -> None:
        self._service = service
        resources = {path: Resource(path, handlers) for path, handlers in _by_path().items()}
        self._plain = {path: each for path, each in resources.items() if "{" not in path}
        self._router = Router(
            [Route(path, each) for path, each in resources.items() if "{" in path],
            redirect_slashes=False,
            default=no_such_route,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        scope["service"] = self._service
        # A reservation id may hold an encoded slash, so segments are split before they are decoded.
        scope["path"] = path = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
        try:
            await self._plain.get(path, self._router)(scope, receive, send)
        except Exception:
            await self._failed(scope, receive, send)

    def refused(self, status: int) -> None:
        """Count an answer that the connection gave before a request had come in."""
        self._service.metrics.request("unknown", "any", status)

    def ending(self) -> None:
        """Requests that wait for a worker are answered at once."""
        error = ShuttingDown("the service is ending; nothing was done")
        self._service.selector.gate.dismiss(error)

    async def _failed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The one log line of a bug, and its answer unless another one has begun."""
        request = Request(scope)
        fields = {"method": request.method, "path": scope["path"][:LOGGED_PATH_CHARS_MAX]}
        log.exception("request failed", extra={"fields": fields | trace_of(request)})
        if "answering" in scope:
            return  # uvicorn closes the connection, so that the client sees an answer cut short
        resource = scope.get("resource", "unknown")
        self._service.metrics.request(resource, request.method, InternalError.status)
        error = InternalError("internal error; the log of the service has more")
        await error_response(error)(scope, receive, send)


def _by_path() -> dict[str, dict[str, Handler]]:
    """Path -> method -> handler, as the route table has them."""
    found: dict[str, dict[str, Handler]] = {}
    for route in ROUTES:
        found.setdefault(route.path, {})[route.method] = HANDLERS[route.operation_id]
    return found
