"""Endpoints for liveness, readiness and metrics."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import cast

from starlette.requests import Request
from starlette.responses import Response

from indexer.sockets.listener_status import ListenerStatus
from select_service.api.endpoints.workers import EXAMPLE_RECORD
from select_service.api.limit_usage import limit_reports
from select_service.api.request_parameters import parse_flag
from select_service.api.service_context import (
    ServiceContext,
    core_time,
    persistence_report,
    request_grant,
)
from select_service.api.tenant_isolation import hide_hints
from select_service.api.worker_views import build_records
from select_service.auth.guard import ANONYMOUS_GRANT, Guard
from select_service.auth.roles import ANYONE, CALLER, METRICS, OPERATOR, service_wide
from select_service.base.cooperative import (
    collect_cooperatively,
    encode_cooperatively,
    run_cooperatively,
)
from select_service.base.errors import BadRequest
from select_service.config.open_interfaces import (
    is_replica_port_unauthenticated,
    is_unauthenticated,
)
from select_service.http.body_codec import json_response
from select_service.http.endpoint import EndpointGroup, QueryParameter, ResponseSpec, RouteSpec
from select_service.metrics.access import AccessReport
from select_service.metrics.service_metrics import ComponentFigures
from select_service.metrics.tls import TlsFigures
from select_service.schemas.common import Status
from select_service.schemas.workers import Ready, RecoveryView, WorkerRecord

_OK = Status()
_RECORD_ROLES = CALLER, OPERATOR
"""Roles allowed to see worker records in `/ready`."""
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SERVICE = EndpointGroup("service", "Probes, metrics and this document.")


@SERVICE.declare_route(
    RouteSpec(
        "GET",
        "/health",
        "health",
        "Check liveness",
        {200: ResponseSpec("The process is alive.", Status, {"status": "ok"})},
        may_call=ANYONE,
    )
)
async def show_health(service: ServiceContext, request: Request) -> Response:
    """Return 200: the process responds."""
    return json_response(_OK)


@SERVICE.declare_route(
    RouteSpec(
        "GET",
        "/ready",
        "ready",
        "Check readiness",
        {
            200: ResponseSpec(
                "At least one worker is schedulable.",
                Ready,
                {"ready": True, "schedulable_workers": 1, "workers": [EXAMPLE_RECORD]},
            ),
            503: ResponseSpec(
                "No worker is schedulable, recovery is running, or the process is draining.",
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
        detail="If keys are required, requests without a key get only the fields that a probe "
        "needs: no counts, records or endpoints.",
        query=(
            QueryParameter("records", bool, "`false`: omit the worker records.", True),
            QueryParameter(
                "workers",
                bool,
                "`false`: 200 even without workers, for fleets that scale to zero.",
                True,
            ),
        ),
        refusals=(BadRequest,),
    )
)
async def show_readiness(
    service: ServiceContext, request: Request, query: Mapping[str, str]
) -> Response:
    """Return 200 if ready for traffic, otherwise the same body with 503.

    Ready means: recovery has ended, a worker is schedulable, and the process is not draining.
    """
    needs_worker = parse_flag(query, "workers", default=True)
    workers, recovery = service.selector.list_workers(), service.persistence.recovery
    schedulable = sum(worker.is_schedulable for worker in workers)
    reasons = [*_unready_reasons(service, schedulable > 0 or not needs_worker)]
    grant, with_records = request_grant(request), parse_flag(query, "records", default=True)
    seen = [worker for worker in workers if grant.can_see_tenant(worker.key.tenant_id)]
    shown = seen if with_records and grant.has_any_role(*_RECORD_ROLES) else []
    # None marks a pause between records and passes through unchanged.
    rows = (r and hide_hints(grant, r) for r in build_records(service, shown))
    body = Ready(
        ready=not reasons, workers=cast(list[WorkerRecord], await encode_cooperatively(rows))
    )
    if reasons:
        body.reason = "; ".join(reasons)
    if grant != ANONYMOUS_GRANT:
        body.schedulable_workers = sum(worker.is_schedulable for worker in seen)
    if service.process.is_draining:
        body.draining = True
    if is_unauthenticated(service.config):
        body.insecure = True
    if grant != ANONYMOUS_GRANT and is_replica_port_unauthenticated(service.config):
        body.replica_sync_insecure = True
    if recovery.state != "off":
        body.recovery = RecoveryView(state=recovery.state)
        if grant.tenants is None:  # the fields below cover all tenants
            body.recovery.peer = recovery.source
            body.recovery.partitions = recovery.partitions
            body.recovery.blocks = recovery.blocks
            body.recovery.bytes = recovery.bytes
            body.recovery.elapsed_s = round(recovery.elapsed_seconds(core_time()), 3)
    return json_response(body, 200 if body.ready else 503)


def _unready_reasons(service: ServiceContext, has_workers: bool) -> Iterator[str]:
    """Yield the reasons for not being ready; nothing when ready."""
    if service.process.is_draining:
        yield "the process is draining before it ends"
    if service.persistence.recovery.is_running:
        yield "the index is being recovered"
    if has_workers:
        return
    if not len(service.fleet.catalog):
        yield "no worker is registered: POST /workers, or --workers-file"
    else:
        yield "no registered worker is schedulable: see GET /workers for the reasons"


@SERVICE.declare_route(
    RouteSpec(
        "GET",
        "/metrics",
        "metrics",
        "Get metrics for Prometheus",
        {200: ResponseSpec("Prometheus text exposition.", None, media_type=METRICS_TYPE)},
        may_call=service_wide(OPERATOR, METRICS),
        detail="Cheap enough for a scrape every few seconds.",
    )
)
async def show_metrics(service: ServiceContext, request: Request) -> Response:
    """Collect the metrics in small steps here; format them on a thread, since that takes
    milliseconds.
    """
    replicas, discovery, audit, tracing, caches = service.features
    status, figures = replicas.replica_status(), service.figures
    edges = ComponentFigures(
        await _listener_statuses(service),
        status if status.enabled else None,
        persistence_report(service),
        figures.engine_scrapes,
        service.callbacks.failures,
        figures.tasks,
        figures.decision_log(),
        _access_report(service.guard) if service.guard.is_on else None,
        None if audit is None else audit.current_counts,
        discovery.source_reports(),
        service.ingest.resolver.egress_guard.refusal_counts(),
        _tls_report(service),
        None if tracing is None else tracing.counts,
        limit_reports(service),
        {each.name: each.age_s() for each in figures.reloaded_files()},
        () if caches is None else caches.list_status(),
    )
    # Read everything on the loop thread: the thread that formats works on this snapshot only.
    seen = await run_cooperatively(service.metrics.copy_state(service.selector, edges))
    return Response(
        await asyncio.to_thread(service.metrics.render_text, seen), media_type=METRICS_TYPE
    )


def _access_report(guard: Guard) -> AccessReport:
    return AccessReport(
        dict(guard.refusals),
        len(guard),
        guard.readings,
        guard.failures,
        guard.fault is not None,
    )


def _tls_report(service: ServiceContext) -> TlsFigures | None:
    files = {side: kept.tls_report() for side, kept in service.tls.files_by_side()}
    server = service.tls.server
    return (
        TlsFigures(None if server is None else server.handshakes.current_counts(), files)
        if files
        else None
    )


async def _listener_statuses(service: ServiceContext) -> dict[tuple[int, int], ListenerStatus]:
    """Return the status of every event listener, collected in small steps."""
    return dict(await collect_cooperatively(service.ingest.statuses()))
