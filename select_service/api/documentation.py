"""All nouns of the interface, and the document of their endpoints: GET /openapi.json and /docs.

The page is Swagger UI (see viewer/manifest.json and scripts/vendor).  It loads nothing from
elsewhere, and its content security policy would not let it.
"""

import asyncio
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from select_service.access.roles import ANYONE
from select_service.api.admission import ADMISSION
from select_service.api.comparing import COMPARING
from select_service.api.decisions import DECISIONS
from select_service.api.discovery import DISCOVERY
from select_service.api.doctor import DOCTOR
from select_service.api.draining import DRAINING
from select_service.api.fleet_page import PAGE
from select_service.api.health import HEALTH
from select_service.api.inspection import INSPECTION
from select_service.api.migrations import MIGRATIONS
from select_service.api.openapi import document
from select_service.api.planner import PLANNER
from select_service.api.policies import POLICIES
from select_service.api.probes import SERVICE
from select_service.api.replica_peers import REPLICAS
from select_service.api.reservations import RESERVATIONS
from select_service.api.selection import SELECTION
from select_service.api.service import Service
from select_service.api.static_files import HTML, JAVASCRIPT, STYLES, StaticFiles
from select_service.api.workers import WORKERS
from select_service.errors import NotFound
from select_service.http.endpoint import JSON, Answer, Route

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""The viewer writes styles into its elements and has its icons in its style sheet."""
NOUNS = (
    *(SELECTION, DECISIONS, POLICIES, COMPARING, RESERVATIONS, ADMISSION),
    *(WORKERS, DRAINING, DISCOVERY, HEALTH, MIGRATIONS, REPLICAS, INSPECTION, DOCTOR, PLANNER),
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


@lru_cache(maxsize=1)
def _document(version: str) -> bytes:
    return msgspec.json.encode(document(NOUNS, version))


@SERVICE.declare(
    Route(
        "GET",
        "/openapi.json",
        "openapi",
        "This document",
        {200: Answer("OpenAPI 3.1.", dict[str, Any])},
        may_call=ANYONE,
    )
)
async def openapi(service: Service, request: Request) -> Response:
    """Made on a thread when it is first asked for: it takes longer than an event loop may."""
    return Response(await asyncio.to_thread(_document, service.version), media_type=JSON)


@SERVICE.declare(
    Route(
        "GET",
        "/docs",
        "docs",
        "This document as a page on which every call can be tried",
        {200: Answer("HTML without outside resources.", None, media_type=HTML)},
        may_call=ANYONE,
    )
)
async def docs(service: Service, request: Request) -> Response:
    page = await asyncio.to_thread((_VIEWER / "page.html").read_bytes)
    return Response(page, media_type=HTML, headers={"content-security-policy": POLICY})


@SERVICE.declare(
    Route(
        "GET",
        "/docs/{file}",
        "docs_file",
        "What the page loads",
        {200: Answer("Style sheet or script.", None, media_type=STYLES, also=(JAVASCRIPT,))},
        may_call=ANYONE,
        in_path=FILES.parameter("swagger-ui.css"),
        refusals=(NotFound,),
    )
)
async def docs_file(service: Service, request: Request, name: str) -> Response:
    return await FILES.answer(request, name)
