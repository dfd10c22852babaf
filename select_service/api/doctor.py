"""GET /doctor: what is wrong with the service and its engines, and what to do about it."""

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from select_service.access.roles import OPERATOR, whole_service
from select_service.api.limits import holder_of
from select_service.api.parameters import query_flag, query_number
from select_service.api.service import Service
from select_service.bodies.common import U64, U64_MAX
from select_service.bodies.doctor import DoctorReport
from select_service.core.workers.catalog import Worker
from select_service.errors import BadRequest, CapacityExceeded, NotFound, ShuttingDown
from select_service.http.codec import json_response
from select_service.http.endpoint import Answer, Noun, QueryParameter, Route

WORKERS_MAX = 64
"""Of one examination."""
WORKERS_USUAL = 32

_FINDING = {
    "code": "replay_unreachable",
    "severity": "warning",
    "subject": "worker 7 dp_rank 0",
    "worker_id": 7,
    "dp_rank": 0,
    "text": "tcp://vllm-7:6557: Connection refused",
    "fix": "Set replay_endpoint in the engine's --kv-events-config, or register where it replays "
    "(`replay_endpoint`).",
}
_MACHINE: dict[str, Any] = {
    "version": "0.3.0",
    "python": "3.12.9",
    "libraries": {"libzmq": "4.3.5", "numba": "0.65.0"},
    "processor": "this one",
    "descriptors": 214,
    "descriptors_max": 1048576,
    "memory_bytes": 412090368,
    "memory_bytes_max": 8589934592,
    "loop_late_ms": 0.412,
    "loop_late_ms_max": 1.904,
    "cpu_stolen": 0.0,
    "cpu_throttled": None,
}
_REPORT = {
    "findings": [_FINDING],
    "examined": [1, 7],
    "next": None,
    "seconds": 1.204,
    "machine": _MACHINE,
}

DOCTOR = Noun("doctor", "What is wrong, and what to do about it.")


@DOCTOR.declare(
    Route(
        "GET",
        "/doctor",
        "doctor",
        "Examine the service and its engines",
        {200: Answer("What was found.", DoctorReport, _REPORT)},
        may_call=whole_service(OPERATOR),
        detail="Asks engines over HTTP and for replays, connects where nothing is connected, and "
        "looks at the process and its host: a second or two, 30 s at most. One examination at a "
        "time.",
        query=(
            QueryParameter("worker_id", U64, "Only this worker."),
            QueryParameter("after", U64, "Only workers with higher ids, and not the service."),
            QueryParameter(
                "limit",
                Annotated[int, Meta(ge=1, le=WORKERS_MAX)],
                "At most so many workers, by their ids; `next` says where others begin.",
                WORKERS_USUAL,
            ),
            QueryParameter(
                "probe", bool, "Send a tiny prompt through each engine, and look for it.", False
            ),
        ),
        refusals=(BadRequest, NotFound, CapacityExceeded, ShuttingDown),
    )
)
async def doctor(service: Service, request: Request, query: Mapping[str, str]) -> Response:
    if service.doctor is None:
        raise ShuttingDown("nobody examines before the service runs, and after it")
    after = query_number(query, "after", 0, U64_MAX)
    workers, following = _workers(service, query, after)
    probes = query_flag(query, "probe", False)
    limit, holder = service.limits.examinations, holder_of(request)
    limit.take(holder)
    try:
        report = await service.doctor(workers, after is None, probes)
    finally:
        limit.give_back(holder)
    report.next = following
    return json_response(report)


def _workers(
    service: Service, query: Mapping[str, str], after: int | None
) -> tuple[list[Worker], int | None]:
    """Raises BadRequest, NotFound."""
    only = query_number(query, "worker_id", 0, U64_MAX)
    limit = query_number(query, "limit", 1, WORKERS_MAX) or WORKERS_USUAL
    catalog = service.selector.fleet.catalog
    if only is not None:
        if not catalog.is_registered(only):
            raise NotFound(f"worker {only} not found")
        return [catalog.get(only)], None
    ids = sorted(
        worker.worker_id
        for worker in catalog
        if catalog.is_registered(worker.worker_id) and (after is None or worker.worker_id > after)
    )
    chosen = ids[:limit]
    return [catalog.get(each) for each in chosen], chosen[-1] if len(ids) > limit else None
