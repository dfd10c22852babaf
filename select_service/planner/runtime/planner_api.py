"""HTTP API of a planner: status, decisions, changes of bounds, the report and metrics.

GET   /v1/status                     summary of all deployments
GET   /v1/deployments/{name}         one of them: settings, last tick stage by stage, decisions
PATCH /v1/deployments/{name}         other bounds, `advisory`, `paused`; all of them or none
GET   /v1/decision, POST /v1/decision/{id}/complete    virtual connector
GET   /report, /metrics, /healthz
"""

import asyncio

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

from select_service.base.suggestions import nearest_name, printable_name
from select_service.net.allowed_hosts import HostAllowList, is_foreign_change
from select_service.planner.config_loader import PlannerConfigError
from select_service.planner.connectors.virtual_api import decision_routes
from select_service.planner.connectors.virtual_connector import VirtualConnector
from select_service.planner.deployment_status import DeploymentStatus, DeploymentStatuses
from select_service.planner.json_bodies import (
    PlannerRefusal,
    answer_refusal,
    error_response,
    json_answer,
    read_json_body,
)
from select_service.planner.runtime.planner_api_bodies import (
    CHANGEABLE,
    ChangedSettingsBody,
    DeploymentSummary,
    SettingsPatch,
    StatusBody,
    make_detail,
    make_summary,
)
from select_service.planner.runtime.planner_metrics import make_registry, render_metrics
from select_service.planner.runtime.report_writer import draw_report
from select_service.planner.runtime.tick_loop import TickLoop


def build_application(
    loop: TickLoop, statuses: DeploymentStatuses, names: tuple[str, ...] | None = None
) -> Starlette:
    """Build the application, which has nothing to close.

    names: host names accepted besides addresses; None means all
    """
    api = _PlannerApi(loop, statuses)
    routes = [
        Route("/v1/status", api.get_status, methods=["GET"]),
        Route("/v1/deployments/{name:path}", api.get_deployment, methods=["GET"]),
        Route("/v1/deployments/{name:path}", api.patch_deployment, methods=["PATCH"]),
        Route("/report", api.get_report, methods=["GET"]),
        Route("/metrics", api.get_metrics, methods=["GET"]),
        Route("/healthz", api.get_health, methods=["GET"]),
        *decision_routes(api.find_virtual),
    ]
    guard = Middleware(_RequestGuard, names=None if names is None else HostAllowList(names))
    handlers = {HTTPException: _http_error, PlannerRefusal: answer_refusal}
    return Starlette(routes=routes, middleware=[guard], exception_handlers=handlers)


class _RequestGuard:
    """Middleware before all routes, which reads only the head of a request.

    Refuses requests under another host name, and changes requested by pages of another origin.
    Answers a request that shutdown cuts off.
    """

    def __init__(self, app: ASGIApp, names: HostAllowList | None) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        refused = self._refuse_request(scope["method"], Headers(scope=scope))
        if refused is not None:
            await refused(scope, receive, send)
            return
        has_begun = False

        async def sending(message: Message) -> None:
            """Send a message and note the start of the answer."""
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:
            # A second answer on the same connection would corrupt the first.
            if has_begun:
                raise
            ending = error_response(
                503, "shutting_down", "the planner is shutting down; retry later"
            )
            await ending(scope, receive, send)

    def _refuse_request(self, method: str, headers: Headers) -> Response | None:
        """Return the error answer of a forbidden request, or None."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._names is not None and not self._names.allows_host(host):
            fault = (
                f"host name `{printable_name(host)}` is not allowed: use an IP "
                "address, or add the name to "
                "`allowed_hosts` under `api`"
            )
            return error_response(403, "host_not_allowed", fault)
        # Programs send no Origin; browsers always do for changes, so this stops foreign pages only.
        if origin is None or not is_foreign_change(method, origin, host):
            return None
        fault = (
            f"changes from pages of the origin `{printable_name(origin)}` are not allowed: "
            "send the request without the header `Origin`"
        )
        return error_response(403, "origin_not_allowed", fault)


class _PlannerApi:
    def __init__(self, running: TickLoop, statuses: DeploymentStatuses) -> None:
        self._running = running
        self._statuses = statuses
        self._registry = make_registry(statuses)
        self._drawing, self._scraping = asyncio.Lock(), asyncio.Lock()

    async def get_status(self, request: Request) -> Response:
        """Handle GET /v1/status."""
        return json_answer(StatusBody(tuple(map(self._make_summary, self._statuses))))

    async def get_deployment(self, request: Request) -> Response:
        """Handle GET /v1/deployments/{name}."""
        status = self._find_deployment(request.path_params["name"])
        return json_answer(make_detail(status, self._make_summary(status)))

    async def patch_deployment(self, request: Request) -> Response:
        """Handle PATCH: 200 with the new settings; 400, 404, 413, 422."""
        name = self._find_deployment(request.path_params["name"]).name
        patch = await read_json_body(request, SettingsPatch, _explain_fault)
        paused = None if patch.paused is UNSET else patch.paused
        try:
            config = await self._running.change_settings(
                name, patch.given_settings(), paused=paused
            )
        except PlannerConfigError as error:
            raise PlannerRefusal(422, "invalid_settings", str(error)) from None
        return json_answer(
            ChangedSettingsBody(name, self._running.is_paused(name), config.core_settings())
        )

    async def get_report(self, request: Request) -> Response:
        """Handle GET /report, one at a time."""
        name = request.query_params.get("deployment")
        chosen = list(self._statuses) if name is None else [self._find_deployment(name)]
        # One report at a time: each copies up to 50,000 rows and keeps a thread busy.
        async with self._drawing:
            page = await draw_report(chosen)
        return Response(page, media_type="text/html; charset=utf-8")

    async def get_metrics(self, request: Request) -> Response:
        """Handle GET /metrics."""
        return Response(
            render_metrics(self._registry), headers={"content-type": CONTENT_TYPE_LATEST}
        )

    async def get_health(self, request: Request) -> Response:
        """Report that the process runs; the quality of its data is in /v1/status."""
        return json_answer({"status": "ok"})

    def find_virtual(self, request: Request) -> VirtualConnector | None:
        """Return the only virtual connector, or that of `?deployment=`."""
        name = request.query_params.get("deployment")
        members = self._running.members
        chosen = members.values() if name is None else [members[name]] if name in members else []
        found = [each.connector for each in chosen if isinstance(each.connector, VirtualConnector)]
        return found[0] if len(found) == 1 else None

    def _find_deployment(self, name: str) -> DeploymentStatus:
        """Return the state of a deployment. Raises PlannerRefusal."""
        status = self._statuses.find_status(name)
        if status is None:
            raise PlannerRefusal(
                404,
                "not_found",
                f"deployment `{printable_name(name)}` does not exist: see GET /v1/status",
            )
        return status

    def _make_summary(self, status: DeploymentStatus) -> DeploymentSummary:
        """Return the summary of a deployment."""
        name = status.name
        return make_summary(
            status,
            self._running.configs()[name],
            self._running.is_paused(name),
            self._running.members[name].faults,
            self._running.next_tick_s(name),
        )


async def _http_error(request: Request, error: Exception) -> Response:
    """Answer for an unknown route, in the common form."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    code = {404: "not_found", 405: "method_not_allowed"}.get(status, "bad_request")
    headers = error.headers if isinstance(error, HTTPException) else None
    answer = error_response(status, code, f"{request.method} {request.url.path} is not served")
    answer.headers.update(headers or {})
    return answer


def _explain_fault(fault: str) -> str:
    """Return the message with the nearest field, or all fields."""
    begin = "Object contains unknown field `"
    if not fault.startswith(begin):
        return fault
    known = (*CHANGEABLE, "paused")
    name = fault[len(begin) :].split("`")[0]
    meant = nearest_name(name, known)
    hint = f"can be changed: {', '.join(known)}" if meant is None else f"did you mean `{meant}`?"
    return f"`{printable_name(name)}` cannot be changed at run time; {hint}"
