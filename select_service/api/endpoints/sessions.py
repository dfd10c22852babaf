"""Endpoints of sessions: their list, one of them, and its end."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from select_service.api import request_parameters
from select_service.api.example_values import EXAMPLE_RANK, EXAMPLE_SCOPE
from select_service.api.request_parameters import parse_number, parse_page, scope_filter
from select_service.api.service_context import ServiceContext, core_time, request_grant
from select_service.api.tenant_isolation import check_tenant
from select_service.auth.roles import CALLER, OPERATOR, REPLICA, tenant_scoped
from select_service.base.errors import BadRequest, NotFound
from select_service.core.identity import PartitionKey
from select_service.core.sessions.session_pages import SessionFilter
from select_service.core.sessions.session_table import ALL_PARTS
from select_service.http.body_codec import json_response
from select_service.http.endpoint import EndpointGroup, QueryParameter, ResponseSpec, RouteSpec
from select_service.schemas.common import DEFAULT_NAME, U64, U64_MAX
from select_service.schemas.sessions import SessionEnd, SessionPage, SessionRow

_PAGE = (
    *request_parameters.PAGE_PARAMETERS,
    QueryParameter(
        "parts",
        U64,
        "Only sessions in these of 64 parts, a bit each; for replicas, whose digests name parts.",
    ),
)
_ROW = {
    "session_id": "conversation-7",
    **EXAMPLE_SCOPE,
    "routing_group": EXAMPLE_SCOPE["tenant_id"],
    **EXAMPLE_RANK,
    "present": True,
    "leases": 0,
    "idle_seconds": 12.5,
    "expires_in_seconds": 587.5,
    "context_tokens": 31_000,
    "turns": 8,
    "sequence": 41,
    "writer_id": 4242424242,
}

SESSIONS = EndpointGroup("sessions", "Conversations and the rank of their last turn.")


@SESSIONS.declare_route(
    RouteSpec(
        "GET",
        "/sessions",
        "list_sessions",
        "List sessions",
        {
            200: ResponseSpec(
                "Page of sessions.",
                SessionPage,
                {"sessions": [_ROW], "total": 1, "next": None, "router_id": 4242424242},
            )
        },
        may_call=tenant_scoped(CALLER, OPERATOR, REPLICA),
        detail="Repeat the request with `after` set to `next` until `next` is null. A session that "
        "lives all the time is on one page; pages may be shorter than `limit`.",
        query=request_parameters.SCOPE_PARAMETERS + _PAGE,
        refusals=(BadRequest,),
    )
)
async def list_sessions(
    service: ServiceContext, request: Request, query: Mapping[str, str]
) -> Response:
    model_name, tenant_id = scope_filter(query)
    parts = parse_number(query, "parts", 0, U64_MAX)
    limit, after = parse_page(query)
    session_filter = SessionFilter(
        model_name=model_name,
        tenant_id=tenant_id,
        limit=limit,
        after=after,
        tenants=request_grant(request).tenants,
        parts=ALL_PARTS if parts is None else parts,
    )
    return json_response(service.selector.session_views.list_page(session_filter, core_time()))


@SESSIONS.declare_route(
    RouteSpec(
        "GET",
        "/sessions/{session_id}",
        "get_session",
        "Show one session",
        {200: ResponseSpec("Row as in the list.", SessionRow, _ROW)},
        may_call=tenant_scoped(CALLER, OPERATOR),
        detail="`model_name` and `tenant_id` default to `default`, as in requests.",
        in_path=request_parameters.SESSION_ID,
        query=request_parameters.SCOPE_PARAMETERS,
        refusals=(BadRequest, NotFound),
    )
)
async def show_session(
    service: ServiceContext, request: Request, session_id: str, query: Mapping[str, str]
) -> Response:
    views = service.selector.session_views
    return json_response(views.get_session(_scope_of(request, query), session_id, core_time()))


@SESSIONS.declare_route(
    RouteSpec(
        "DELETE",
        "/sessions/{session_id}",
        "end_session",
        "End a session",
        {
            200: ResponseSpec(
                "The session as it was.", SessionEnd, {"status": "ok", "session": _ROW}
            )
        },
        may_call=tenant_scoped(CALLER, OPERATOR),
        detail="The next request with this id chooses its rank anew. Reservations of the session "
        "stay. Replicas of this version end it as well; Dynamo has no such message.",
        in_path=request_parameters.SESSION_ID,
        query=request_parameters.SCOPE_PARAMETERS,
        refusals=(BadRequest, NotFound),
    )
)
async def end_session(
    service: ServiceContext, request: Request, session_id: str, query: Mapping[str, str]
) -> Response:
    views = service.selector.session_views
    return json_response(views.end_session(_scope_of(request, query), session_id, core_time()))


def _scope_of(request: Request, query: Mapping[str, str]) -> PartitionKey:
    """Return the scope of a query.  Raises Forbidden for the tenant of another key."""
    model_name, tenant_id = scope_filter(query)
    key = PartitionKey(model_name or DEFAULT_NAME, tenant_id or DEFAULT_NAME)
    check_tenant(request_grant(request), key.tenant_id)
    return key
