"""What every handler works with, and the endpoint that gives a handler its errors and its count."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol
from urllib.parse import unquote_to_bytes

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from indexer.sockets.ingest import Ingest
from select_service.bodies.common import U64_MAX, tenant_of
from select_service.bodies.replicas import ReplicaStatus
from select_service.core.fleet.recovered import KeepingReport, RecoveryStatus, SnapshotStatus
from select_service.core.selector import Selector
from select_service.errors import BadRequest, SelectError
from select_service.http.codec import ClientGone, error_response
from select_service.metrics.service_metrics import Metrics
from select_service.settings.config import Config

TRACEPARENT_CHARS_MAX = 128
"""A valid one has 55; the rest of a longer one is not logged."""


class ReplicaPlane(Protocol):
    """What the interface needs of the replica plane."""

    def peers(self) -> list[str]: ...
    def register(self, endpoint: str) -> bool: ...
    def deregister(self, endpoint: str) -> bool: ...
    def status(self) -> ReplicaStatus: ...


class MethodNotAllowed(SelectError):
    status, code = 405, "method_not_allowed"


class RouteNotFound(SelectError):
    status, code = 404, "route_not_found"


class InternalError(SelectError):
    status, code = 500, "internal_error"


@dataclass(slots=True)
class Service:
    """The parts of one process that handlers use."""

    config: Config
    version: str
    selector: Selector
    ingest: Ingest
    metrics: Metrics
    replicas: ReplicaPlane | None = None
    engine_scrapes: Mapping[str, int] | None = None
    catalog_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    dumps_running: int = 0
    json_dumps: int = 0
    compact_dumps: int = 0
    recovery: RecoveryStatus = field(default_factory=RecoveryStatus)
    snapshot: SnapshotStatus = field(default_factory=SnapshotStatus)


def keeping_report(service: Service) -> KeepingReport:
    """How recovery, snapshots and dumps are doing."""
    at, recovered = monotonic(), service.selector.fleet.recovered
    recovery, written = service.recovery, service.snapshot
    return KeepingReport(
        state=recovery.state,
        recovered_blocks=recovery.blocks,
        waiting_blocks=recovered.blocks(),
        dropped_blocks=recovered.dropped_blocks,
        bad_entries=recovery.bad_entries,
        recovery_s=recovery.seconds(at),
        snapshot_bytes=written.bytes,
        snapshot_failures=written.failures,
        written_ago_s=-1.0 if written.written_at is None else at - written.written_at,
        json_dumps=service.json_dumps,
        compact_dumps=service.compact_dumps,
    )


Handler = Callable[[Service, Request], Awaitable[Response]]


class Resource:
    """ASGI endpoint of one path: a handler per method, HEAD where there is GET."""

    def __init__(self, path: str, handlers: Mapping[str, Handler]) -> None:
        self.path = path
        self._handlers = dict(handlers)
        if "GET" in handlers:
            self._handlers["HEAD"] = handlers["GET"]
        self._allow = ",".join(self._handlers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service: Service = scope["service"]
        scope["resource"] = self.path
        request = Request(scope, receive)
        try:
            response = await self._answer(service, request)
        except ClientGone:
            return
        service.metrics.request(self.path, scope["method"], response.status_code)
        scope["answering"] = True
        await response(scope, receive, send)

    async def _answer(self, service: Service, request: Request) -> Response:
        handler = self._handlers.get(request.method)
        try:
            if handler is not None:
                return await handler(service, request)
        except SelectError as error:
            return error_response(error)
        response = error_response(MethodNotAllowed("method not allowed"))
        response.headers["allow"] = self._allow
        return response


async def no_such_route(scope: Scope, receive: Receive, send: Send) -> None:
    """ASGI endpoint of everything else."""
    service: Service = scope["service"]
    service.metrics.request("unknown", "any", RouteNotFound.status)
    await error_response(RouteNotFound("route not found"))(scope, receive, send)


def trace_of(request: Request) -> dict[str, str]:
    """The W3C trace context that came with a request, as a field of its log lines."""
    traceparent = request.headers.get("traceparent")
    return {} if traceparent is None else {"traceparent": traceparent[:TRACEPARENT_CHARS_MAX]}


def now() -> float:
    """The core's time: seconds of the monotonic clock."""
    return monotonic()


def path_text(request: Request, name: str) -> str:
    """A path segment, percent-decoded once.  Raises BadRequest when it is not UTF-8."""
    raw = unquote_to_bytes(request.path_params[name])
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadRequest(f"Invalid URL: Invalid UTF-8 in `{name}`") from None


def path_worker_id(request: Request) -> int:
    """Raises BadRequest when the segment is not an unsigned 64-bit number."""
    text = path_text(request, "worker_id")
    return _u64(text, f"Invalid URL: Cannot parse `{text[:64]}` to a `u64`")


def query_of(request: Request, *known: str) -> dict[str, str]:
    """The known query parameters.  Raises BadRequest when one is given twice."""
    found: dict[str, str] = {}
    if not request.scope["query_string"]:
        return found
    for name, value in request.query_params.multi_items():
        if name in known:
            if name in found:
                raise BadRequest(f"Failed to deserialize query string: duplicate field `{name}`")
            found[name] = value
    return found


def scope_filter(query: Mapping[str, str]) -> tuple[str | None, str | None]:
    """(model_name, tenant_id) of a query; None admits every one."""
    tenant, group = query.get("tenant_id"), query.get("routing_group")
    named = tenant is not None or group is not None
    return query.get("model_name"), tenant_of(tenant, group) if named else None


def query_number(query: Mapping[str, str], name: str, low: int, high: int) -> int | None:
    """Raises BadRequest when it is not a whole number in the range."""
    text = query.get(name)
    if text is None:
        return None
    value = _u64(text, f"{name}: expected a whole number, got `{text[:64]}`")
    if not low <= value <= high:
        raise BadRequest(f"{name}: expected a whole number from {low} to {high}, got {value}")
    return value


def query_flag(query: Mapping[str, str], name: str) -> bool:
    """Raises BadRequest when it is neither `true` nor `false`."""
    text = query.get(name, "false")
    if text not in ("true", "false"):
        raise BadRequest(f"{name}: expected true or false, got `{text[:64]}`")
    return text == "true"


def _u64(text: str, complaint: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= U64_MAX):
        raise BadRequest(complaint)
    return int(text)
