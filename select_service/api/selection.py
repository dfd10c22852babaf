"""POST /select and /select_and_reserve."""

import logging
from time import perf_counter

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from select_service.api.codec import ClientGone, body_as, json_response
from select_service.api.service import Service, now, trace_of
from select_service.core.selector import Decision
from select_service.schema import SelectAndReserveRequest, SelectRequest

log = logging.getLogger("select_service.decisions")

_SELECT = msgspec.json.Decoder(SelectRequest)
_SELECT_AND_RESERVE = msgspec.json.Decoder(SelectAndReserveRequest)


async def select(service: Service, request: Request) -> Response:
    """Choose a rank; nothing is booked."""
    body = await body_as(request, _SELECT)
    started = perf_counter()
    decision = service.selector.select(body)
    service.metrics.selection("/select", perf_counter() - started)
    _log_decision(decision, request)
    return json_response(decision.selection)


async def select_and_reserve(service: Service, request: Request) -> Response:
    """Choose a rank and book the load on it in one step."""
    body = await body_as(request, _SELECT_AND_RESERVE)
    if client_gone(request):
        raise ClientGone
    started = perf_counter()
    decision = service.selector.select_and_reserve(body, now())
    service.metrics.selection("/select_and_reserve", perf_counter() - started)
    _log_decision(decision, request)
    return json_response(decision.selection)


def client_gone(request: Request) -> bool:
    """Has the client closed the connection?  Its booking would only hold load until it expires.

    uvicorn knows without waiting, ASGI has no call that does not wait.
    """
    cycle = getattr(request.receive, "__self__", None)
    return bool(getattr(cycle, "disconnected", False))


def _log_decision(decision: Decision, request: Request) -> None:
    if not log.isEnabledFor(logging.DEBUG):
        return
    selection = decision.selection
    fields = {
        "selection_id": selection.selection_id or None,
        "reservation_id": selection.reservation_id or None,
        **trace_of(request),
        "model_name": selection.model_name,
        "tenant_id": selection.tenant_id,
        "worker_id": selection.worker_id,
        "dp_rank": selection.dp_rank,
        "candidates": decision.explain(),
    }
    log.debug("decision", extra={"fields": {k: v for k, v in fields.items() if v is not None}})
