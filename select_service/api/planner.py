"""What autoscalers ask: GET /planner/observation."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from select_service.access.roles import METRICS, OPERATOR, within_tenants
from select_service.api import parameters
from select_service.api.parameters import query_number, scope_filter
from select_service.api.samples import RANK, SCOPE
from select_service.api.service import Service, grant_of, now
from select_service.api.tenancy import check_tenant
from select_service.bodies.common import DEFAULT_NAME
from select_service.bodies.observation import Observation
from select_service.core.identity import PartitionKey
from select_service.core.load.bins import TIME_BINS, TIME_EDGES_S, TOKEN_BINS, TOKEN_EDGES
from select_service.core.observing.counted import REASONS
from select_service.core.observing.observation import observation
from select_service.core.observing.slots import WINDOW_S_MAX
from select_service.errors import BadRequest, NotFound
from select_service.http.codec import json_response
from select_service.http.endpoint import Answer, Noun, QueryParameter, Route
from select_service.turns import result_in_turns

WINDOW_S_DEFAULT = 60


def _histogram(bins: int, counts: Mapping[int, int], total: float) -> dict[str, Any]:
    return {"counts": [counts.get(i, 0) for i in range(bins)], "sum": total}


_OBSERVATION: Mapping[str, Any] = {
    **SCOPE,
    "window_s": 60.2,
    "complete": True,
    "arrivals": 3,
    "arrival_variation": 1.04,
    "rejected": {**dict.fromkeys(REASONS, 0), "queue_full": 1},
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
            **RANK,
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

PLANNER = Noun("planner", "What an autoscaler is told of traffic.")


@PLANNER.declare(
    Route(
        "GET",
        "/planner/observation",
        "observe",
        "Traffic of a model and tenant, and the load of its ranks",
        {200: Answer("What was seen in the window.", Observation, _OBSERVATION)},
        may_call=within_tenants(OPERATOR, METRICS),
        detail="Counted in slots of a second that are never cut, so `window_s` of the answer says "
        "what is covered. Requests are those of this selector: of several, numbers are added; the "
        "load of ranks includes what peers have booked. Without names the model and the tenant "
        "are `default`.",
        query=(
            QueryParameter(
                "window_s", int, f"Seconds until now, 1 to {WINDOW_S_MAX}.", WINDOW_S_DEFAULT
            ),
            *parameters.SCOPE,
        ),
        refusals=(BadRequest, NotFound),
    )
)
async def observe(service: Service, request: Request, query: Mapping[str, str]) -> Response:
    window_s = query_number(query, "window_s", 1, WINDOW_S_MAX) or WINDOW_S_DEFAULT
    model_name, tenant_id = scope_filter(query)
    key = PartitionKey(model_name or DEFAULT_NAME, tenant_id or DEFAULT_NAME)
    check_tenant(grant_of(request), key.tenant_id)
    selector = service.selector
    state_of = None if selector.fitness is None else selector.fitness.state_of
    if state_of is None and len(selector.draining):
        state_of = selector.draining.state_of
    engines = selector.gate.judge.engines
    steps = observation(selector.observing, key, window_s, engines, state_of, now())
    return json_response(await result_in_turns(steps))
