"""Endpoint GET /doctor: problems of the service and its engines, with remedies."""

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from select_service.api.process_limits import request_holder
from select_service.api.request_parameters import parse_flag, parse_number
from select_service.api.service_context import ServiceContext
from select_service.auth.roles import OPERATOR, service_wide
from select_service.base.errors import BadRequest, CapacityExceeded, NotFound, ShuttingDown
from select_service.core.workers.worker_catalog import RegisteredWorker
from select_service.http.body_codec import json_response
from select_service.http.endpoint import EndpointGroup, QueryParameter, ResponseSpec, RouteSpec
from select_service.schemas.common import U64, U64_MAX
from select_service.schemas.doctor import DoctorReport

WORKERS_MAX = 64
"""Most workers of one examination."""
WORKERS_DEFAULT = 32

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

DOCTOR = EndpointGroup("doctor", "Find problems of the service and its engines, with remedies.")


@DOCTOR.declare_route(
    RouteSpec(
        "GET",
        "/doctor",
        "doctor",
        "Examine the service and its engines",
        {200: ResponseSpec("Findings.", DoctorReport, _REPORT)},
        may_call=service_wide(OPERATOR),
        detail="Sends HTTP and replay requests to engines, connects to unconnected endpoints, and "
        "inspects the process and its host. Takes a second or two, 30 s at most. One examination "
        "at a time.",
        query=(
            QueryParameter("worker_id", U64, "Only this worker."),
            QueryParameter(
                "after", U64, "Only workers with higher ids, without the service itself."
            ),
            QueryParameter(
                "limit",
                Annotated[int, Meta(ge=1, le=WORKERS_MAX)],
                "Maximum number of workers, in the order of ids; `next` leads to the next page.",
                WORKERS_DEFAULT,
            ),
            QueryParameter(
                "probe",
                bool,
                "Send a tiny prompt to each engine and wait for its KV events.",
                False,
            ),
        ),
        refusals=(BadRequest, NotFound, CapacityExceeded, ShuttingDown),
    )
)
async def run_doctor(
    service: ServiceContext, request: Request, query: Mapping[str, str]
) -> Response:
    after = parse_number(query, "after", 0, U64_MAX)
    workers, following = _workers_to_examine(service, query, after)
    probes = parse_flag(query, "probe", False)
    limit, holder = service.limits.examinations, request_holder(request)
    # Examinations open connections to all engines: run one at a time over all callers.
    limit.take(holder)
    try:
        report = await service.examiner.examine_workers(service, workers, after is None, probes)
    finally:
        limit.give_back(holder)
    report.next = following
    return json_response(report)


def _workers_to_examine(
    service: ServiceContext, query: Mapping[str, str], after: int | None
) -> tuple[list[RegisteredWorker], int | None]:
    """Return the workers to examine and the `after` of the next page.

    Raises BadRequest, NotFound.
    """
    only = parse_number(query, "worker_id", 0, U64_MAX)
    limit = parse_number(query, "limit", 1, WORKERS_MAX) or WORKERS_DEFAULT
    catalog = service.fleet.catalog
    if only is not None:
        if not catalog.is_registered(only):
            raise NotFound(f"worker {only} not found")
        return [catalog.get_worker(only)], None
    ids = sorted(
        worker.worker_id
        for worker in catalog
        if catalog.is_registered(worker.worker_id) and (after is None or worker.worker_id > after)
    )
    chosen = ids[:limit]
    return [catalog.get_worker(each) for each in chosen], chosen[-1] if len(ids) > limit else None
