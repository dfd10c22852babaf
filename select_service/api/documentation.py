"""All nouns of the interface, and the document of their endpoints: GET /openapi.json and /docs."""

import asyncio
from functools import lru_cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from select_service.api.admission import ADMISSION
from select_service.api.docs_page import page
from select_service.api.inspection import INSPECTION
from select_service.api.openapi import document
from select_service.api.probes import SERVICE
from select_service.api.replica_peers import REPLICAS
from select_service.api.reservations import RESERVATIONS
from select_service.api.selection import SELECTION
from select_service.api.service import Service
from select_service.api.workers import WORKERS
from select_service.http.endpoint import JSON, Answer, Route

HTML = "text/html; charset=utf-8"

NOUNS = (SELECTION, RESERVATIONS, ADMISSION, WORKERS, REPLICAS, INSPECTION, SERVICE)


@lru_cache(maxsize=1)
def _document(version: str) -> bytes:
    return msgspec.json.encode(document(NOUNS, version))


@lru_cache(maxsize=1)
def _page(version: str) -> bytes:
    return page(document(NOUNS, version))


@SERVICE.declare(
    Route(
        "GET",
        "/openapi.json",
        "openapi",
        "This document",
        {200: Answer("OpenAPI 3.1.", dict[str, Any])},
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
        "This document as a page",
        {200: Answer("HTML without outside resources.", None, media_type=HTML)},
    )
)
async def docs(service: Service, request: Request) -> Response:
    return Response(await asyncio.to_thread(_page, service.version), media_type=HTML)
