"""HTTP of a planner: status, decisions, changes of bounds, the report and metrics.

GET   /v1/status                     all deployments in a few numbers
GET   /v1/deployments/{name}         one of them: settings, last tick stage by stage, decisions
PATCH /v1/deployments/{name}         other bounds, `advisory`, `paused`; all of them or none
GET   /v1/decision, POST /v1/decision/{id}/complete    see connectors.virtual_routes
GET   /report, /metrics, /healthz
"""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from msgspec import UNSET
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from select_service.allowed_names import AllowedNames, is_foreign_change
from select_service.planner.config import DeploymentConfig
from select_service.planner.connectors.advisory import Switched
from select_service.planner.connectors.opening import virtual_of
from select_service.planner.connectors.virtual import VirtualConnector
from select_service.planner.connectors.virtual_routes import decision_routes
from select_service.planner.edge.api_bodies import (
    CHANGEABLE,
    Changed,
    Patch,
    StatusBody,
    Summary,
    detail_of,
    settings_of,
    summary_of,
)
from select_service.planner.edge.metrics import metrics_text, registry_of
from select_service.planner.edge.reports import report_of
from select_service.planner.json_requests import Refused, answered, body_as, json_response, refusal
from select_service.planner.reading import ConfigError
from select_service.planner.report.drawing import FormatError
from select_service.planner.status import DeploymentStatus, Statuses
from select_service.spelling import nearest, shown


class Watched(Protocol):
    """One deployment that runs. faults: source -> what kept it from being known"""

    @property
    def faults(self) -> Mapping[str, str]: ...
    @property
    def connector(self) -> Switched: ...


class Running(Protocol):
    """The loop, as the API sees it."""

    @property
    def members(self) -> Mapping[str, Watched]: ...
    def configs(self) -> Mapping[str, DeploymentConfig]: ...
    def is_paused(self, name: str) -> bool: ...
    def next_tick_s(self, name: str) -> float: ...
    async def change(
        self, name: str, fields: Mapping[str, object], *, paused: bool | None = None
    ) -> DeploymentConfig:
        """Raises ConfigError for what makes no sense; changes nothing then."""
        ...


def application(
    running: Running, statuses: Statuses, names: tuple[str, ...] | None = None
) -> Starlette:
    """Needs nothing of its own to be closed.

    names: under which it is answered, besides addresses; None: all
    """
    api = _Api(running, statuses)
    routes = [
        Route("/v1/status", answered(api.status), methods=["GET"]),
        Route("/v1/deployments/{name:path}", answered(api.deployment), methods=["GET"]),
        Route("/v1/deployments/{name:path}", answered(api.patch), methods=["PATCH"]),
        Route("/report", answered(api.report), methods=["GET"]),
        Route("/metrics", answered(api.metrics), methods=["GET"]),
        Route("/healthz", answered(api.healthz), methods=["GET"]),
        *decision_routes(api.virtual),
    ]
    guard = Middleware(_Guard, names=None if names is None else AllowedNames(names))
    handlers = {HTTPException: _http_error}
    return Starlette(routes=routes, middleware=[guard], exception_handlers=handlers)


class _Guard:
    """Stands before all routes, and reads nothing of a request but its head.

    It refuses requests under another name, and changes that pages of another origin ask for.
    A request that the end of the process cuts off is answered.
    """

    def __init__(self, app: ASGIApp, names: AllowedNames | None) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refused(scope["method"], Headers(scope=scope))
        if refused is not None:
            await refused(scope, receive, send)
            return
        has_begun = False

        async def sending(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:
            if has_begun:
                raise
            ending = refusal(503, "shutting_down", "the planner is ending; ask again later")
            await ending(scope, receive, send)

    def _refused(self, method: str, headers: Headers) -> Response | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._names is not None and not self._names.allow(host):
            fault = (
                f"the planner is not asked for under the name `{shown(host)}`: use an address, or "
                "a name of `allowed_hosts` under `api`"
            )
            return refusal(403, "host_not_allowed", fault)
        if origin is None or not is_foreign_change(method, origin, host):
            return None
        fault = (
            f"pages of the origin `{shown(origin)}` may change nothing here: "
            "send the request without the header `Origin`"
        )
        return refusal(403, "origin_not_allowed", fault)


class _Api:
    def __init__(self, running: Running, statuses: Statuses) -> None:
        self._running = running
        self._statuses = statuses
        self._registry = registry_of(statuses)
        self._drawing, self._scraping = asyncio.Lock(), asyncio.Lock()

    async def status(self, request: Request) -> Response:
        return json_response(StatusBody(tuple(map(self._summary, self._statuses))))

    async def deployment(self, request: Request) -> Response:
        status = self._found(request.path_params["name"])
        return json_response(detail_of(status, self._summary(status)))

    async def patch(self, request: Request) -> Response:
        """200 with what counts now; 400, 404, 413, 422."""
        name = self._found(request.path_params["name"]).name
        patch = await body_as(request, Patch, _explained)
        paused = None if patch.paused is UNSET else patch.paused
        try:
            config = await self._running.change(name, patch.settings(), paused=paused)
        except ConfigError as error:
            raise Refused(422, "invalid_settings", str(error)) from None
        return json_response(Changed(name, self._running.is_paused(name), settings_of(config)))

    async def report(self, request: Request) -> Response:
        """One at a time."""
        name = request.query_params.get("deployment")
        chosen = list(self._statuses) if name is None else [self._found(name)]
        try:
            async with self._drawing:
                page = await report_of(chosen, request.query_params.get("format", "svg"))
        except FormatError as error:
            raise Refused(422, "invalid_format", str(error)) from None
        return Response(page, media_type="text/html; charset=utf-8")

    async def metrics(self, request: Request) -> Response:
        return Response(metrics_text(self._registry), headers={"content-type": CONTENT_TYPE_LATEST})

    async def healthz(self, request: Request) -> Response:
        """The process runs; whether it knows enough is what /v1/status says."""
        return json_response({"status": "ok"})

    def virtual(self, request: Request) -> VirtualConnector | None:
        """The only one, or that of `?deployment=`."""
        name = request.query_params.get("deployment")
        members = self._running.members
        if name is not None:
            return virtual_of(members[name].connector) if name in members else None
        found = [virtual_of(member.connector) for member in members.values()]
        known = [connector for connector in found if connector is not None]
        return known[0] if len(known) == 1 else None

    def _found(self, name: str) -> DeploymentStatus:
        status = self._statuses.get(name)
        if status is None:
            raise Refused(404, "not_found", f"no deployment has the name `{shown(name)}`")
        return status

    def _summary(self, status: DeploymentStatus) -> Summary:
        name = status.name
        return summary_of(
            status,
            self._running.configs()[name],
            self._running.is_paused(name),
            self._running.members[name].faults,
            self._running.next_tick_s(name),
        )


async def _http_error(request: Request, error: Exception) -> Response:
    """Of routes that are not there, in the same form."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    code = {404: "not_found", 405: "method_not_allowed"}.get(status, "bad_request")
    headers = error.headers if isinstance(error, HTTPException) else None
    answer = refusal(status, code, f"{request.method} {request.url.path} is not served")
    answer.headers.update(headers or {})
    return answer


def _explained(fault: str) -> str:
    """With the field that may be meant, or all that there are."""
    begin = "Object contains unknown field `"
    if not fault.startswith(begin):
        return fault
    known = (*CHANGEABLE, "paused")
    name = fault[len(begin) :].split("`")[0]
    meant = nearest(name, known)
    hint = f"can be changed: {', '.join(known)}" if meant is None else f"did you mean `{meant}`?"
    return f"`{shown(name)}` cannot be changed here; {hint}"
