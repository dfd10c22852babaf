"""Endpoint GET /planner/observation, polled by autoscalers."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from select_service.api import request_parameters
from select_service.api.example_values import EXAMPLE_RANK, EXAMPLE_SCOPE
from select_service.api.request_parameters import parse_number, scope_filter
from select_service.api.service_context import ServiceContext, core_time, request_grant
from select_service.api.tenant_isolation import check_tenant
from select_service.auth.roles import METRICS, OPERATOR, tenant_scoped
from select_service.base.cooperative import run_cooperatively
from select_service.base.errors import BadRequest, NotFound
from select_service.core.admission.outcome_counters import REFUSAL_REASONS
from select_service.core.identity import PartitionKey
from select_service.core.load.histogram_bins import TIME_BINS, TIME_EDGES_S, TOKEN_BINS, TOKEN_EDGES
from select_service.core.traffic.observation_view import build_observation
from select_service.core.traffic.time_slots import WINDOW_S_MAX
from select_service.http.body_codec import json_response
from select_service.http.endpoint import EndpointGroup, QueryParameter, ResponseSpec, RouteSpec
from select_service.schemas.common import DEFAULT_NAME
from select_service.schemas.observation import Observation

WINDOW_S_DEFAULT = 60


def _histogram(bins: int, counts: Mapping[int, int], total: float) -> dict[str, Any]:
    return {"counts": [counts.get(i, 0) for i in range(bins)], "sum": total}


_OBSERVATION: Mapping[str, Any] = {
    **EXAMPLE_SCOPE,
    "window_s": 60.2,
    "complete": True,
    "arrivals": 3,
    "arrival_variation": 1.04,
    "rejected": {**dict.fromkeys(REFUSAL_REASONS, 0), "queue_full": 1},
    "queued_now": 0,
    "queued_tokens": 0,
    "isl": _histogram(TOKEN_BINS, {32: 1, 35: 1}, 3100.0),
    "uncached_isl": _histogram(TOKEN_BINS, {25: 1, 32: 1}, 1276.0),
    "osl": _histogram(TOKEN_BINS, {25: 1}, 240.0),
    "kv_hit_rate": 0.588387,
    "prefill_s": [[1024.0, 0.131, 0.0]],
    "decode_s": [[2.0, 3136.0, 0.0162]],
    "ttft_s": _histogram(TIME_BINS, {45: 1}, 0.131),
    "itl_s": _histogram(TIME_BINS, {25: 14}, 0.2268),
    "bins": {"tokens": TOKEN_EDGES.tolist(), "seconds": TIME_EDGES_S.tolist()},
    "ranks": [
        {
            **EXAMPLE_RANK,
            "role": "aggregated",
            "active_prefill_tokens": 252,
            "active_blocks": 196,
            "live_requests": 2,
            "block_size": 16,
            "total_kv_blocks": 8192,
            "max_num_batched_tokens": 8192,
            "engine": {"requests_waiting": 0, "requests_running": 2, "kv_usage": 0.024},
        }
    ],
}

PLANNER = EndpointGroup("planner", "Traffic measurements for an autoscaler.")


@PLANNER.declare_route(
    RouteSpec(
        "GET",
        "/planner/observation",
        "observe",
        "Show the traffic of a model and tenant, and the load of its ranks",
        {200: ResponseSpec("Observations of the window.", Observation, _OBSERVATION)},
        may_call=tenant_scoped(OPERATOR, METRICS),
        detail="Traffic is counted in whole slots of a second; `window_s` in the response is the "
        "window actually covered. Requests are those of this selector (add up several selectors); "
        "the load of ranks includes bookings of peers. Model and tenant default to `default`.",
        query=(
            QueryParameter(
                "window_s", int, f"Seconds until now, 1 to {WINDOW_S_MAX}.", WINDOW_S_DEFAULT
            ),
            *request_parameters.SCOPE_PARAMETERS,
        ),
        refusals=(BadRequest, NotFound),
    )
)
async def show_observation(
    service: ServiceContext, request: Request, query: Mapping[str, str]
) -> Response:
    window_s = parse_number(query, "window_s", 1, WINDOW_S_MAX) or WINDOW_S_DEFAULT
    model_name, tenant_id = scope_filter(query)
    key = PartitionKey(model_name or DEFAULT_NAME, tenant_id or DEFAULT_NAME)
    check_tenant(request_grant(request), key.tenant_id)
    health = service.health
    condition_of = None if health is None else health.condition_of
    if condition_of is None and len(service.draining):
        condition_of = service.draining.condition_of
    engines = service.gate.busy_check.engines
    steps = build_observation(
        service.followers.traffic, key, window_s, engines, condition_of, core_time()
    )
    body = await run_cooperatively(steps)
    if health is not None:
        body.health = health.summarise_partition(key)
    return json_response(body)
