"""Endpoints of admission control: busy thresholds and shedding of priority tiers."""

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from select_service.api.service_context import ServiceContext, trace_fields
from select_service.auth.roles import METRICS, OPERATOR, service_wide
from select_service.base.errors import NotFound
from select_service.http.body_codec import json_response
from select_service.http.endpoint import (
    BODY_ERRORS,
    BodySpec,
    EndpointGroup,
    ResponseSpec,
    RouteSpec,
)
from select_service.schemas.admission import (
    AdmissionState,
    BusyThresholdChange,
    BusyThresholdList,
    BusyThresholdView,
    ShedRequest,
)

log = logging.getLogger("select_service.admission")

_THRESHOLDS: Mapping[str, Any] = {
    "model": "llama-3-8b",
    "active_decode_blocks_threshold": 0.85,
    "active_prefill_tokens_threshold": 10000,
}
_STATE: Mapping[str, Any] = {
    "tiers": ["premium", "standard", "best_effort"],
    "default_tier": "standard",
    "shed_tier": None,
    "shed_tiers": [],
    "queueing": True,
    "queue_timeout_s": 60.0,
    "waiting_requests": 3,
    "waiting_isl_tokens": 4096,
    "classes": [
        {
            "policy_class": "default",
            "waiting_requests": 3,
            "waiting_isl_tokens": 4096,
            "deadline_exceeded": 1,
            "flows": [
                {"fairness_id": "customer-4", "waiting_requests": 2, "waiting_isl_tokens": 3072},
                {"fairness_id": "", "waiting_requests": 1, "waiting_isl_tokens": 1024},
            ],
        },
    ],
    "thresholds": [_THRESHOLDS],
    "outcomes": {
        "admitted": 120934,
        "busy": 211,
        "shed": 0,
        "queue_full": 0,
        "queue_timeout": 2,
        "deadline_exceeded": 1,
        "client_gone": 1,
        "no_rank": 0,
    },
}

ADMISSION = EndpointGroup(
    "admission", "Admission control: which requests may pass when the fleet is full."
)


@ADMISSION.declare_route(
    RouteSpec(
        "POST",
        "/busy_threshold",
        "set_busy_threshold",
        "Set the busy thresholds of a model",
        {200: ResponseSpec("Effective thresholds.", BusyThresholdView, _THRESHOLDS)},
        may_call=service_wide(OPERATOR),
        detail="A rank above a threshold gets no more requests; when all candidates are above, "
        "requests are refused with 503. An omitted field keeps its value, null clears it. Lost on "
        "restart.",
        body=BodySpec(
            BusyThresholdChange,
            {
                "both": _THRESHOLDS,
                "clear one": {"model": "llama-3-8b", "active_prefill_tokens_threshold": None},
            },
        ),
        refusals=(*BODY_ERRORS, NotFound),
    )
)
async def set_busy_threshold(
    service: ServiceContext, request: Request, body: BusyThresholdChange
) -> Response:
    view = service.selector.set_thresholds(body)
    fields = trace_fields(request) | msgspec.structs.asdict(view)
    log.info("busy thresholds changed", extra={"fields": fields})
    return json_response(view)


@ADMISSION.declare_route(
    RouteSpec(
        "GET",
        "/busy_threshold",
        "busy_thresholds",
        "List the busy thresholds of every model",
        {
            200: ResponseSpec(
                "Models, sorted by name.", BusyThresholdList, {"thresholds": [_THRESHOLDS]}
            )
        },
        may_call=service_wide(OPERATOR),
    )
)
async def list_busy_thresholds(service: ServiceContext, request: Request) -> Response:
    return json_response(service.selector.list_thresholds())


@ADMISSION.declare_route(
    RouteSpec(
        "POST",
        "/admission/shed",
        "shed",
        "Shed a priority tier and all lower tiers",
        {
            200: ResponseSpec(
                "State after the call.",
                AdmissionState,
                {**_STATE, "shed_tier": "best_effort", "shed_tiers": ["best_effort"]},
            )
        },
        may_call=service_wide(OPERATOR),
        detail="Requests of these tiers, including waiting requests, are refused with 503 until "
        "the next call with another tier or null.",
        body=BodySpec(ShedRequest, {"begin": {"tier": "best_effort"}, "end": {"tier": None}}),
        refusals=BODY_ERRORS,
    )
)
async def shed_tiers(service: ServiceContext, request: Request, body: ShedRequest) -> Response:
    before = service.gate.shedding.tiers.shed_tier
    state = service.selector.set_shed_tier(body.tier)
    if before != state.shed_tier:
        fields = trace_fields(request) | {"before": before, "now": state.shed_tier}
        log.warning("load shedding changed", extra={"fields": fields})
    return json_response(state)


@ADMISSION.declare_route(
    RouteSpec(
        "GET",
        "/admission",
        "admission_state",
        "Show shed tiers, waiting requests and outcomes",
        {200: ResponseSpec("Current state.", AdmissionState, _STATE)},
        may_call=service_wide(OPERATOR, METRICS),
        detail="Cheap enough for a scrape every few seconds.",
    )
)
async def show_admission_state(service: ServiceContext, request: Request) -> Response:
    return json_response(service.selector.get_admission_state())
