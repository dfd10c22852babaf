"""Taking workers out: no new requests, and what they have comes to its end."""

import logging

from starlette.requests import Request
from starlette.responses import Response

from select_service.access.roles import OPERATOR, within_tenants
from select_service.api import parameters
from select_service.api.health import RANK
from select_service.api.service import Service, now, trace_of
from select_service.bodies.health import DrainCaller, DrainRequest, UndrainRequest, WorkerDraining
from select_service.core.workers.catalog import Worker
from select_service.errors import Conflict, NotFound
from select_service.http.codec import json_response
from select_service.http.endpoint import WITH_BODY, Answer, Body, Noun, Route
from select_service.turns import result_in_turns

log = logging.getLogger("select_service.health")

_OUT = {**RANK, "state": "draining", "weight": 0.0, "cause": "operator", "next_check_s": None}
_VIEW = {"state": "draining", "asked_by": ["operator"], "reservations": 3}
_DRAINING = {"state": "draining", "drain": _VIEW, "ranks": {"0": _OUT}}
_SERVES = {"state": "healthy", "ranks": {"0": RANK}}
_DRAIN_BODIES = {
    "move": {},
    "stay": {"migrate": False},
    "planner": {"migrate": False, "by": "planner"},
}
_UNDRAIN_BODIES = {"operator": {}, "planner": {"by": "planner"}}
_DRAINS: dict[DrainCaller, str] = {
    "operator": "an operator lets a worker drain",
    "planner": "the planner lets a worker drain",
}
_SERVES_AGAIN: dict[DrainCaller, str] = {
    "operator": "an operator lets a worker serve again",
    "planner": "the planner lets a worker serve again",
}

DRAINING = Noun("draining", "Taking workers out of service. Needs no checks of health.")


@DRAINING.declare(
    Route(
        "POST",
        "/workers/{worker_id}/drain",
        "drain_worker",
        "Send no new requests to a worker",
        {202: Answer("How it stands now.", WorkerDraining, _DRAINING)},
        may_call=within_tenants(OPERATOR),
        detail="Its reservations come to their end; `drain` in its record counts them. With "
        "`--health-checks on` they are moved, unless `migrate` is false; it is not checked until "
        "`undrain`, and what is left after `--drain-timeout-secs` is released. Drains of operators "
        "and of the planner (`by`) are kept apart. May be repeated.",
        in_path=parameters.WORKER_ID,
        body=Body(DrainRequest, _DRAIN_BODIES, optional=True),
        refusals=(*WITH_BODY, NotFound, Conflict),
        is_strict=True,
    )
)
async def drain(service: Service, request: Request, worker_id: int, body: DrainRequest) -> Response:
    worker = service.selector.draining.drain(worker_id, body.by, body.migrate, now())
    fields = trace_of(request) | {"worker_id": worker_id, "migrate": body.migrate}
    log.info(_DRAINS[body.by], extra={"fields": fields})
    return await _shown(service, worker)


@DRAINING.declare(
    Route(
        "POST",
        "/workers/{worker_id}/undrain",
        "undrain_worker",
        "End a drain of a worker",
        {202: Answer("How it stands now.", WorkerDraining, _SERVES)},
        may_call=within_tenants(OPERATOR),
        detail="It serves again unless somebody else wants it to drain: `operator`, `planner`, or "
        "a source that has dropped it; with `--health-checks on` it begins slowly. Where `by` has "
        "not asked for a drain nothing changes.",
        in_path=parameters.WORKER_ID,
        body=Body(UndrainRequest, _UNDRAIN_BODIES, optional=True),
        refusals=(*WITH_BODY, NotFound, Conflict),
        is_strict=True,
    )
)
async def undrain(
    service: Service, request: Request, worker_id: int, body: UndrainRequest
) -> Response:
    worker = service.selector.draining.undrain(worker_id, body.by, now())
    fields = trace_of(request) | {"worker_id": worker_id}
    log.info(_SERVES_AGAIN[body.by], extra={"fields": fields})
    return await _shown(service, worker)


async def _shown(service: Service, worker: Worker) -> Response:
    fitness, draining = service.selector.fitness, service.selector.draining
    answer = WorkerDraining(state="schedulable")
    if fitness is not None:
        health = await result_in_turns(fitness.worker_health(worker, now()))
        if health is None:
            raise NotFound(f"worker {worker.worker_id} was removed meanwhile")
        answer = WorkerDraining(state=health.state, ranks=health.ranks)
    view = draining.view(worker.worker_id)
    if view is not None:
        answer.drain = view
        answer.state = view.state if fitness is None else answer.state
    return json_response(answer, 202)
