"""Reservations: their creation on a rank the caller chose, their life, and the list of them."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from select_service.api.route_table import PAGE_ROWS, PAGE_ROWS_MAX
from select_service.api.selection import client_gone
from select_service.api.service import (
    Service,
    now,
    path_text,
    query_flag,
    query_number,
    query_of,
    scope_filter,
)
from select_service.bodies.common import U64_MAX, Status
from select_service.bodies.reservations import OutputBlockRequest, ReservationRequest
from select_service.core.load.reservations import ReservationFilter
from select_service.http.codec import ClientGone, body_as, json_response

_RESERVATION = msgspec.json.Decoder(ReservationRequest)
_OUTPUT_BLOCK = msgspec.json.Decoder(OutputBlockRequest)
_OK = Status()


async def create(service: Service, request: Request) -> Response:
    body = await body_as(request, _RESERVATION)
    if client_gone(request):
        raise ClientGone
    return json_response(service.selector.reserve(body, now()), 201)


async def listing(service: Service, request: Request) -> Response:
    names = ("model_name", "tenant_id", "routing_group", "worker_id", "limit", "after")
    query = query_of(request, *names, "sequence_hashes")
    model_name, tenant_id = scope_filter(query)
    wanted = ReservationFilter(
        model_name=model_name,
        tenant_id=tenant_id,
        worker_id=query_number(query, "worker_id", 0, U64_MAX),
        limit=query_number(query, "limit", 1, PAGE_ROWS_MAX) or PAGE_ROWS,
        after=query.get("after"),
        sequence_hashes=query_flag(query, "sequence_hashes"),
    )
    return json_response(service.selector.reservations(wanted, now()))


async def prefill_complete(service: Service, request: Request) -> Response:
    service.selector.prefill_complete(path_text(request, "reservation_id"), now())
    return json_response(_OK)


async def output_block(service: Service, request: Request) -> Response:
    body = await body_as(request, _OUTPUT_BLOCK)
    reservation_id = path_text(request, "reservation_id")
    service.selector.output_block(reservation_id, body.decay_fraction, now())
    return json_response(_OK)


async def renew(service: Service, request: Request) -> Response:
    service.selector.renew(path_text(request, "reservation_id"), now())
    return json_response(_OK)


async def free(service: Service, request: Request) -> Response:
    service.selector.free(path_text(request, "reservation_id"), now())
    return json_response(_OK)
