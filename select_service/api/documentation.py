"""All nouns of the interface, and the document of their endpoints: GET /openapi.json and /docs.

The page is Swagger UI (see viewer/manifest.json and scripts/vendor_docs).  It loads nothing from
elsewhere, and its content security policy would not let it.
"""

import asyncio
import gzip
from functools import lru_cache
from importlib import resources
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from select_service.access.roles import ANYONE
from select_service.api.admission import ADMISSION
from select_service.api.comparing import COMPARING
from select_service.api.decisions import DECISIONS
from select_service.api.discovery import DISCOVERY
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
from select_service.api.workers import WORKERS
from select_service.errors import NotFound
from select_service.http.endpoint import JSON, Answer, PathParameter, Route

HTML = "text/html; charset=utf-8"
JAVASCRIPT = "text/javascript; charset=utf-8"
STYLES = "text/css; charset=utf-8"
MEDIA_TYPES = {
    "swagger-ui-bundle.js": JAVASCRIPT,
    "start.js": JAVASCRIPT,
    "swagger-ui.css": STYLES,
}
"""What the page loads."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""The viewer writes styles into its elements and has its icons in its style sheet."""
FILE_HEADERS = {"vary": "Accept-Encoding", "cache-control": "public, max-age=3600"}

NOUNS = (
    *(SELECTION, DECISIONS, POLICIES, COMPARING, RESERVATIONS, ADMISSION),
    *(WORKERS, DISCOVERY, HEALTH, MIGRATIONS, REPLICAS, INSPECTION, PLANNER, SERVICE),
)

_VIEWER = resources.files(__package__) / "viewer"


@lru_cache(maxsize=1)
def _document(version: str) -> bytes:
    return msgspec.json.encode(document(NOUNS, version))


@lru_cache(maxsize=2 * len(MEDIA_TYPES))
def _file(name: str, compressed: bool) -> bytes:
    stored = _VIEWER / f"{name}.gz"
    if stored.is_file():
        return stored.read_bytes() if compressed else gzip.decompress(stored.read_bytes())
    data = (_VIEWER / name).read_bytes()
    return gzip.compress(data, mtime=0) if compressed else data


def _file_name(segment: str) -> str:
    if segment not in MEDIA_TYPES:
        raise NotFound(f"the page has no file `{segment[:64]}`")
    return segment


_FILE = PathParameter(
    "file",
    Literal["start.js", "swagger-ui-bundle.js", "swagger-ui.css"],
    "Name of the file.",
    "swagger-ui.css",
    _file_name,
)


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
        {200: Answer("Style sheet or script.", None, media_type=STYLES, also=JAVASCRIPT)},
        may_call=ANYONE,
        in_path=_FILE,
        refusals=(NotFound,),
    )
)
async def docs_file(service: Service, request: Request, name: str) -> Response:
    compressed = "gzip" in request.headers.get("accept-encoding", "")
    data = await asyncio.to_thread(_file, name, compressed)
    headers = FILE_HEADERS | ({"content-encoding": "gzip"} if compressed else {})
    return Response(data, media_type=MEDIA_TYPES[name], headers=headers)
