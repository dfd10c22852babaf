"""The worker catalog: registration, change, removal, listing."""

import asyncio
import logging
from time import monotonic

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from indexer.dumps.held_blocks import adopt
from indexer.sockets.ingest import ListenerStatus
from select_service.api.service import (
    Service,
    path_worker_id,
    query_of,
    scope_filter,
    trace_of,
)
from select_service.bodies.workers import (
    KvEventStatus,
    WorkerPatch,
    WorkerRecord,
    WorkerRegistration,
)
from select_service.http.codec import body_as, json_response

log = logging.getLogger("select_service.workers")

_REGISTRATION = msgspec.json.Decoder(WorkerRegistration)
_PATCH = msgspec.json.Decoder(WorkerPatch)


async def register(service: Service, request: Request) -> Response:
    body = await body_as(request, _REGISTRATION)
    async with service.catalog_lock:
        record = service.selector.register(body)
        await _follow(service, "worker registered", record, trace_of(request))
    return json_response(record, 201)


async def patch(service: Service, request: Request) -> Response:
    worker_id = path_worker_id(request)
    body = await body_as(request, _PATCH)
    async with service.catalog_lock:
        record = service.selector.patch(worker_id, body)
        await _follow(service, "worker changed", record, trace_of(request))
    return json_response(record)


async def delete(service: Service, request: Request) -> Response:
    worker_id = path_worker_id(request)
    async with service.catalog_lock:
        record = service.selector.delete(worker_id)
        await _follow(service, "worker deleted", record, trace_of(request))
    return json_response(record)


async def listing(service: Service, request: Request) -> Response:
    query = query_of(request, "model_name", "tenant_id", "routing_group")
    records = service.selector.workers(*scope_filter(query))
    return json_response(with_state(service, records))


def with_state(service: Service, records: list[WorkerRecord]) -> list[WorkerRecord]:
    """The records with what the listeners of their ranks have seen, and with their busy state."""
    admissions = service.selector.worker_admissions(monotonic())
    for record in records:
        record.admission = admissions.get(record.worker_id, msgspec.UNSET)
    return _with_kv_events(service, records)


def _with_kv_events(service: Service, records: list[WorkerRecord]) -> list[WorkerRecord]:
    listeners = service.ingest.status()
    by_worker: dict[int, dict[int, KvEventStatus]] = {}
    now = monotonic()
    for (worker_id, dp_rank), status in listeners.items():
        by_worker.setdefault(worker_id, {})[dp_rank] = _shown(status, now)
    for record in records:
        ranks = by_worker.get(record.worker_id)
        if ranks:
            record.kv_events = dict(sorted(ranks.items()))
    return records


def _shown(status: ListenerStatus, now: float) -> KvEventStatus:
    last = status.last_event_monotonic
    return KvEventStatus(
        state=status.state,
        last_sequence=status.last_sequence,
        batches=status.batches,
        gaps=status.gaps,
        replayed=status.replayed,
        lost=status.lost,
        restarts=status.restarts,
        decode_errors=status.decode_errors,
        last_error=status.last_error,
        seconds_since_last_event=None if last is None else round(max(0.0, now - last), 3),
    )


async def _follow(service: Service, what: str, record: WorkerRecord, trace: dict[str, str]) -> None:
    """Let the listeners match the catalog, then clear the index slots of ranks that left.

    The caller holds the catalog lock, so that changes take effect in the order they were made.
    Shielded: a client that goes away does not leave the listeners behind the catalog.
    """
    reasons = record.not_schedulable_reasons or []
    fields = trace | {
        "worker_id": record.worker_id,
        "model_name": record.model_name,
        "tenant_id": record.tenant_id,
        "lifecycle": record.lifecycle,
    }
    log.info(what, extra={"fields": fields | ({"reasons": reasons} if reasons else {})})
    fleet = service.selector.fleet
    sources, retired = fleet.kv_sources(), fleet.take_retired_writers()
    renewed, adoptions = fleet.take_renewed_writers(), fleet.take_adoptions()

    def apply() -> None:
        for writer in renewed:
            writer.finish_clear()  # until then the slot takes nothing in
        adopt(adoptions)  # first: the listeners of these ranks go on where their blocks end
        service.ingest.reconcile(sources)
        for writer in retired:
            writer.close()

    await asyncio.shield(asyncio.to_thread(apply))
