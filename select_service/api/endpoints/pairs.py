"""Endpoints of pairs: prefill and decode on two ranks, chosen and booked together."""

from time import perf_counter
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from select_service.api import request_parameters
from select_service.api.endpoints.migrations import lifecycle_response
from select_service.api.endpoints.selection import (
    CAPACITY_ERRORS,
    POLICY_CLASS_HEADERS,
    PROMPT_DETAIL,
    await_decision,
    requested_policy_class,
    unused_hashes_warning,
    warn_ignored_overrides,
)
from select_service.api.example_values import EXAMPLE_RANK, EXAMPLE_SCOPE, EXAMPLE_TOKENS
from select_service.api.prompt_preparation import prepare_prompt, wait_until_bookable
from select_service.api.quota import BookedCallback, count_booking, ignore_booking
from select_service.api.service_context import ServiceContext, core_time
from select_service.auth.roles import CALLER, tenant_scoped
from select_service.base.errors import BadRequest, Conflict, NoEligibleRank, NotFound, NoWorkers
from select_service.http.body_codec import json_response
from select_service.http.client_connection import ClientGone, connection_of
from select_service.http.endpoint import (
    BODY_ERRORS,
    BodySpec,
    EndpointGroup,
    ResponseSpec,
    RouteSpec,
)
from select_service.schemas.migrations import Done
from select_service.schemas.pairs import (
    LegMove,
    PairSelection,
    SelectPairAndReserveRequest,
    SelectPairRequest,
)

_OVERLAP = {"longest_matched": 32, "gpu": 32, "dp": {"0": 32}, "cpu": 32, "disk": 32}
_NO_OVERLAP = {"longest_matched": 0, "gpu": 0, "dp": {"0": 0}, "cpu": 0, "disk": 0}
_EXAMPLE_PAIR: dict[str, Any] = {
    "reservation_id": "request-123",
    **EXAMPLE_SCOPE,
    "routing_group": "default",
    "block_size": 16,
    "path": "remote",
    "reason": "cheaper",
    "legs": [
        {
            "leg": "prefill",
            **EXAMPLE_RANK,
            "endpoint": "http://worker-1:8000",
            "overlap": _OVERLAP,
            "cached_tokens": 32,
            "own_work": 4064,
        },
        {
            "leg": "decode",
            "worker_id": 7,
            "dp_rank": 0,
            "endpoint": "http://worker-7:8000",
            "overlap": _NO_OVERLAP,
            "cached_tokens": 0,
            "own_work": 4096,
        },
    ],
    "effective_prefill_tokens": 4064,
    "move_tokens": 4096,
    "move_cost": 1790.0,
    "local_cost": 20992.0,
    "remote_cost": 6800.0,
    "handoff": {
        "order": "sequential",
        "peer_binding": False,
        "kind": "nixl",
        "prefill_params": {
            "max_tokens": 1,
            "stream": False,
            "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
        },
        "pass_on": "kv_transfer_params",
        "reply_path": "kv_transfer_params",
        "missing": [],
    },
}
_PAIR_DETAIL = (
    "The cheapest of all pairs of a prefill and a decode rank, and of all ranks that can do both, "
    "counting the move of the KV blocks between them. "
)
_PAIR = {200: ResponseSpec("The chosen ranks.", PairSelection, _EXAMPLE_PAIR)}

PAIRS = EndpointGroup("pairs", "Prefill and decode on two ranks, chosen together.")


@PAIRS.declare_route(
    RouteSpec(
        "POST",
        "/select_pair",
        "select_pair",
        "Choose ranks for prefill and decode without booking",
        _PAIR,
        may_call=tenant_scoped(CALLER),
        detail=_PAIR_DETAIL + PROMPT_DETAIL,
        headers=POLICY_CLASS_HEADERS,
        body=BodySpec(
            SelectPairRequest,
            {"tokens": {**EXAMPLE_SCOPE, **EXAMPLE_TOKENS}},
            unused_fields_warning=unused_hashes_warning,
        ),
        refusals=(*BODY_ERRORS, NoWorkers, NoEligibleRank, *CAPACITY_ERRORS),
    )
)
async def select_pair(
    service: ServiceContext, request: Request, body: SelectPairRequest
) -> Response:
    """Choose a pair without booking."""
    return await _select_pair(service, request, body)


@PAIRS.declare_route(
    RouteSpec(
        "POST",
        "/select_pair_and_reserve",
        "select_pair_and_reserve",
        "Choose ranks for prefill and decode, and book both legs",
        _PAIR,
        may_call=tenant_scoped(CALLER),
        detail=_PAIR_DETAIL + "One reservation covers both legs: `prefill_complete` frees the "
        "prefill leg, `first_token` the link between them, `DELETE` everything. " + PROMPT_DETAIL,
        headers=POLICY_CLASS_HEADERS,
        body=BodySpec(
            SelectPairAndReserveRequest,
            {
                "tokens": {"reservation_id": "request-123", **EXAMPLE_SCOPE, **EXAMPLE_TOKENS},
                "constrained": {
                    **EXAMPLE_SCOPE,
                    **EXAMPLE_TOKENS,
                    "prefill": {"allowed_worker_ids": [1, 2]},
                    "decode": {"allowed_worker_ids": [7]},
                    "local": "never",
                    "topology": {"domain": "rack", "enforcement": "preferred", "weight": 0.5},
                },
            },
            unused_fields_warning=unused_hashes_warning,
        ),
        refusals=(*BODY_ERRORS, Conflict, NoWorkers, NoEligibleRank, *CAPACITY_ERRORS),
    )
)
async def select_pair_and_reserve(
    service: ServiceContext, request: Request, body: SelectPairAndReserveRequest
) -> Response:
    """Choose a pair and book both legs in one step."""
    if body.n > 1:
        raise BadRequest(f"n is {body.n}, and a pair serves one answer: send one request for each")
    with count_booking(service, request, body, body.booking_id) as booked:
        return await _select_pair(service, request, body, booked)


async def _select_pair(
    service: ServiceContext,
    request: Request,
    body: SelectPairRequest | SelectPairAndReserveRequest,
    booked: BookedCallback = ignore_booking,
) -> Response:
    warn_ignored_overrides(service, request, body)
    read = await prepare_prompt(service, body)
    await wait_until_bookable(service, body)
    if connection_of(request).is_gone:
        raise ClientGone  # a booking for a gone client would hold load until its expiry
    started = perf_counter()
    policy_class = requested_policy_class(service, request, body)
    outcome = service.selector.select_pair(body, core_time(), policy_class, read)
    service.metrics.record_selection(request.scope["path"], perf_counter() - started)
    decision = await await_decision(service, request, outcome)
    if isinstance(reservation_id := decision.selection.reservation_id, str):
        booked(reservation_id)
    return json_response(decision.pair)


@PAIRS.declare_route(
    RouteSpec(
        "POST",
        "/reservations/{reservation_id}/first_token",
        "first_token",
        "Report the first token of a pair",
        {200: ResponseSpec("Done.", Done, {"status": "ok"})},
        may_call=tenant_scoped(CALLER),
        detail="Frees the link between both ranks, and the prefill leg if `prefill_complete` was "
        "not called. For a reservation on one rank the same as `prefill_complete`.",
        in_path=request_parameters.RESERVATION_ID,
        refusals=(BadRequest, NotFound),
    )
)
async def report_first_token(
    service: ServiceContext, request: Request, reservation_id: str
) -> Response:
    service.selector.report_first_token(reservation_id, core_time())
    return json_response(lifecycle_response(service, reservation_id))


@PAIRS.declare_route(
    RouteSpec(
        "POST",
        "/reservations/{reservation_id}/move",
        "move_leg",
        "Move one leg of a pair to another rank",
        _PAIR,
        may_call=tenant_scoped(CALLER),
        detail="For a leg whose engine failed. The other leg stays where it is; if that is "
        "cheaper, one rank does both from now on. The answer has the new ranks and hand-over. A "
        "leg that was moved off an unhealthy or draining rank already stays, and its move is "
        "confirmed.",
        in_path=request_parameters.RESERVATION_ID,
        body=BodySpec(LegMove, {"decode": {"leg": "decode"}, "prefill": {"leg": "prefill"}}),
        refusals=(*BODY_ERRORS, NotFound, Conflict, NoEligibleRank),
    )
)
async def move_leg(
    service: ServiceContext, request: Request, reservation_id: str, body: LegMove
) -> Response:
    pairs, mover = service.selector.pairs, service.mover
    pair = pairs.book.find_pair(reservation_id)
    # A leg that the selector has moved already needs only its new hand-over.
    if pair is not None and mover is not None and mover.take_moved_leg(reservation_id, body.leg):
        return json_response(pair.answer)
    return json_response(pairs.move_leg(reservation_id, body.leg, core_time()))
