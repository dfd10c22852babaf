"""GET /openapi.json and /docs."""

from functools import lru_cache

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from select_service.api.docs_page import page
from select_service.api.openapi import document
from select_service.api.route_table import HTML
from select_service.api.service import Service
from select_service.http.endpoint import JSON


@lru_cache(maxsize=1)
def _document(version: str) -> bytes:
    return msgspec.json.encode(document(version))


@lru_cache(maxsize=1)
def _page(version: str) -> bytes:
    return page(document(version))


async def openapi(service: Service, request: Request) -> Response:
    return Response(_document(service.version), media_type=JSON)


async def docs(service: Service, request: Request) -> Response:
    return Response(_page(service.version), media_type=HTML)
