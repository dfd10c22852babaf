"""Switches of the admission stage: busy thresholds and the shedding of priority tiers."""

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from select_service.access.roles import METRICS, OPERATOR, whole_service
from select_service.api.service import Service, trace_of
from select_service.bodies.admission import (
    AdmissionState,
    BusyThresholdChange,
    BusyThresholdList,
    BusyThresholdView,
    ShedRequest,
)
from select_service.errors import NotFound
from select_service.http.codec import json_response
from select_service.http.endpoint import WITH_BODY, Answer, Body, Noun, Route

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
        {"policy_class": "default", "waiting_requests": 3, "waiting_isl_tokens": 4096},
    ],
    "thresholds": [_THRESHOLDS],
    "outcomes": {
        "admitted": 120934,
        "busy": 211,
        "shed": 0,
        "queue_full": 0,
        "queue_timeout": 2,
        "client_gone": 1,
        "no_rank": 0,
    },
}

ADMISSION = Noun("admission", "Who may pass when the fleet is full.")


@ADMISSION.declare(
    Route(
        "POST",
        "/busy_threshold",
        "set_busy_threshold",
        "Set the busy thresholds of a model",
        {200: Answer("The thresholds that count now.", BusyThresholdView, _THRESHOLDS)},
        may_call=whole_service(OPERATOR),
        detail="A rank above a threshold gets no more requests; when all candidates are, a request "
        "is refused with 503. A field that is left out keeps its value, null clears it. Not kept "
        "over a restart.",
        body=Body(
            BusyThresholdChange,
            {
                "both": _THRESHOLDS,
                "clear one": {"model": "llama-3-8b", "active_prefill_tokens_threshold": None},
            },
        ),
        refusals=(*WITH_BODY, NotFound),
    )
)
async def set_threshold(service: Service, request: Request, body: BusyThresholdChange) -> Response:
    view = service.selector.set_thresholds(body)
    fields = trace_of(request) | msgspec.structs.asdict(view)
    log.info("busy thresholds changed", extra={"fields": fields})
    return json_response(view)


@ADMISSION.declare(
    Route(
        "GET",
        "/busy_threshold",
        "busy_thresholds",
        "Busy thresholds of every model",
        {200: Answer("Models by name.", BusyThresholdList, {"thresholds": [_THRESHOLDS]})},
        may_call=whole_service(OPERATOR),
    )
)
async def thresholds(service: Service, request: Request) -> Response:
    return json_response(service.selector.thresholds())


@ADMISSION.declare(
    Route(
        "POST",
        "/admission/shed",
        "shed",
        "Shed a priority tier and all below it",
        {
            200: Answer(
                "The state after the call.",
                AdmissionState,
                {**_STATE, "shed_tier": "best_effort", "shed_tiers": ["best_effort"]},
            )
        },
        may_call=whole_service(OPERATOR),
        detail="Requests of these tiers are refused with 503, waiting ones too, until the call is "
        "made with another tier or null.",
        body=Body(ShedRequest, {"begin": {"tier": "best_effort"}, "end": {"tier": None}}),
        refusals=WITH_BODY,
    )
)
async def shed(service: Service, request: Request, body: ShedRequest) -> Response:
    before = service.selector.gate.tiers.shed_tier
    state = service.selector.shed(body.tier)
    if before != state.shed_tier:
        fields = trace_of(request) | {"before": before, "now": state.shed_tier}
        log.warning("shedding of priority tiers changed", extra={"fields": fields})
    return json_response(state)


@ADMISSION.declare(
    Route(
        "GET",
        "/admission",
        "admission_state",
        "What is shed, what waits, and what became of all requests",
        {200: Answer("The state now.", AdmissionState, _STATE)},
        may_call=whole_service(OPERATOR, METRICS),
        detail="Cheap enough for a scrape every few seconds.",
    )
)
async def state(service: Service, request: Request) -> Response:
    return json_response(service.selector.admission())
