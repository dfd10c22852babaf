"""POST /select and /select_and_reserve."""

import asyncio
import logging
from math import isfinite
from time import perf_counter
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from select_service.api.service import Service, now, trace_of
from select_service.bodies.selection import SelectAndReserveRequest, SelectRequest
from select_service.core.admission.waiting import Ticket
from select_service.core.decide.decisions import Decision
from select_service.errors import SelectError, ShuttingDown
from select_service.http.codec import ClientGone, body_as, json_response

log = logging.getLogger("select_service.decisions")

POLICY_CLASS_HEADER = "x-dynamo-meta-policy-class"

_SELECT = msgspec.json.Decoder(SelectRequest)
_SELECT_AND_RESERVE = msgspec.json.Decoder(SelectAndReserveRequest)


async def select(service: Service, request: Request) -> Response:
    """Choose a rank; nothing is booked."""
    body = await body_as(request, _SELECT)
    started = perf_counter()
    outcome = service.selector.select(body, now(), _policy_class(service, request))
    service.metrics.selection("/select", perf_counter() - started)
    return await _answer(service, request, outcome)


async def select_and_reserve(service: Service, request: Request) -> Response:
    """Choose a rank and book the load on it in one step."""
    body = await body_as(request, _SELECT_AND_RESERVE)
    if client_gone(request):
        raise ClientGone
    started = perf_counter()
    outcome = service.selector.select_and_reserve(body, now(), _policy_class(service, request))
    service.metrics.selection("/select_and_reserve", perf_counter() - started)
    return await _answer(service, request, outcome)


def client_gone(request: Request) -> bool:
    """Has the client closed the connection?  Its booking would only hold load until it expires.

    uvicorn knows without waiting, ASGI has no call that does not wait.
    """
    cycle = getattr(request.receive, "__self__", None)
    return bool(getattr(cycle, "disconnected", False))


def _policy_class(service: Service, request: Request) -> str | None:
    """Headers are looked through only when it matters."""
    return request.headers.get(POLICY_CLASS_HEADER) if service.selector.gate.rules else None


async def _answer(service: Service, request: Request, outcome: Decision | Ticket) -> Response:
    if isinstance(outcome, Ticket):
        outcome = await _waited(service, request, outcome)
    _log_decision(outcome, request)
    return json_response(outcome.selection)


async def _waited(service: Service, request: Request, ticket: Ticket) -> Decision:
    """What becomes of a request that must wait.  A client that goes away leaves the queue at once.

    Raises SelectError, ClientGone.
    """
    gate = service.selector.gate
    gone = asyncio.ensure_future(_until_gone(request))
    settled = asyncio.Event()
    ticket.settled = settled.set
    done = asyncio.ensure_future(settled.wait())
    left_s = ticket.deadline - now() if isfinite(ticket.deadline) else None
    try:
        await asyncio.wait((done, gone), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        if gone.done() or client_gone(request):
            _give_back(service, ticket)
            raise ClientGone
        gate.time_out(ticket, now())
    except asyncio.CancelledError:
        raise ShuttingDown("the service is ending; nothing was done") from None
    finally:
        gone.cancel()
        done.cancel()
        gate.leave(ticket)
    if isinstance(ticket.outcome, SelectError):
        raise ticket.outcome
    decision: Decision = ticket.outcome
    return decision


def _give_back(service: Service, ticket: Ticket) -> None:
    """It was served in the moment in which its client left."""
    if isinstance(ticket.outcome, Decision):
        reservation_id = ticket.outcome.selection.reservation_id
        if reservation_id is not msgspec.UNSET:
            service.selector.free(reservation_id, now())


async def _until_gone(request: Request) -> None:
    """Ends when the client closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _log_decision(decision: Decision, request: Request) -> None:
    if not log.isEnabledFor(logging.DEBUG):
        return
    selection, waited = decision.selection, decision.waited
    fields: dict[str, Any] = {
        "selection_id": selection.selection_id or None,
        "reservation_id": selection.reservation_id or None,
        **trace_of(request),
        "model_name": selection.model_name,
        "tenant_id": selection.tenant_id,
        "worker_id": selection.worker_id,
        "dp_rank": selection.dp_rank,
        "candidates": decision.explain(),
    }
    if waited is not None:
        fields |= {
            "policy_class": waited.policy_class,
            "queue_position": waited.position,
            "queue_wait_s": round(waited.seconds, 6),
        }
    log.debug("decision", extra={"fields": {k: v for k, v in fields.items() if v is not None}})
