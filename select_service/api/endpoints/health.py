"""Endpoints of engine health: state, outcome reports of callers, and checks on request."""

import ipaddress
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from select_service.api import request_parameters
from select_service.api.example_values import EXAMPLE_SCOPE
from select_service.api.request_parameters import scope_filter
from select_service.api.service_context import ServiceContext, core_time, trace_fields
from select_service.api.tenant_isolation import visible_rows
from select_service.auth.roles import CALLER, OPERATOR, service_wide, tenant_scoped
from select_service.base.cooperative import collect_cooperatively, run_cooperatively
from select_service.base.errors import BadRequest, Conflict, HealthChecksOff, NotFound, UnknownField
from select_service.core.workers.worker_catalog import RegisteredWorker
from select_service.http.body_codec import json_response
from select_service.http.endpoint import (
    BODY_ERRORS,
    BodySpec,
    EndpointGroup,
    ResponseSpec,
    RouteSpec,
)
from select_service.schemas.common import Status
from select_service.schemas.health import FleetHealth, LearnRequest, OutcomeRequest, WorkerHealth

if TYPE_CHECKING:
    from select_service.core.health.fleet_health.health_service import HealthService

log = logging.getLogger("select_service.health")

EXAMPLE_RANK_HEALTH: Mapping[str, Any] = {
    "state": "healthy",
    "weight": 1.0,
    "breaker": "closed",
    "cause": None,
    "failures": 0,
    "checked": True,
    "spare": False,
    "reservations": 3,
    "baseline_ms": 41.7,
    "last_result": "pass",
    "last_result_age_s": 12.5,
    "last_latency_ms": 42.3,
    "next_check_s": 17.5,
}
_PARTITION: Mapping[str, Any] = {
    **EXAMPLE_SCOPE,
    "reference_source": "agreement",
    "capacity": None,
    "spares": 0,
    "spares_wanted": 0,
    "ranks": [{**EXAMPLE_RANK_HEALTH, "worker_id": 1, "dp_rank": 0}],
}
_WORKER = {"state": "healthy", "ranks": {"0": EXAMPLE_RANK_HEALTH}}
_WORKER_ERRORS = (BadRequest, UnknownField, NotFound, Conflict, HealthChecksOff)

HEALTH = EndpointGroup("health", "Health of engines. All endpoints require `--health-checks on`.")


def _health_service(service: ServiceContext) -> "HealthService":
    """Return the health service.  Raises HealthChecksOff."""
    fitness = service.health
    if fitness is None:
        raise HealthChecksOff
    return fitness


@HEALTH.declare_route(
    RouteSpec(
        "GET",
        "/health/fleet",
        "fleet_health",
        "Show the health of every rank",
        {
            200: ResponseSpec(
                "Partitions by model and tenant.", FleetHealth, {"partitions": [_PARTITION]}
            )
        },
        may_call=tenant_scoped(CALLER, OPERATOR),
        query=request_parameters.SCOPE_PARAMETERS,
        refusals=(BadRequest, HealthChecksOff),
    )
)
async def show_fleet_health(
    service: ServiceContext, request: Request, query: Mapping[str, str]
) -> Response:
    rows = visible_rows(
        request, _health_service(service).fleet_health(*scope_filter(query), core_time())
    )
    return json_response(FleetHealth(partitions=await collect_cooperatively(rows)))


@HEALTH.declare_route(
    RouteSpec(
        "POST",
        "/workers/{worker_id}/outcome",
        "report_outcome",
        "Report the outcome of a request",
        {204: ResponseSpec("Recorded.", None, media_type="")},
        may_call=tenant_scoped(CALLER, OPERATOR),
        detail="The first `failure` in 30 s triggers an immediate check of the rank; the third "
        "without an `ok` between counts as a failed check. `failure` and `fatal` count only with "
        "the reservation of the request, once each, or from a network of `--health-reporters`; "
        "otherwise they trigger a check at most. A 4xx never counts.",
        in_path=request_parameters.WORKER_ID,
        body=BodySpec(
            OutcomeRequest,
            {
                "failure": {"outcome": "failure", "reservation_id": "request-123"},
                "status": {"dp_rank": 0, "status": 502, "reservation_id": "request-123"},
                "fatal": {"outcome": "fatal"},
            },
        ),
        refusals=(*BODY_ERRORS, NotFound, Conflict, HealthChecksOff),
    )
)
async def report_outcome(
    service: ServiceContext, request: Request, worker_id: int, body: OutcomeRequest
) -> Response:
    fitness = _health_service(service)
    fitness.process_report(worker_id, body, is_trusted_reporter(service, request), core_time())
    return Response(status_code=204)


def is_trusted_reporter(service: ServiceContext, request: Request) -> bool:
    """Return whether the client address is in a network whose reports need no evidence."""
    if request.client is None:
        return False
    try:
        address = ipaddress.ip_address(request.client.host)
    except ValueError:
        return False
    # A dual-stack socket reports IPv4 clients as IPv4-mapped IPv6 addresses.
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in service.reporter_networks)


@HEALTH.declare_route(
    RouteSpec(
        "POST",
        "/workers/{worker_id}/check",
        "check_worker",
        "Check the ranks of a worker now",
        {202: ResponseSpec("Current health, before the check.", WorkerHealth, _WORKER)},
        may_call=tenant_scoped(OPERATOR),
        detail="Ranks with an open circuit breaker are checked once the breaker is half open.",
        in_path=request_parameters.WORKER_ID,
        refusals=_WORKER_ERRORS,
        is_strict=True,
    )
)
async def check_worker(service: ServiceContext, request: Request, worker_id: int) -> Response:
    return await _health_response(
        service, _health_service(service).check_worker(worker_id, core_time())
    )


async def _health_response(service: ServiceContext, worker: RegisteredWorker) -> Response:
    """Return the health of a worker as a 202 response.  Raises NotFound."""
    shown = await run_cooperatively(_health_service(service).worker_health(worker, core_time()))
    if shown is None:
        raise NotFound(f"worker {worker.worker_id} was removed during the request")
    return json_response(shown, 202)


@HEALTH.declare_route(
    RouteSpec(
        "POST",
        "/canary/learn",
        "learn_canaries",
        "Discard the learned answers of a model",
        {
            200: ResponseSpec(
                "The reference answers will be learned again.", Status, {"status": "ok"}
            )
        },
        may_call=service_wide(OPERATOR),
        detail="Use this after changing a model's weights on all ranks.",
        body=BodySpec(LearnRequest, {"one model": {"model_name": "llama-3-8b"}}),
        refusals=(*BODY_ERRORS, NotFound, HealthChecksOff),
        is_strict=True,
    )
)
async def learn_references(
    service: ServiceContext, request: Request, body: LearnRequest
) -> Response:
    _health_service(service).forget_references(body.model_name)
    fields = trace_fields(request) | {"model_name": body.model_name}
    log.info("reference answers discarded", extra={"fields": fields})
    return json_response(Status())
