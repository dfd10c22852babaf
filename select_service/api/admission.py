"""Switches of the admission stage: busy thresholds and the shedding of priority tiers."""

import logging

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from select_service.api.service import Service, trace_of
from select_service.bodies.admission import BusyThresholdChange, ShedRequest
from select_service.http.codec import body_as, json_response

log = logging.getLogger("select_service.admission")

_CHANGE = msgspec.json.Decoder(BusyThresholdChange)
_SHED = msgspec.json.Decoder(ShedRequest)


async def set_threshold(service: Service, request: Request) -> Response:
    body = await body_as(request, _CHANGE)
    view = service.selector.set_thresholds(body)
    fields = trace_of(request) | msgspec.structs.asdict(view)
    log.info("busy thresholds changed", extra={"fields": fields})
    return json_response(view)


async def thresholds(service: Service, request: Request) -> Response:
    return json_response(service.selector.thresholds())


async def shed(service: Service, request: Request) -> Response:
    body = await body_as(request, _SHED)
    before = service.selector.gate.tiers.shed_tier
    state = service.selector.shed(body.tier)
    if before != state.shed_tier:
        fields = trace_of(request) | {"before": before, "now": state.shed_tier}
        log.warning("shedding of priority tiers changed", extra={"fields": fields})
    return json_response(state)


async def state(service: Service, request: Request) -> Response:
    return json_response(service.selector.admission())
