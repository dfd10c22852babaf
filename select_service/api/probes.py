"""Liveness, readiness, metrics."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import cast

from starlette.requests import Request
from starlette.responses import Response

from indexer.sockets.listener_status import ListenerStatus
from select_service.access.guard import STRANGER, Guard
from select_service.access.roles import ANYONE, CALLER, METRICS, OPERATOR, whole_service
from select_service.api.limit_views import limit_reports
from select_service.api.parameters import query_flag
from select_service.api.service import Service, grant_of, keeping_report, now
from select_service.api.tenancy import without_hints
from select_service.api.worker_records import records
from select_service.api.workers import RECORD
from select_service.bodies.common import Status
from select_service.bodies.workers import Ready, RecoveryView, WorkerRecord
from select_service.errors import BadRequest
from select_service.http.codec import json_response
from select_service.http.endpoint import Answer, Noun, QueryParameter, Route
from select_service.metrics.access import AccessReport
from select_service.metrics.service_metrics import Edges
from select_service.metrics.tls import TlsSeen
from select_service.settings.reach import are_replicas_open, is_open
from select_service.turns import encoded_in_turns, in_turns, result_in_turns

_OK = Status()
_SHOWN_TO = CALLER, OPERATOR
"""Roles that see the records of workers in `/ready`."""
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SERVICE = Noun("service", "Probes, metrics and this document.")


@SERVICE.declare(
    Route(
        "GET",
        "/health",
        "health",
        "Is the process alive?",
        {200: Answer("It is.", Status, {"status": "ok"})},
        may_call=ANYONE,
    )
)
async def health(service: Service, request: Request) -> Response:
    """The process answers."""
    return json_response(_OK)


@SERVICE.declare(
    Route(
        "GET",
        "/ready",
        "ready",
        "Can a worker be chosen?",
        {
            200: Answer(
                "At least one worker is schedulable.",
                Ready,
                {"ready": True, "schedulable_workers": 1, "workers": [RECORD]},
            ),
            503: Answer(
                "None is; the records say why. Or recovery still runs, or the process drains.",
                Ready,
                {
                    "ready": False,
                    "schedulable_workers": 0,
                    "reason": "no worker is registered: POST /workers, or --workers-file",
                    "workers": [],
                },
            ),
        },
        may_call=ANYONE,
        detail="Where keys are asked for, who shows none is told only what a probe needs: no "
        "counts, no records, no places.",
        query=(
            QueryParameter("records", bool, "`false`: without the records of workers.", True),
            QueryParameter(
                "workers", bool, "`false`: 200 without any worker, for fleets that may sleep.", True
            ),
        ),
        refusals=(BadRequest,),
    )
)
async def ready(service: Service, request: Request, query: Mapping[str, str]) -> Response:
    """200 once the recovery has ended and a worker is schedulable, and until the process drains;
    else the same body with 503."""
    needs_worker = query_flag(query, "workers", default=True)
    workers, recovery = service.selector.workers(), service.recovery
    schedulable = sum(worker.schedulable for worker in workers)
    reasons = [*_unready(service, schedulable > 0 or not needs_worker)]
    grant, with_records = grant_of(request), query_flag(query, "records", default=True)
    seen = [worker for worker in workers if grant.sees(worker.key.tenant_id)]
    shown = seen if with_records and grant.has(*_SHOWN_TO) else []
    rows = (r and without_hints(grant, r) for r in records(service, shown))
    body = Ready(ready=not reasons, workers=cast(list[WorkerRecord], await encoded_in_turns(rows)))
    if reasons:
        body.reason = "; ".join(reasons)
    if grant != STRANGER:
        body.schedulable_workers = sum(worker.schedulable for worker in seen)
    if service.is_draining:
        body.draining = True
    if is_open(service.config):
        body.insecure = True
    if grant != STRANGER and are_replicas_open(service.config):
        body.replica_sync_insecure = True
    if recovery.state != "off":
        body.recovery = RecoveryView(state=recovery.state)
        if grant.tenants is None:  # what follows is of all tenants
            body.recovery.peer = recovery.source
            body.recovery.partitions = recovery.partitions
            body.recovery.blocks = recovery.blocks
            body.recovery.bytes = recovery.bytes
            body.recovery.elapsed_s = round(recovery.seconds(now()), 3)
    return json_response(body, 200 if body.ready else 503)


def _unready(service: Service, has_workers: bool) -> Iterator[str]:
    """Say why no requests may be sent here; nothing, when they may."""
    if service.is_draining:
        yield "the process answers its last requests and ends"
    if service.recovery.running:
        yield "the index is being recovered"
    if has_workers:
        return
    if not len(service.selector.fleet.catalog):
        yield "no worker is registered: POST /workers, or --workers-file"
    else:
        yield "no registered worker can be chosen: GET /workers says why"


@SERVICE.declare(
    Route(
        "GET",
        "/metrics",
        "metrics",
        "Metrics for Prometheus",
        {200: Answer("Prometheus text exposition.", None, media_type=METRICS_TYPE)},
        may_call=whole_service(OPERATOR, METRICS),
        detail="Cheap enough for a scrape every few seconds.",
    )
)
async def metrics(service: Service, request: Request) -> Response:
    """Observed here, in turns; written on a thread, which may take milliseconds."""
    replicas = None if service.replicas is None else service.replicas.status()
    edges = Edges(
        await _listeners(service),
        replicas,
        keeping_report(service),
        service.engine_scrapes,
        service.callback_failures,
        service.tasks,
        service.input_loops(),
        service.decision_log(),
        _access(service.guard) if service.guard.is_on else None,
        None if service.audit is None else service.audit.counts,
        () if service.discovery is None else service.discovery.report(),
        service.ingest.names.boundary.refused(),
        _tls(service),
        None if service.tracing is None else service.tracing.counts,
        limit_reports(service),
        {each.name: each.age_s() for each in service.followed},
    )
    seen = await result_in_turns(service.metrics.observe(service.selector, edges))
    return Response(await asyncio.to_thread(service.metrics.text, seen), media_type=METRICS_TYPE)


def _access(guard: Guard) -> AccessReport:
    return AccessReport(
        dict(guard.refusals),
        len(guard),
        guard.readings,
        guard.failures,
        guard.fault is not None,
    )


def _tls(service: Service) -> TlsSeen | None:
    files = {side: kept.report() for side, kept in service.tls()}
    server = service.server_tls
    return TlsSeen(None if server is None else server.handshakes.counts(), files) if files else None


async def _listeners(service: Service) -> dict[tuple[int, int], ListenerStatus]:
    """The status of every listener, taken in turns of the event loop."""
    return dict(await in_turns(service.ingest.statuses()))
