"""Reservations: their creation on a rank the caller chose, their life, and the list of them."""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from select_service.access.roles import CALLER, OPERATOR, REPLICA, within_tenants
from select_service.api import parameters
from select_service.api.long_prompts import may_book, read_ahead
from select_service.api.migrations import done
from select_service.api.parameters import query_flag, query_number, scope_filter
from select_service.api.samples import RANK, SCOPE
from select_service.api.selection import unused_hashes
from select_service.api.service import Service, grant_of, now
from select_service.api.using import booking
from select_service.bodies.common import U64, U64_MAX
from select_service.bodies.migrations import Done
from select_service.bodies.reservations import (
    OutputBlockRequest,
    Reservation,
    ReservationPage,
    ReservationRequest,
    ReservationRow,
)
from select_service.core.decide.prompt import booked_prompt_of, is_long
from select_service.core.load.reservations import ReservationFilter
from select_service.errors import BadRequest, Conflict, NoEligibleRank, NotFound, NoWorkers
from select_service.http.codec import json_response
from select_service.http.connection import ClientGone, connection_of
from select_service.http.endpoint import WITH_BODY, Answer, Body, Noun, QueryParameter, Route

PAGE_ROWS = 100
PAGE_ROWS_MAX = 1000
"""Rows of one page of GET /reservations: unless asked otherwise, and at most."""

_DONE = {200: Answer("Done.", Done, {"status": "ok"})}
_PAGE = (
    QueryParameter("worker_id", U64, "Only reservations of this worker."),
    QueryParameter(
        "limit", Annotated[int, Meta(ge=1, le=PAGE_ROWS_MAX)], "Rows of a page at most.", PAGE_ROWS
    ),
    QueryParameter(
        "after", Annotated[str, Meta(pattern="^[0-9]{1,18}$")], "The `next` of the page before."
    ),
    QueryParameter(
        "sequence_hashes",
        bool,
        "Show the identities of the prompt blocks; makes pages shorter.",
        False,
    ),
)
_OUTCOME = (QueryParameter("outcome", Literal["ok", "failure"], "How its request went."),)
_ROW = {
    "reservation_id": "request-123",
    **SCOPE,
    **RANK,
    "state": "prefill",
    "isl_tokens": 70,
    "block_size": 16,
    "prompt_blocks": 4,
    "output_blocks": 0,
    "prefill_tokens": 38,
    "work": 22,
    "age_seconds": 0.125,
    "expires_in_seconds": 3599.875,
    "origin": "local",
    "router_id": 4242424242,
}

RESERVATIONS = Noun("reservations", "Load that is held for one request, from admission to its end.")


@RESERVATIONS.declare(
    Route(
        "POST",
        "/reservations",
        "create_reservation",
        "Book load on a rank that the caller chose",
        {
            201: Answer(
                "The reservation.",
                Reservation,
                {
                    "reservation_id": "request-123",
                    **SCOPE,
                    **RANK,
                    "endpoint": "http://worker-1:8000",
                },
            )
        },
        may_call=within_tenants(CALLER),
        detail="The prompt is given as tokens, or as `sequence_hashes` and `isl_tokens`; "
        "`block_hashes` are not used. Without `effective_prefill_tokens` the whole prompt counts "
        "as prefill load.",
        body=Body(
            ReservationRequest,
            {
                "hashes": {
                    "reservation_id": "request-123",
                    **SCOPE,
                    **RANK,
                    "sequence_hashes": [21, 22, 23, 24],
                    "isl_tokens": 70,
                    "effective_prefill_tokens": 38,
                }
            },
            unused=unused_hashes,
        ),
        refusals=(*WITH_BODY, NotFound, Conflict, NoWorkers, NoEligibleRank),
    )
)
async def create(service: Service, request: Request, body: ReservationRequest) -> Response:
    read = await read_ahead(service, body, booked_prompt_of) if is_long(body) else None
    await may_book(service, body)
    if connection_of(request).gone:
        raise ClientGone
    with booking(service, request, body, body.reservation_id) as booked:
        reservation = service.selector.reserve(body, now(), read)
        booked(body.reservation_id)
    if "span" in request.scope:
        request.scope["span"].booked(reservation, body)
    return json_response(reservation, 201)


@RESERVATIONS.declare(
    Route(
        "GET",
        "/reservations",
        "list_reservations",
        "List live reservations, oldest first",
        {
            200: Answer(
                "One page.",
                ReservationPage,
                {"reservations": [_ROW], "total": 1, "next": None, "router_id": 4242424242},
            )
        },
        may_call=within_tenants(CALLER, OPERATOR, REPLICA),
        detail="Ask again with `after` set to `next` until it is null. A page of a filtered list "
        "may be shorter than `limit`.",
        query=parameters.SCOPE + _PAGE,
        refusals=(BadRequest,),
    )
)
async def listing(service: Service, request: Request, query: Mapping[str, str]) -> Response:
    model_name, tenant_id = scope_filter(query)
    wanted = ReservationFilter(
        model_name=model_name,
        tenant_id=tenant_id,
        worker_id=query_number(query, "worker_id", 0, U64_MAX),
        limit=query_number(query, "limit", 1, PAGE_ROWS_MAX) or PAGE_ROWS,
        after=query.get("after"),
        sequence_hashes=query_flag(query, "sequence_hashes"),
        tenants=grant_of(request).tenants,
    )
    return json_response(service.selector.reservations(wanted, now()))


@RESERVATIONS.declare(
    Route(
        "GET",
        "/reservations/{reservation_id}",
        "get_reservation",
        "Show one live reservation",
        {200: Answer("As in the list.", ReservationRow, _ROW)},
        may_call=within_tenants(CALLER, OPERATOR),
        detail="Does not renew it.",
        in_path=parameters.RESERVATION_ID,
        refusals=(BadRequest, NotFound),
    )
)
async def show(service: Service, request: Request, reservation_id: str) -> Response:
    return json_response(service.selector.reservation(reservation_id, now()))


@RESERVATIONS.declare(
    Route(
        "POST",
        "/reservations/{reservation_id}/prefill_complete",
        "prefill_complete",
        "Give back the prefill load",
        _DONE,
        may_call=within_tenants(CALLER),
        detail="Call it when the first token arrives. Repeating it changes nothing but renews the "
        "lease.",
        in_path=parameters.RESERVATION_ID,
        refusals=(BadRequest, NotFound),
    )
)
async def prefill_complete(service: Service, request: Request, reservation_id: str) -> Response:
    service.selector.prefill_complete(reservation_id, now())
    return json_response(done(service, reservation_id))


@RESERVATIONS.declare(
    Route(
        "POST",
        "/reservations/{reservation_id}/output_block",
        "output_block",
        "Count one more block of output",
        _DONE,
        may_call=within_tenants(CALLER),
        detail="With `decay_fraction` (0.0 to 1.0) the blocks that only this reservation holds "
        "count so much each from now on: 1 is a full block. Without a body, or with "
        "`{}`, nothing else changes.",
        in_path=parameters.RESERVATION_ID,
        body=Body(
            OutputBlockRequest,
            {"plain": {}, "decay": {"decay_fraction": 0.5}},
            optional=True,
        ),
        refusals=(*WITH_BODY, NotFound),
    )
)
async def output_block(
    service: Service, request: Request, reservation_id: str, body: OutputBlockRequest
) -> Response:
    service.selector.output_block(reservation_id, body.decay_fraction, now())
    return json_response(done(service, reservation_id))


@RESERVATIONS.declare(
    Route(
        "POST",
        "/reservations/{reservation_id}/renew",
        "renew_reservation",
        "Start the lease anew",
        _DONE,
        may_call=within_tenants(CALLER),
        detail="A reservation that no call touches for the time to live expires, and its load "
        "with it.",
        in_path=parameters.RESERVATION_ID,
        refusals=(BadRequest, NotFound),
    )
)
async def renew(service: Service, request: Request, reservation_id: str) -> Response:
    service.selector.renew(reservation_id, now())
    return json_response(done(service, reservation_id))


@RESERVATIONS.declare(
    Route(
        "DELETE",
        "/reservations/{reservation_id}",
        "free_reservation",
        "Free the load of a request that has ended",
        _DONE,
        may_call=within_tenants(CALLER, OPERATOR),
        detail="With `outcome` it also reports how the request went, as `/workers/{worker_id}/"
        "outcome` does with the reservation; without `--health-checks on` that is not heeded.",
        in_path=parameters.RESERVATION_ID,
        query=_OUTCOME,
        refusals=(BadRequest, NotFound),
    )
)
async def free(
    service: Service, request: Request, reservation_id: str, query: Mapping[str, str]
) -> Response:
    outcome, fitness = query.get("outcome"), service.selector.fitness
    if outcome not in (None, "ok", "failure"):
        raise BadRequest(f"outcome: expected ok or failure, got `{outcome[:64]}`")
    answer = done(service, reservation_id)
    if outcome is None or fitness is None:
        service.selector.free(reservation_id, now())
        return json_response(answer)
    rank = service.selector.held.get(reservation_id).rank
    service.selector.free(reservation_id, now())
    fitness.ended(reservation_id, rank, outcome, now())
    return json_response(answer)
