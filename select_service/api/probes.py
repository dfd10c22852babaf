"""Liveness, readiness, metrics."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from select_service.api.codec import json_response
from select_service.api.service import Service
from select_service.api.workers import with_kv_events
from select_service.schema import Status

_OK = Status()
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def health(service: Service, request: Request) -> Response:
    """The process answers."""
    return json_response(_OK)


async def ready(service: Service, request: Request) -> Response:
    """200 once at least one worker is schedulable; the same body, with the reasons, before."""
    body = service.selector.ready()
    with_kv_events(service, body.workers)
    return json_response(body, 200 if body.ready else 503)


async def metrics(service: Service, request: Request) -> Response:
    """Observed here, between two requests; written on a thread, which may take milliseconds."""
    seen = service.metrics.observe(service.selector, service.ingest)
    return Response(await asyncio.to_thread(service.metrics.text, seen), media_type=METRICS_TYPE)
