"""The worker catalog: registration, change, removal, listing."""

import asyncio
import logging
from collections.abc import Mapping
from time import monotonic
from typing import Any

from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response

from select_service.access.roles import CALLER, OPERATOR, within_tenants
from select_service.api import parameters
from select_service.api.compact import compact_ranks
from select_service.api.pages import PAGES, is_compact, linked, page_of
from select_service.api.parameters import scope_filter
from select_service.api.samples import SCOPE
from select_service.api.service import Service, grant_of, trace_of
from select_service.api.tenancy import check_registration, check_worker, without_hints
from select_service.api.using import refuse_worker, register_use
from select_service.api.worker_records import records
from select_service.bodies.compact import CompactWorkers
from select_service.bodies.workers import (
    WorkerPatch,
    WorkerRecord,
    WorkerRegistration,
)
from select_service.core.fleet.fleet import Fleet
from select_service.core.workers.catalog import RANKS_PER_STEP, Worker
from select_service.errors import BadRequest, Conflict, DestinationRefused, NotFound
from select_service.http.codec import json_response
from select_service.http.endpoint import WITH_BODY, Answer, Body, Noun, Route
from select_service.turns import encoded_in_turns, in_turns

log = logging.getLogger("select_service.workers")

_TWO_RANKS = {
    "worker_id": 1,
    **SCOPE,
    "endpoint": "http://worker-1:8000",
    "block_size": 16,
    "data_parallel_size": 2,
    "kv_events_endpoints": {"0": "tcp://worker-1:5557", "1": "tcp://worker-1:5558"},
    "replay_endpoint": "tcp://worker-1:6557",
}
_ONE_RANK = {
    "worker_id": 2,
    **SCOPE,
    "endpoint": "http://worker-2:8000",
    "block_size": 16,
    "kv_events_endpoint": "tcp://worker-2:5557",
    "replay_endpoint": "tcp://worker-2:6557",
}
RECORD: Mapping[str, Any] = {
    "worker_id": 1,
    **SCOPE,
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
_LISTED = {**RECORD, "kv_events": {"0": _KV_EVENTS}}

WORKERS = Noun("workers", "The catalog of engines that may be chosen.")


@WORKERS.declare(
    Route(
        "POST",
        "/workers",
        "register_worker",
        "Register a worker",
        {201: Answer("The worker as it stands now.", WorkerRecord, RECORD)},
        may_call=within_tenants(OPERATOR),
        detail="Replaces the whole record of `worker_id`. What the worker still lacks is not an "
        "error: its `lifecycle` is `incomplete` and `not_schedulable_reasons` says why. 409 for "
        "one that a source of workers has added, see `/discovery`.",
        body=Body(WorkerRegistration, {"two ranks": _TWO_RANKS, "one rank": _ONE_RANK}),
        refusals=(*WITH_BODY, DestinationRefused, Conflict),
    )
)
async def register(service: Service, request: Request, body: WorkerRegistration) -> Response:
    fleet = service.selector.fleet
    worker = fleet.catalog.registered(body)
    await _made_room(fleet, worker)
    check_registration(service, grant_of(request), body.worker_id)  # perhaps it came meanwhile
    _refuse_a_sources(service, body.worker_id)
    refuse_worker(service, request, worker)
    if service.discovery is not None:
        service.discovery.taken_by_hand(body.worker_id)
    record = without_hints(grant_of(request), service.selector.register(body))
    register_use(service, request, body.worker_id)
    await _followed(service, "worker registered", record, trace_of(request))
    return json_response(record, 201)


@WORKERS.declare(
    Route(
        "GET",
        "/workers",
        "list_workers",
        "List the workers",
        {
            200: Answer(
                "Workers by model, tenant and id, with the state of their KV event listeners. Or "
                "of all their ranks names and numbers, as columns.",
                list[WorkerRecord] | CompactWorkers,
                [_LISTED],
            )
        },
        may_call=within_tenants(CALLER, OPERATOR),
        query=parameters.SCOPE + PAGES,
        refusals=(BadRequest,),
    )
)
async def listing(service: Service, request: Request, query: Mapping[str, str]) -> Response:
    grant = grant_of(request)
    page = page_of(grant, service.selector.workers(*scope_filter(query)), query)
    answer: list[Raw] | CompactWorkers
    if is_compact(query):
        found = await in_turns(compact_ranks(service, page.workers))
        answer = CompactWorkers(partitions=found, next=page.next)
    else:
        rows = records(service, page.workers)
        shown = (None if row is None else without_hints(grant, row) for row in rows)
        answer = await encoded_in_turns(shown)
    return linked(json_response(answer), "/workers", query, page)


@WORKERS.declare(
    Route(
        "GET",
        "/workers/{worker_id}",
        "get_worker",
        "Show one worker",
        {200: Answer("As in the list.", WorkerRecord, _LISTED)},
        may_call=within_tenants(CALLER, OPERATOR),
        in_path=parameters.WORKER_ID,
        refusals=(BadRequest, NotFound),
    )
)
async def show(service: Service, request: Request, worker_id: int) -> Response:
    shown: list[WorkerRecord] = []
    while not shown:  # a worker that changes meanwhile is looked at anew
        check_worker(service, grant_of(request), worker_id)
        worker = service.selector.worker(worker_id)
        shown = await in_turns(records(service, [worker]))
    return json_response(without_hints(grant_of(request), shown[0]))


@WORKERS.declare(
    Route(
        "PATCH",
        "/workers/{worker_id}",
        "patch_worker",
        "Change a worker",
        {
            200: Answer(
                "The worker as it stands now.",
                WorkerRecord,
                {**RECORD, "taints": ["h100", "zone-a"]},
            )
        },
        may_call=within_tenants(OPERATOR),
        detail="A field that is absent or null keeps its value. Ranks that remain keep their "
        "reservations, and their index unless their event endpoint changes. A deleted worker whose "
        "record is still kept is registered again, as in the reference; `revived` says so.",
        in_path=parameters.WORKER_ID,
        body=Body(WorkerPatch, {"taints": {"taints": ["h100", "zone-a"]}}),
        refusals=(*WITH_BODY, DestinationRefused, NotFound),
    )
)
async def patch(service: Service, request: Request, worker_id: int, body: WorkerPatch) -> Response:
    fleet = service.selector.fleet
    worker = fleet.catalog.patched(worker_id, body)
    await _made_room(fleet, worker)
    check_worker(service, grant_of(request), worker_id)  # perhaps another came meanwhile
    is_new = not fleet.catalog.is_registered(worker_id)
    refuse_worker(service, request, worker)
    record = without_hints(grant_of(request), service.selector.patch(worker_id, body))
    if is_new:
        register_use(service, request, worker_id)
    await _followed(service, "worker changed", record, trace_of(request))
    return json_response(record)


@WORKERS.declare(
    Route(
        "DELETE",
        "/workers/{worker_id}",
        "delete_worker",
        "Remove a worker",
        {
            200: Answer(
                "The worker as it stands now.",
                WorkerRecord,
                {**RECORD, "lifecycle": "unschedulable"},
            )
        },
        may_call=within_tenants(OPERATOR),
        detail="Its reservations end and its blocks are forgotten. May be repeated.",
        in_path=parameters.WORKER_ID,
        refusals=(BadRequest, NotFound),
    )
)
async def delete(service: Service, request: Request, worker_id: int) -> Response:
    record = service.selector.delete(worker_id, monotonic())
    await _followed(service, "worker deleted", record, trace_of(request))
    return json_response(record)


def _refuse_a_sources(service: Service, worker_id: int) -> None:
    """Raises Conflict for a worker that a source has added."""
    source = None if service.discovery is None else service.discovery.owner(worker_id)
    if source is not None:
        raise Conflict(
            f"worker {worker_id} belongs to the source `{source}` (see GET /discovery): "
            "PATCH changes it, and DELETE takes it away"
        )


async def _made_room(fleet: Fleet, worker: Worker) -> None:
    """What comes before a worker is put; that of many ranks is a turn of its own."""
    await in_turns(fleet.making_room(worker))
    if len(worker.dp_ranks()) > RANKS_PER_STEP:
        await asyncio.sleep(0)


async def _followed(
    service: Service, what: str, record: WorkerRecord, trace: dict[str, str]
) -> None:
    """Tell of a change, and wait until it is in force.

    A client that goes away meanwhile ends only its own waiting.
    """
    reasons = record.not_schedulable_reasons or []
    fields = trace | {
        "worker_id": record.worker_id,
        "model_name": record.model_name,
        "tenant_id": record.tenant_id,
        "lifecycle": record.lifecycle,
    }
    log.info(what, extra={"fields": fields | ({"reasons": reasons} if reasons else {})})
    await service.follower.followed()
