"""Endpoints of the worker catalog: registration, change, removal, listing."""

import asyncio
import logging
from collections.abc import Mapping
from time import monotonic
from typing import Any, Literal

from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response

from select_service.api import request_parameters
from select_service.api.compact_views import compact_ranks
from select_service.api.example_values import EXAMPLE_ANSWER_SCOPE, EXAMPLE_SCOPE
from select_service.api.paging import PAGES, add_next_link, make_page, wants_compact
from select_service.api.quota import check_worker_quota, note_registration
from select_service.api.request_parameters import parse_choice, scope_filter
from select_service.api.service_context import ServiceContext, request_grant, trace_fields
from select_service.api.tenant_isolation import check_registration, check_worker, hide_hints
from select_service.api.worker_views import build_records
from select_service.auth.roles import CALLER, OPERATOR, tenant_scoped
from select_service.base.cooperative import collect_cooperatively, encode_cooperatively
from select_service.base.errors import BadRequest, Conflict, DestinationRefused, NotFound
from select_service.core.registry.fleet.fleet import WorkerFleet
from select_service.core.workers.worker_catalog import RANKS_PER_STEP, RegisteredWorker
from select_service.http.body_codec import json_response
from select_service.http.endpoint import (
    BODY_ERRORS,
    BodySpec,
    EndpointGroup,
    QueryParameter,
    ResponseSpec,
    RouteSpec,
)
from select_service.schemas.compact import CompactWorkers
from select_service.schemas.workers import WorkerPatch, WorkerRecord, WorkerRegistration

log = logging.getLogger("select_service.workers")

RECENT_S = 60.0
"""Age up to which the record of a deleted worker is recent."""
_DELETED = QueryParameter(
    "deleted",
    Literal["all", "recent"],
    "`recent`: omit the records of workers that were deleted more than a minute ago.",
    "all",
)
_TWO_RANKS = {
    "worker_id": 1,
    **EXAMPLE_SCOPE,
    "endpoint": "http://worker-1:8000",
    "block_size": 16,
    "data_parallel_size": 2,
    "kv_events_endpoints": {"0": "tcp://worker-1:5557", "1": "tcp://worker-1:5558"},
    "replay_endpoint": "tcp://worker-1:6557",
}
_ONE_RANK = {
    "worker_id": 2,
    **EXAMPLE_SCOPE,
    "endpoint": "http://worker-2:8000",
    "block_size": 16,
    "kv_events_endpoint": "tcp://worker-2:5557",
    "replay_endpoint": "tcp://worker-2:6557",
}
EXAMPLE_RECORD: Mapping[str, Any] = {
    "worker_id": 1,
    **EXAMPLE_ANSWER_SCOPE,
    "lifecycle": "schedulable",
    "endpoint": "http://worker-1:8000",
    "kv_events_endpoint": None,
    "kv_events_endpoints": {"0": "tcp://worker-1:5557", "1": "tcp://worker-1:5558"},
    "replay_endpoint": "tcp://worker-1:6557",
    "block_size": 16,
    "data_parallel_start_rank": None,
    "data_parallel_size": 2,
    "max_num_batched_tokens": None,
    "total_kv_blocks": None,
    "stable_routing_id": None,
    "is_eagle": None,
    "taints": [],
    "topology_domains": {},
    "kv_transfer_domain": None,
    "kv_transfer_enforcement": None,
    "kv_transfer_preferred_weight": None,
}
_KV_EVENTS = {
    "state": "connected",
    "connected": True,
    "connect_error": None,
    "last_sequence": 4711,
    "batches": 4712,
    "gaps": 0,
    "replayed": 0,
    "lost": 0,
    "restarts": 0,
    "semantics": "counted",
    "decode_errors": 0,
    "last_error": None,
    "seconds_since_last_event": 0.042,
}
_EXAMPLE_LISTED = {**EXAMPLE_RECORD, "kv_events": {"0": _KV_EVENTS}}

WORKERS = EndpointGroup("workers", "Catalog of the engines available for selection.")


@WORKERS.declare_route(
    RouteSpec(
        "POST",
        "/workers",
        "register_worker",
        "Register a worker",
        {201: ResponseSpec("Current record of the worker.", WorkerRecord, EXAMPLE_RECORD)},
        may_call=tenant_scoped(OPERATOR),
        detail="Replaces the whole record of `worker_id`. Missing facts are not an error: "
        "`lifecycle` is `incomplete`, and `not_schedulable_reasons` lists them. 409 for a worker "
        "owned by a source, see `/discovery`.",
        body=BodySpec(WorkerRegistration, {"two ranks": _TWO_RANKS, "one rank": _ONE_RANK}),
        refusals=(*BODY_ERRORS, DestinationRefused, Conflict),
    )
)
async def register_worker(
    service: ServiceContext, request: Request, body: WorkerRegistration
) -> Response:
    fleet = service.fleet
    worker = fleet.catalog.preview_registration(body)
    await _make_room_for(fleet, worker)
    check_registration(
        service, request_grant(request), body.worker_id
    )  # repeat the check: another registration may have come in during the await
    _check_not_source_owned(service, body.worker_id)
    check_worker_quota(service, request, worker)
    service.features.discovery.release_worker(body.worker_id)
    record = hide_hints(request_grant(request), service.selector.register_worker(body))
    note_registration(service, request, body.worker_id)
    await _log_and_await_change(service, "worker registered", record, trace_fields(request))
    return json_response(record, 201)


@WORKERS.declare_route(
    RouteSpec(
        "GET",
        "/workers",
        "list_workers",
        "List the workers",
        {
            200: ResponseSpec(
                "Workers by model, tenant and id, with the status of their KV event listeners; "
                "with `view=compact` names and numbers of their ranks, as columns.",
                list[WorkerRecord] | CompactWorkers,
                [_EXAMPLE_LISTED],
            )
        },
        may_call=tenant_scoped(CALLER, OPERATOR),
        query=(*request_parameters.SCOPE_PARAMETERS, *PAGES, _DELETED),
        refusals=(BadRequest,),
    )
)
async def list_workers(
    service: ServiceContext, request: Request, query: Mapping[str, str]
) -> Response:
    grant = request_grant(request)
    found = service.selector.list_workers(*scope_filter(query))
    if parse_choice(query, "deleted", ("all", "recent")) == "recent":
        old = service.fleet.catalog.ids_deleted_before(monotonic() - RECENT_S)
        found = [worker for worker in found if worker.worker_id not in old]
    page = make_page(grant, found, query)
    answer: list[Raw] | CompactWorkers
    if wants_compact(query):
        columns = await collect_cooperatively(compact_ranks(service, page.workers))
        answer = CompactWorkers(partitions=columns, next=page.next)
    else:
        rows = build_records(service, page.workers)
        shown = (None if row is None else hide_hints(grant, row) for row in rows)
        answer = await encode_cooperatively(shown)
    return add_next_link(json_response(answer), "/workers", query, page)


@WORKERS.declare_route(
    RouteSpec(
        "GET",
        "/workers/{worker_id}",
        "get_worker",
        "Show one worker",
        {200: ResponseSpec("Record as in the list.", WorkerRecord, _EXAMPLE_LISTED)},
        may_call=tenant_scoped(CALLER, OPERATOR),
        in_path=request_parameters.WORKER_ID,
        refusals=(BadRequest, NotFound),
    )
)
async def show_worker(service: ServiceContext, request: Request, worker_id: int) -> Response:
    shown: list[WorkerRecord] = []
    while not shown:  # start over if the worker changed meanwhile
        check_worker(service, request_grant(request), worker_id)
        worker = service.selector.get_worker(worker_id)
        # Empty if the worker was replaced while its record was being built.
        shown = await collect_cooperatively(build_records(service, [worker]))
    return json_response(hide_hints(request_grant(request), shown[0]))


@WORKERS.declare_route(
    RouteSpec(
        "PATCH",
        "/workers/{worker_id}",
        "patch_worker",
        "Change a worker",
        {
            200: ResponseSpec(
                "Current record of the worker.",
                WorkerRecord,
                {**EXAMPLE_RECORD, "taints": ["h100", "zone-a"]},
            )
        },
        may_call=tenant_scoped(OPERATOR),
        detail="An absent or null field keeps its value. Remaining ranks keep their reservations, "
        "and their index unless their event endpoint changes. A deleted worker with a record still "
        "kept is registered again, as in Dynamo; `revived` is set then.",
        in_path=request_parameters.WORKER_ID,
        body=BodySpec(WorkerPatch, {"taints": {"taints": ["h100", "zone-a"]}}),
        refusals=(*BODY_ERRORS, DestinationRefused, NotFound),
    )
)
async def patch_worker(
    service: ServiceContext, request: Request, worker_id: int, body: WorkerPatch
) -> Response:
    fleet = service.fleet
    worker = fleet.catalog.preview_patch(worker_id, body)
    await _make_room_for(fleet, worker)
    check_worker(
        service, request_grant(request), worker_id
    )  # repeat the check: the worker may have been replaced during the await
    is_new = not fleet.catalog.is_registered(worker_id)
    check_worker_quota(service, request, worker)
    record = hide_hints(request_grant(request), service.selector.patch_worker(worker_id, body))
    if is_new:
        note_registration(service, request, worker_id)
    await _log_and_await_change(service, "worker changed", record, trace_fields(request))
    return json_response(record)


@WORKERS.declare_route(
    RouteSpec(
        "DELETE",
        "/workers/{worker_id}",
        "delete_worker",
        "Delete a worker",
        {
            200: ResponseSpec(
                "Record of the deleted worker.",
                WorkerRecord,
                {**EXAMPLE_RECORD, "lifecycle": "unschedulable"},
            )
        },
        may_call=tenant_scoped(OPERATOR),
        detail="Ends the worker's reservations and removes its blocks from the index. Idempotent.",
        in_path=request_parameters.WORKER_ID,
        refusals=(BadRequest, NotFound),
    )
)
async def delete_worker(service: ServiceContext, request: Request, worker_id: int) -> Response:
    record = service.selector.delete_worker(worker_id, monotonic())
    await _log_and_await_change(service, "worker deleted", record, trace_fields(request))
    return json_response(record)


def _check_not_source_owned(service: ServiceContext, worker_id: int) -> None:
    """Raise Conflict for a worker owned by a source."""
    source = service.features.discovery.owning_source(worker_id)
    if source is not None:
        raise Conflict(
            f"worker {worker_id} is owned by the source `{source}` (see GET /discovery): "
            "use PATCH to change or DELETE to remove the worker"
        )


async def _make_room_for(fleet: WorkerFleet, worker: RegisteredWorker) -> None:
    """Prepare memory for a worker; registering a worker with many ranks gets its own loop
    iteration.
    """
    # Arrays grow in steps before the registration, which itself must not be interrupted.
    await collect_cooperatively(fleet.prepare_room(worker))
    if len(worker.dp_ranks()) > RANKS_PER_STEP:
        await asyncio.sleep(0)


async def _log_and_await_change(
    service: ServiceContext, what: str, record: WorkerRecord, trace: dict[str, str]
) -> None:
    """Log a change and wait until it is in effect.

    A client that disconnects only stops its own wait.
    """
    reasons = record.not_schedulable_reasons or []
    fields = trace | {
        "worker_id": record.worker_id,
        "model_name": record.model_name,
        "tenant_id": record.tenant_id,
        "lifecycle": record.lifecycle,
    }
    log.info(what, extra={"fields": fields | ({"reasons": reasons} if reasons else {})})
    await service.catalog_follower.wait_until_applied()
