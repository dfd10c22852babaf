"""Endpoints of reservations: creation on a rank chosen by the caller, lifecycle, and listing."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from select_service.api import request_parameters
from select_service.api.endpoints.migrations import lifecycle_response
from select_service.api.endpoints.selection import unused_hashes_warning
from select_service.api.example_values import EXAMPLE_RANK, EXAMPLE_SCOPE
from select_service.api.prompt_preparation import prehash_prompt, wait_until_bookable
from select_service.api.quota import count_booking
from select_service.api.request_parameters import (
    parse_flag,
    parse_number,
    parse_page,
    scope_filter,
)
from select_service.api.service_context import (
    ServiceContext,
    core_time,
    request_grant,
    request_span,
)
from select_service.auth.roles import CALLER, OPERATOR, REPLICA, tenant_scoped
from select_service.base.errors import BadRequest, Conflict, NoEligibleRank, NotFound, NoWorkers
from select_service.core.load.reservations import ReservationFilter
from select_service.core.placement.prompt import is_long_prompt, read_booked_prompt
from select_service.http.body_codec import json_response
from select_service.http.client_connection import ClientGone, connection_of
from select_service.http.endpoint import (
    BODY_ERRORS,
    BodySpec,
    EndpointGroup,
    QueryParameter,
    ResponseSpec,
    RouteSpec,
)
from select_service.schemas.common import U64, U64_MAX
from select_service.schemas.migrations import Done
from select_service.schemas.reservations import (
    OutputBlockRequest,
    PrefillReport,
    Reservation,
    ReservationEnd,
    ReservationPage,
    ReservationRequest,
    ReservationRow,
)

_DONE = {200: ResponseSpec("Done.", Done, {"status": "ok"})}
_PAGE = (
    QueryParameter("worker_id", U64, "Only reservations of this worker."),
    *request_parameters.PAGE_PARAMETERS,
    QueryParameter(
        "sequence_hashes",
        bool,
        "Include the identities of the prompt blocks; makes pages shorter.",
        False,
    ),
    QueryParameter(
        "separate_legs",
        bool,
        "Show the prefill legs of pairs as rows of their own, as replicas need them.",
        False,
    ),
)
_OUTCOME = (QueryParameter("outcome", Literal["ok", "failure"], "Outcome of the request."),)
_ROW = {
    "reservation_id": "request-123",
    **EXAMPLE_SCOPE,
    **EXAMPLE_RANK,
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

RESERVATIONS = EndpointGroup(
    "reservations", "Load booked for one request, from admission to its end."
)


@RESERVATIONS.declare_route(
    RouteSpec(
        "POST",
        "/reservations",
        "create_reservation",
        "Book load on a rank chosen by the caller",
        {
            201: ResponseSpec(
                "The reservation.",
                Reservation,
                {
                    "selection_id": "request-123",
                    "reservation_id": "request-123",
                    **EXAMPLE_SCOPE,
                    "routing_group": EXAMPLE_SCOPE["tenant_id"],
                    **EXAMPLE_RANK,
                    "endpoint": "http://worker-1:8000",
                },
            )
        },
        may_call=tenant_scoped(CALLER),
        detail="Give the prompt as tokens, or as `sequence_hashes` and `isl_tokens`; "
        "`block_hashes` are ignored. Without `effective_prefill_tokens` the whole prompt counts "
        "as prefill load. The prompt is not looked up in a shared cache: give the "
        "`effective_prefill_tokens` of a selection, or book the selection by its id.",
        body=BodySpec(
            ReservationRequest,
            {
                "hashes": {
                    "reservation_id": "request-123",
                    **EXAMPLE_SCOPE,
                    **EXAMPLE_RANK,
                    "sequence_hashes": [21, 22, 23, 24],
                    "isl_tokens": 70,
                    "effective_prefill_tokens": 38,
                }
            },
            unused_fields_warning=unused_hashes_warning,
        ),
        refusals=(*BODY_ERRORS, NotFound, Conflict, NoWorkers, NoEligibleRank),
    )
)
async def create_reservation(
    service: ServiceContext, request: Request, body: ReservationRequest
) -> Response:
    read = None
    if not body.is_replay and is_long_prompt(body):
        read = await prehash_prompt(service, body, read_booked_prompt)
    await wait_until_bookable(service, body)
    # The client may have disconnected during the awaits above: a booking would hold load until
    # its expiry.
    if connection_of(request).is_gone:
        raise ClientGone
    with count_booking(service, request, body, body.booking_id) as booked:
        reservation = service.selector.reserve(body, core_time(), read)
        booked(body.booking_id)
    if (span := request_span(request.scope)) is not None:
        span.record_reservation(reservation, body)
    return json_response(reservation, 201)


@RESERVATIONS.declare_route(
    RouteSpec(
        "GET",
        "/reservations",
        "list_reservations",
        "List live reservations, oldest first",
        {
            200: ResponseSpec(
                "Page of reservations.",
                ReservationPage,
                {"reservations": [_ROW], "total": 1, "next": None, "router_id": 4242424242},
            )
        },
        may_call=tenant_scoped(CALLER, OPERATOR, REPLICA),
        detail="Repeat the request with `after` set to `next` until `next` is null. Pages of a "
        "filtered list may be shorter than `limit`.",
        query=request_parameters.SCOPE_PARAMETERS + _PAGE,
        refusals=(BadRequest,),
    )
)
async def list_reservations(
    service: ServiceContext, request: Request, query: Mapping[str, str]
) -> Response:
    model_name, tenant_id = scope_filter(query)
    limit, after = parse_page(query)
    reservation_filter = ReservationFilter(
        model_name=model_name,
        tenant_id=tenant_id,
        worker_id=parse_number(query, "worker_id", 0, U64_MAX),
        limit=limit,
        after=after,
        sequence_hashes=parse_flag(query, "sequence_hashes"),
        tenants=request_grant(request).tenants,
        separate_legs=parse_flag(query, "separate_legs"),
    )
    return json_response(
        service.selector.inspection.list_reservations(reservation_filter, core_time())
    )


@RESERVATIONS.declare_route(
    RouteSpec(
        "GET",
        "/reservations/{reservation_id}",
        "get_reservation",
        "Show one live reservation",
        {200: ResponseSpec("Row as in the list.", ReservationRow, _ROW)},
        may_call=tenant_scoped(CALLER, OPERATOR),
        detail="Does not renew the reservation.",
        in_path=request_parameters.RESERVATION_ID,
        refusals=(BadRequest, NotFound),
    )
)
async def show_reservation(
    service: ServiceContext, request: Request, reservation_id: str
) -> Response:
    return json_response(service.selector.inspection.get_reservation(reservation_id, core_time()))


@RESERVATIONS.declare_route(
    RouteSpec(
        "POST",
        "/reservations/{reservation_id}/prefill_complete",
        "prefill_complete",
        "Release the prefill load",
        _DONE,
        may_call=tenant_scoped(CALLER),
        detail="Call this when the first token arrives. Further calls only renew the reservation. "
        "`cached_tokens` is compared with the prediction, see `reported` in `GET /workers`.",
        in_path=request_parameters.RESERVATION_ID,
        body=BodySpec(PrefillReport, {"plain": {}, "report": {"cached_tokens": 48}}, optional=True),
        refusals=(*BODY_ERRORS, NotFound),
    )
)
async def complete_prefill(
    service: ServiceContext, request: Request, reservation_id: str, body: PrefillReport
) -> Response:
    if body.cached_tokens is not None:
        service.followers.assumptions.report_cached(reservation_id, body.cached_tokens)
    service.selector.complete_prefill(reservation_id, core_time())
    return json_response(lifecycle_response(service, reservation_id))


@RESERVATIONS.declare_route(
    RouteSpec(
        "POST",
        "/reservations/{reservation_id}/output_block",
        "output_block",
        "Report another output block",
        _DONE,
        may_call=tenant_scoped(CALLER),
        detail="`decay_fraction` (0.0 to 1.0) sets the weight of the blocks held only by this "
        "reservation: 1 is a full block. Without a body, or with `{}`, weights stay unchanged.",
        in_path=request_parameters.RESERVATION_ID,
        body=BodySpec(
            OutputBlockRequest,
            {"plain": {}, "decay": {"decay_fraction": 0.5}},
            optional=True,
        ),
        refusals=(*BODY_ERRORS, NotFound),
    )
)
async def add_output_block(
    service: ServiceContext, request: Request, reservation_id: str, body: OutputBlockRequest
) -> Response:
    service.selector.add_output_block(reservation_id, body.decay_fraction, core_time())
    return json_response(lifecycle_response(service, reservation_id))


@RESERVATIONS.declare_route(
    RouteSpec(
        "POST",
        "/reservations/{reservation_id}/renew",
        "renew_reservation",
        "Renew a reservation",
        _DONE,
        may_call=tenant_scoped(CALLER),
        detail="A reservation without a call for the time to live expires and releases its load.",
        in_path=request_parameters.RESERVATION_ID,
        refusals=(BadRequest, NotFound),
    )
)
async def renew_reservation(
    service: ServiceContext, request: Request, reservation_id: str
) -> Response:
    service.selector.renew_reservation(reservation_id, core_time())
    return json_response(lifecycle_response(service, reservation_id))


@RESERVATIONS.declare_route(
    RouteSpec(
        "DELETE",
        "/reservations/{reservation_id}",
        "free_reservation",
        "Free the load of a finished request",
        _DONE,
        may_call=tenant_scoped(CALLER, OPERATOR),
        detail="`outcome` also reports the outcome of the request, like `/workers/{worker_id}/"
        "outcome` with the reservation; ignored without `--health-checks on`. "
        "`output_token_ids` adds the blocks of the answer to those that a rank without KV events "
        "is assumed to hold.",
        in_path=request_parameters.RESERVATION_ID,
        query=_OUTCOME,
        body=BodySpec(
            ReservationEnd,
            {"plain": {}, "answer": {"output_token_ids": [11, 12, 13]}},
            optional=True,
        ),
        refusals=(*BODY_ERRORS, NotFound),
    )
)
async def free_reservation(
    service: ServiceContext,
    request: Request,
    reservation_id: str,
    query: Mapping[str, str],
    body: ReservationEnd,
) -> Response:
    outcome, fitness = query.get("outcome"), service.health
    if outcome not in (None, "ok", "failure"):
        raise BadRequest(f"outcome: expected ok or failure, got `{outcome[:64]}`")
    answer = lifecycle_response(service, reservation_id)
    if body.output_token_ids:
        tokens = np.array(body.output_token_ids, np.uint32)
        answer.answer = service.followers.assumptions.add_answer(
            reservation_id, tokens, core_time()
        )
    if outcome is None or fitness is None:
        service.selector.free_reservation(reservation_id, core_time())
        return json_response(answer)
    # Read the rank first: freeing forgets the reservation.
    rank = service.ledger.reservations.get_reservation(reservation_id).rank
    service.selector.free_reservation(reservation_id, core_time())
    fitness.process_outcome(reservation_id, rank, outcome, core_time())
    return json_response(answer)
