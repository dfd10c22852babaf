"""List of all resources, and the generated documents GET /openapi.json and GET /docs.

The page is Swagger UI (see viewer/manifest.json and scripts/vendor).  The page loads no outside
resources; its content security policy forbids them.
"""

import asyncio
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from select_service.api.endpoints.admission import ADMISSION
from select_service.api.endpoints.caches import CACHES
from select_service.api.endpoints.decisions import DECISIONS
from select_service.api.endpoints.discovery import DISCOVERY
from select_service.api.endpoints.doctor import DOCTOR
from select_service.api.endpoints.draining import DRAINING
from select_service.api.endpoints.experiments import EXPERIMENTS
from select_service.api.endpoints.health import HEALTH
from select_service.api.endpoints.inspection import INSPECTION
from select_service.api.endpoints.migrations import MIGRATIONS
from select_service.api.endpoints.pairs import PAIRS
from select_service.api.endpoints.planner import PLANNER
from select_service.api.endpoints.policies import POLICIES
from select_service.api.endpoints.probes import SERVICE
from select_service.api.endpoints.replica_peers import REPLICAS
from select_service.api.endpoints.reservations import RESERVATIONS
from select_service.api.endpoints.selection import SELECTION
from select_service.api.endpoints.sessions import SESSIONS
from select_service.api.endpoints.shared_caches import SHARED_CACHES
from select_service.api.endpoints.workers import WORKERS
from select_service.api.fleet_page import PAGE
from select_service.api.openapi.document import build_document
from select_service.api.service_context import ServiceContext
from select_service.api.static_files import CSS, HTML, JAVASCRIPT, StaticFiles
from select_service.auth.roles import ANYONE
from select_service.base.errors import NotFound
from select_service.http.endpoint import JSON, ResponseSpec, RouteSpec

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""Content security policy of /docs; Swagger UI needs inline styles and `data:` icons."""
ENDPOINT_GROUPS = (
    *(SELECTION, PAIRS, DECISIONS, POLICIES, EXPERIMENTS, RESERVATIONS, SESSIONS, ADMISSION),
    *(
        WORKERS,
        CACHES,
        SHARED_CACHES,
        DRAINING,
        DISCOVERY,
        HEALTH,
        MIGRATIONS,
        REPLICAS,
        INSPECTION,
        DOCTOR,
        PLANNER,
    ),
    *(PAGE, SERVICE),
)

_VIEWER = Path(__file__).parent / "viewer"
FILES = StaticFiles(
    {
        "start.js": _VIEWER / "start.js",
        "swagger-ui-bundle.js": _VIEWER / "swagger-ui-bundle.js.gz",
        "swagger-ui.css": _VIEWER / "swagger-ui.css.gz",
    },
    max_age_s=3600,
)


# Routes never change in a running process, so the document depends on the version only.
@lru_cache(maxsize=1)
def _encode_document(version: str) -> bytes:
    return msgspec.json.encode(build_document(ENDPOINT_GROUPS, version))


@SERVICE.declare_route(
    RouteSpec(
        "GET",
        "/openapi.json",
        "openapi",
        "This document",
        {200: ResponseSpec("OpenAPI 3.1.", dict[str, Any])},
        may_call=ANYONE,
    )
)
async def show_openapi(service: ServiceContext, request: Request) -> Response:
    """Return the document, built on a thread at the first request: too slow for the event loop."""
    return Response(await asyncio.to_thread(_encode_document, service.version), media_type=JSON)


@SERVICE.declare_route(
    RouteSpec(
        "GET",
        "/docs",
        "docs",
        "Show this document as an interactive page",
        {200: ResponseSpec("HTML without outside resources.", None, media_type=HTML)},
        may_call=ANYONE,
    )
)
async def show_docs(service: ServiceContext, request: Request) -> Response:
    page = await asyncio.to_thread((_VIEWER / "page.html").read_bytes)
    return Response(
        page, media_type=HTML, headers={"content-security-policy": CONTENT_SECURITY_POLICY}
    )


@SERVICE.declare_route(
    RouteSpec(
        "GET",
        "/docs/{file}",
        "docs_file",
        "Get a file of the page",
        {
            200: ResponseSpec(
                "Style sheet or script.", None, media_type=CSS, alternative_types=(JAVASCRIPT,)
            )
        },
        may_call=ANYONE,
        in_path=FILES.file_parameter("swagger-ui.css"),
        refusals=(NotFound,),
    )
)
async def show_docs_file(service: ServiceContext, request: Request, name: str) -> Response:
    return await FILES.serve_file(request, name)
