"""Liveness, readiness, metrics."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from select_service.api.service import Service, keeping_report, now
from select_service.api.workers import with_state
from select_service.bodies.common import Status
from select_service.bodies.workers import RecoveryView
from select_service.http.codec import json_response

_OK = Status()
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def health(service: Service, request: Request) -> Response:
    """The process answers."""
    return json_response(_OK)


async def ready(service: Service, request: Request) -> Response:
    """200 once the recovery has ended and a worker is schedulable; else the same body with 503."""
    body = service.selector.ready()
    recovery = service.recovery
    if recovery.state != "off":
        body.recovery = RecoveryView(
            state=recovery.state,
            peer=recovery.source,
            partitions=recovery.partitions,
            blocks=recovery.blocks,
            bytes=recovery.bytes,
            elapsed_s=round(recovery.seconds(now()), 3),
        )
        body.ready = body.ready and not recovery.running
    with_state(service, body.workers)
    return json_response(body, 200 if body.ready else 503)


async def metrics(service: Service, request: Request) -> Response:
    """Observed here, between two requests; written on a thread, which may take milliseconds."""
    replicas = None if service.replicas is None else service.replicas.status()
    seen = service.metrics.observe(
        service.selector,
        service.ingest,
        replicas,
        keeping_report(service),
        service.engine_scrapes,
    )
    return Response(await asyncio.to_thread(service.metrics.text, seen), media_type=METRICS_TYPE)
