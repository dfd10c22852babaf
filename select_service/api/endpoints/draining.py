"""Endpoints that drain workers: no new requests, while reservations run to their end."""

import logging

from starlette.requests import Request
from starlette.responses import Response

from select_service.api import request_parameters
from select_service.api.endpoints.health import EXAMPLE_RANK_HEALTH
from select_service.api.service_context import ServiceContext, core_time, trace_fields
from select_service.auth.roles import OPERATOR, tenant_scoped
from select_service.base.cooperative import run_cooperatively
from select_service.base.errors import Conflict, NotFound
from select_service.core.workers.worker_catalog import RegisteredWorker
from select_service.http.body_codec import json_response
from select_service.http.endpoint import (
    BODY_ERRORS,
    BodySpec,
    EndpointGroup,
    ResponseSpec,
    RouteSpec,
)
from select_service.schemas.health import DrainCaller, DrainRequest, UndrainRequest, WorkerDraining

log = logging.getLogger("select_service.health")

_EXAMPLE_DRAINING_RANK = {
    **EXAMPLE_RANK_HEALTH,
    "state": "draining",
    "weight": 0.0,
    "cause": "operator",
    "next_check_s": None,
}
_VIEW = {"state": "draining", "asked_by": ["operator"], "reservations": 3}
_DRAINING = {"state": "draining", "drain": _VIEW, "ranks": {"0": _EXAMPLE_DRAINING_RANK}}
_SERVES = {"state": "healthy", "ranks": {"0": EXAMPLE_RANK_HEALTH}}
_DRAIN_BODIES = {
    "move": {},
    "stay": {"migrate": False},
    "planner": {"migrate": False, "by": "planner"},
}
_UNDRAIN_BODIES = {"operator": {}, "planner": {"by": "planner"}}
_DRAIN_MESSAGES: dict[DrainCaller, str] = {
    "operator": "worker drained by operator",
    "planner": "worker drained by planner",
}
_UNDRAIN_MESSAGES: dict[DrainCaller, str] = {
    "operator": "worker undrained by operator",
    "planner": "worker undrained by planner",
}

DRAINING = EndpointGroup("draining", "Take workers out of service. Works without health checks.")


@DRAINING.declare_route(
    RouteSpec(
        "POST",
        "/workers/{worker_id}/drain",
        "drain_worker",
        "Drain a worker: send no new requests",
        {202: ResponseSpec("Current state.", WorkerDraining, _DRAINING)},
        may_call=tenant_scoped(OPERATOR),
        detail="Reservations run to their end; `drain` in the worker's record counts them. With "
        "`--health-checks on` reservations are migrated unless `migrate` is false, checks pause "
        "until `undrain`, and the rest is released after `--drain-timeout-secs`. Drains by "
        "operators and by the planner (`by`) are independent. Idempotent.",
        in_path=request_parameters.WORKER_ID,
        body=BodySpec(DrainRequest, _DRAIN_BODIES, optional=True),
        refusals=(*BODY_ERRORS, NotFound, Conflict),
        is_strict=True,
    )
)
async def drain_worker(
    service: ServiceContext, request: Request, worker_id: int, body: DrainRequest
) -> Response:
    worker = service.draining.drain_worker(worker_id, body.by, body.migrate, core_time())
    fields = trace_fields(request) | {"worker_id": worker_id, "migrate": body.migrate}
    log.info(_DRAIN_MESSAGES[body.by], extra={"fields": fields})
    return await _drain_response(service, worker)


@DRAINING.declare_route(
    RouteSpec(
        "POST",
        "/workers/{worker_id}/undrain",
        "undrain_worker",
        "End a drain of a worker",
        {202: ResponseSpec("Current state.", WorkerDraining, _SERVES)},
        may_call=tenant_scoped(OPERATOR),
        detail="The worker serves again unless another caller requests a drain: `operator`, "
        "`planner`, or a source that no longer lists the worker. With `--health-checks on` traffic "
        "grows gradually (slow start). No effect if `by` has not requested a drain.",
        in_path=request_parameters.WORKER_ID,
        body=BodySpec(UndrainRequest, _UNDRAIN_BODIES, optional=True),
        refusals=(*BODY_ERRORS, NotFound, Conflict),
        is_strict=True,
    )
)
async def undrain_worker(
    service: ServiceContext, request: Request, worker_id: int, body: UndrainRequest
) -> Response:
    worker = service.draining.undrain_worker(worker_id, body.by, core_time())
    fields = trace_fields(request) | {"worker_id": worker_id}
    log.info(_UNDRAIN_MESSAGES[body.by], extra={"fields": fields})
    return await _drain_response(service, worker)


async def _drain_response(service: ServiceContext, worker: RegisteredWorker) -> Response:
    """Return the response with the drain and, if checked, the health of the worker."""
    fitness, draining = service.health, service.draining
    answer = WorkerDraining(state="schedulable")
    if fitness is not None:
        health = await run_cooperatively(fitness.worker_health(worker, core_time()))
        if health is None:
            raise NotFound(f"worker {worker.worker_id} was removed during the request")
        answer = WorkerDraining(state=health.state, ranks=health.ranks)
    view = draining.drain_view(worker.worker_id)
    if view is not None:
        answer.drain = view
        answer.state = view.state if fitness is None else answer.state
    return json_response(answer, 202)
