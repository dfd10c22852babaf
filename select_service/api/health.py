"""The health of engines: what it is, what callers report of it, what operators ask for."""

import ipaddress
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from select_service.access.roles import CALLER, OPERATOR, whole_service, within_tenants
from select_service.api import parameters
from select_service.api.parameters import scope_filter
from select_service.api.samples import SCOPE
from select_service.api.service import Service, now, trace_of
from select_service.api.tenancy import seen
from select_service.bodies.common import Status
from select_service.bodies.health import (
    FleetHealth,
    LearnRequest,
    OutcomeRequest,
    WorkerHealth,
)
from select_service.core.workers.catalog import Worker
from select_service.errors import BadRequest, Conflict, HealthOff, NotFound, UnknownField
from select_service.http.codec import json_response
from select_service.http.endpoint import WITH_BODY, Answer, Body, Noun, Route
from select_service.turns import in_turns, result_in_turns

if TYPE_CHECKING:
    from select_service.core.fitness.fitness import Fitness

log = logging.getLogger("select_service.health")

RANK: Mapping[str, Any] = {
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
    **SCOPE,
    "reference_source": "agreement",
    "capacity": None,
    "spares": 0,
    "spares_wanted": 0,
    "ranks": [{**RANK, "worker_id": 1, "dp_rank": 0}],
}
_WORKER = {"state": "healthy", "ranks": {"0": RANK}}
_OF_WORKER = (BadRequest, UnknownField, NotFound, Conflict, HealthOff)

HEALTH = Noun("health", "Which engines are fit to serve. All needs `--health-checks on`.")


def _fitness(service: Service) -> "Fitness":
    """Raises HealthOff."""
    fitness = service.selector.fitness
    if fitness is None:
        raise HealthOff
    return fitness


@HEALTH.declare(
    Route(
        "GET",
        "/health/fleet",
        "fleet_health",
        "How fit every rank is",
        {200: Answer("Partitions by model and tenant.", FleetHealth, {"partitions": [_PARTITION]})},
        may_call=within_tenants(CALLER, OPERATOR),
        query=parameters.SCOPE,
        refusals=(BadRequest, HealthOff),
    )
)
async def fleet(service: Service, request: Request, query: Mapping[str, str]) -> Response:
    rows = seen(request, _fitness(service).fleet_health(*scope_filter(query), now()))
    return json_response(FleetHealth(partitions=await in_turns(rows)))


@HEALTH.declare(
    Route(
        "POST",
        "/workers/{worker_id}/outcome",
        "report_outcome",
        "Report what became of a request",
        {204: Answer("Noted.", None, media_type="")},
        may_call=within_tenants(CALLER, OPERATOR),
        detail="The first `failure` in 30 s has the rank checked at once, the third without an "
        "`ok` between is a failing check. `failure` and `fatal` count only with the reservation of "
        "the request, once for each, or from a network of `--health-reporters`; from others they "
        "cause a check at most. A 4xx never counts.",
        in_path=parameters.WORKER_ID,
        body=Body(
            OutcomeRequest,
            {
                "failure": {"outcome": "failure", "reservation_id": "request-123"},
                "status": {"dp_rank": 0, "status": 502, "reservation_id": "request-123"},
                "fatal": {"outcome": "fatal"},
            },
        ),
        refusals=(*WITH_BODY, NotFound, Conflict, HealthOff),
    )
)
async def outcome(
    service: Service, request: Request, worker_id: int, body: OutcomeRequest
) -> Response:
    fitness = _fitness(service)
    fitness.reported(worker_id, body, is_reporter(service, request), now())
    return Response(status_code=204)


def is_reporter(service: Service, request: Request) -> bool:
    """Does the caller call from a network whose reports need no evidence?"""
    if request.client is None:
        return False
    try:
        address = ipaddress.ip_address(request.client.host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in service.reporters)


@HEALTH.declare(
    Route(
        "POST",
        "/workers/{worker_id}/check",
        "check_worker",
        "Check the ranks of a worker now",
        {202: Answer("Its health now, before the check.", WorkerHealth, _WORKER)},
        may_call=within_tenants(OPERATOR),
        detail="Ranks that are out have no check before their breaker lets one through.",
        in_path=parameters.WORKER_ID,
        refusals=_OF_WORKER,
        is_strict=True,
    )
)
async def check(service: Service, request: Request, worker_id: int) -> Response:
    return await _shown(service, _fitness(service).check(worker_id, now()))


async def _shown(service: Service, worker: Worker) -> Response:
    shown = await result_in_turns(_fitness(service).worker_health(worker, now()))
    if shown is None:
        raise NotFound(f"worker {worker.worker_id} was removed meanwhile")
    return json_response(shown, 202)


@HEALTH.declare(
    Route(
        "POST",
        "/canary/learn",
        "learn_canaries",
        "Forget what the right answers of a model are",
        {200: Answer("They are learnt anew.", Status, {"status": "ok"})},
        may_call=whole_service(OPERATOR),
        detail="For a model whose weights were changed on all ranks.",
        body=Body(LearnRequest, {"one model": {"model_name": "llama-3-8b"}}),
        refusals=(*WITH_BODY, NotFound, HealthOff),
        is_strict=True,
    )
)
async def learn(service: Service, request: Request, body: LearnRequest) -> Response:
    _fitness(service).learn(body.model_name)
    fields = trace_of(request) | {"model_name": body.model_name}
    log.info("the right answers of a model are learnt anew", extra={"fields": fields})
    return json_response(Status())
