"""Endpoints POST /select and POST /select_and_reserve."""

import asyncio
import logging
from contextlib import suppress
from math import isfinite
from time import perf_counter
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from select_service.api.example_values import EXAMPLE_RANK, EXAMPLE_SCOPE, EXAMPLE_TOKENS
from select_service.api.group_reservations import reserve_group
from select_service.api.prompt_preparation import prepare_prompt, wait_until_bookable
from select_service.api.quota import count_booking, count_queued
from select_service.api.service_context import ServiceContext, core_time, request_span, trace_fields
from select_service.auth.roles import CALLER, tenant_scoped
from select_service.base.errors import (
    CapacityShed,
    Conflict,
    DeadlineExceeded,
    ModelDegraded,
    NoEligibleRank,
    NoWorkers,
    Overloaded,
    PolicyClassFull,
    QueueFull,
    QueueTimeout,
    SelectError,
    ShuttingDown,
)
from select_service.core.admission.waiting_ticket import WaitingTicket
from select_service.core.decision_maker import (
    PlacementDecision,
)
from select_service.core.placement.prompt import ReadAheadPrompt
from select_service.core.selection_answers import (
    RETURNED_HASHES_MAX,
)
from select_service.http.body_codec import json_response
from select_service.http.client_connection import ClientGone, connection_of
from select_service.http.endpoint import (
    BODY_ERRORS,
    BodySpec,
    EndpointGroup,
    HeaderParameter,
    ResponseSpec,
    RouteSpec,
)
from select_service.http.request_warnings import (
    add_warnings,
    ignored_advisory,
    ignored_override,
    omitted_hashes,
    unknown_policy_class,
)
from select_service.schemas.prompts import PromptFields
from select_service.schemas.selection import SelectAndReserveRequest, Selection, SelectRequest

log = logging.getLogger("select_service.decisions")

POLICY_CLASS_HEADER = "x-dynamo-meta-policy-class"

PROMPT_DETAIL = (
    "Give the prompt in one of three forms, in this order of precedence: `mm_routing_info` with "
    "non-empty `routing_token_ids`; `token_ids`; or the three fields `block_hashes`, "
    "`sequence_hashes` (of equal length) and `isl_tokens` (greater than 0). Hashes may be signed "
    "or unsigned 64-bit integers."
)


def unused_hashes_warning(body: PromptFields) -> str | None:
    """Return a warning for a prompt given in two forms, or None."""
    if body.token_ids is None or (body.block_hashes is None and body.sequence_hashes is None):
        return None
    return "block_hashes, sequence_hashes and isl_tokens are ignored, because token_ids are given"


CAPACITY_ERRORS = (
    Overloaded,
    CapacityShed,
    ModelDegraded,
    PolicyClassFull,
    QueueFull,
    QueueTimeout,
    DeadlineExceeded,
)
"""Errors of a fleet without capacity; all send `Retry-After`."""
POLICY_CLASS_HEADERS = (
    HeaderParameter(
        POLICY_CLASS_HEADER,
        "Policy family or explicit class of the queue in which the request may wait.",
    ),
)
_HASHED_PROMPT = {
    "block_hashes": [11, 12, 13, 14],
    "sequence_hashes": [21, 22, 23, 24],
    "isl_tokens": 70,
}
_EXAMPLE_SELECTION = {
    **EXAMPLE_SCOPE,
    "routing_group": EXAMPLE_SCOPE["tenant_id"],
    **EXAMPLE_RANK,
    "endpoint": "http://worker-1:8000",
    "block_size": 16,
    "overlap": {"longest_matched": 32, "gpu": 32, "dp": {"0": 32, "1": 0}, "cpu": 32, "disk": 32},
    "effective_prefill_tokens": 38,
    "potential_decode_blocks": 17,
}

SELECTION = EndpointGroup("selection", "Choose the rank that should run a prompt.")


@SELECTION.declare_route(
    RouteSpec(
        "POST",
        "/select_and_reserve",
        "select_and_reserve",
        "Choose a rank and book the load on it",
        {
            200: ResponseSpec(
                "The chosen rank.",
                Selection,
                {
                    "selection_id": "turn-17",
                    "reservation_id": "turn-17",
                    "sequence_hashes": [21, -22, 23, 24],
                    "isl_tokens": 70,
                    "track_prefill_tokens": True,
                    **_EXAMPLE_SELECTION,
                },
            )
        },
        may_call=tenant_scoped(CALLER),
        detail="Choosing and booking are one atomic step: of two concurrent requests, the second "
        "sees the load of the first. A refused request books nothing. With `n` it makes so many "
        "reservations; the answer is the first, with the others in `more`. " + PROMPT_DETAIL,
        headers=POLICY_CLASS_HEADERS,
        body=BodySpec(
            SelectAndReserveRequest,
            {
                "tokens": {"reservation_id": "request-123", **EXAMPLE_SCOPE, **EXAMPLE_TOKENS},
                "hashes": {
                    "selection_id": "turn-17",
                    "model_name": EXAMPLE_SCOPE["model_name"],
                    "routing_group": EXAMPLE_SCOPE["tenant_id"],
                    **_HASHED_PROMPT,
                },
                "session": {
                    "selection_id": "turn-18",
                    "session_id": "conversation-7",
                    **EXAMPLE_SCOPE,
                    **EXAMPLE_TOKENS,
                },
                "constrained": {
                    **EXAMPLE_SCOPE,
                    **EXAMPLE_TOKENS,
                    "allowed_worker_ids": [1, 2],
                    "routing_constraints": {
                        "required_taints": ["h100"],
                        "preferred_taints": {"zone-a": 0.5},
                    },
                    "router_config_override": {"router_temperature": 0.2},
                },
            },
            unused_fields_warning=unused_hashes_warning,
        ),
        refusals=(*BODY_ERRORS, Conflict, NoWorkers, NoEligibleRank, *CAPACITY_ERRORS),
    )
)
async def select_and_reserve(
    service: ServiceContext, request: Request, body: SelectAndReserveRequest
) -> Response:
    """Choose a rank and book the load in one step."""
    warn_ignored_overrides(service, request, body)
    if body.advisory:
        add_warnings(request, [ignored_advisory()])
    read = await prepare_prompt(service, body)

    async def reserve(member: SelectAndReserveRequest) -> Selection:
        await _check_bookable(service, request, member)
        return await _reserve_rank(service, request, member, read)

    if body.n > 1:
        selection = await reserve_group(service, request, body, reserve)
    else:
        await _check_bookable(service, request, body)
        with count_booking(service, request, body, body.booking_id) as booked:
            selection = await _reserve_rank(service, request, body, read)
            booked(str(selection.reservation_id))
    if body.returns_hashes and selection.sequence_hashes is msgspec.UNSET:
        add_warnings(request, [omitted_hashes(RETURNED_HASHES_MAX)])
    return json_response(selection)


async def _check_bookable(
    service: ServiceContext, request: Request, body: SelectAndReserveRequest
) -> None:
    """Wait until booking is a bounded step.  Raises ClientGone, ShuttingDown."""
    await wait_until_bookable(service, body)
    if connection_of(request).is_gone:
        raise ClientGone  # a booking for a gone client would hold load until its expiry


async def _reserve_rank(
    service: ServiceContext,
    request: Request,
    body: SelectAndReserveRequest,
    read: ReadAheadPrompt | None,
) -> Selection:
    """Choose a rank and book it, perhaps after a wait in the queue."""
    started = perf_counter()
    explain = log.isEnabledFor(logging.DEBUG)
    policy_class = requested_policy_class(service, request, body)
    outcome = service.selector.select_and_reserve(body, core_time(), policy_class, explain, read)
    service.metrics.record_selection("/select_and_reserve", perf_counter() - started)
    return (await await_decision(service, request, outcome)).selection


@SELECTION.declare_route(
    RouteSpec(
        "POST",
        "/select",
        "select",
        "Choose a rank without booking",
        {
            200: ResponseSpec(
                "The chosen rank.", Selection, {"selection_id": "turn-17", **_EXAMPLE_SELECTION}
            )
        },
        may_call=tenant_scoped(CALLER),
        detail="Concurrent callers all see the same load and may choose the same rank; prefer "
        "/select_and_reserve. " + PROMPT_DETAIL,
        headers=POLICY_CLASS_HEADERS,
        body=BodySpec(
            SelectRequest,
            {
                "impatient": {
                    **EXAMPLE_SCOPE,
                    **EXAMPLE_TOKENS,
                    "priority_tier": "premium",
                    "strict_priority": 1,
                    "timeout_ms": 2000,
                    "deadline_ms": 1500,
                    "fairness_id": "customer-4",
                },
                "tokens": {"selection_id": "turn-17", **EXAMPLE_SCOPE, **EXAMPLE_TOKENS},
                "pinned": {**EXAMPLE_SCOPE, **_HASHED_PROMPT, "pinned_worker": EXAMPLE_RANK},
            },
            unused_fields_warning=unused_hashes_warning,
        ),
        refusals=(*BODY_ERRORS, NoWorkers, NoEligibleRank, *CAPACITY_ERRORS),
    )
)
async def select_rank(service: ServiceContext, request: Request, body: SelectRequest) -> Response:
    """Choose a rank without booking."""
    warn_ignored_overrides(service, request, body)
    read = await prepare_prompt(service, body)
    started = perf_counter()
    explain = log.isEnabledFor(logging.DEBUG)
    policy_class = requested_policy_class(service, request, body)
    outcome = service.selector.select(body, core_time(), policy_class, explain, read)
    service.metrics.record_selection("/select", perf_counter() - started)
    decision = await await_decision(service, request, outcome)
    return json_response(decision.selection)


def requested_policy_class(
    service: ServiceContext, request: Request, body: SelectRequest
) -> str | None:
    """Return the class requested by header; attach a warning if there is no such class.

    Headers are searched only when queueing is on.
    """
    rules = service.gate.rules
    policy_class = None if rules is None else request.headers.get(POLICY_CLASS_HEADER)
    if rules is None or not policy_class:
        return None
    profile = rules.profile_of(body.model_name)
    if not profile.is_known_name(policy_class):
        add_warnings(
            request,
            [
                unknown_policy_class(
                    policy_class, profile.selectable_names(), profile.default_family
                )
            ],
        )
    return policy_class


def warn_ignored_overrides(service: ServiceContext, request: Request, body: SelectRequest) -> None:
    """Attach a warning if the request overrides parameters that the active policy ignores."""
    override = body.router_config_override
    names = [] if override is None else override.reference_only_names()
    partition = service.prompt_resolver.find_partition(body) if names else None
    if partition is not None and (policy := partition.placer.policy.name) != "reference":
        add_warnings(request, [ignored_override(names, policy)])


async def await_decision(
    service: ServiceContext, request: Request, outcome: PlacementDecision | WaitingTicket
) -> PlacementDecision:
    if isinstance(outcome, WaitingTicket):
        outcome = await _wait_in_queue(service, request, outcome)
    if (span := request_span(request.scope)) is not None:
        span.record_decision(outcome, service.followers.explanations.ring)
    _log_decision(outcome, request)
    return outcome


async def _wait_in_queue(
    service: ServiceContext, request: Request, ticket: WaitingTicket
) -> PlacementDecision:
    """Wait in the queue for a decision.  A client that disconnects leaves the queue at once.

    Raises SelectError, ClientGone.
    """
    gate = service.gate
    # One event ends the wait for all three causes: a decision, a disconnect, a shed or shutdown.
    over, connection = asyncio.Event(), connection_of(request)
    ticket.on_settled = over.set
    left_s = ticket.deadline - core_time() if isfinite(ticket.deadline) else None
    try:
        with count_queued(service, request, ticket), suppress(TimeoutError):
            connection.on_disconnect(over.set)
            async with asyncio.timeout(left_s):
                await over.wait()
        if connection.is_gone:
            _free_unclaimed(service, ticket)
            raise ClientGone
        gate.time_out_ticket(ticket, core_time())
    except asyncio.CancelledError:
        raise ShuttingDown("the service is shutting down; nothing was done") from None
    finally:
        connection.clear_on_disconnect()
        # Also on cancellation: an abandoned ticket would keep its place in the queue.
        gate.remove_disconnected(ticket)
    if isinstance(ticket.outcome, SelectError):
        raise ticket.outcome
    assert ticket.outcome is not None, "the end of the wait settles the ticket"
    return ticket.outcome


def _free_unclaimed(service: ServiceContext, ticket: WaitingTicket) -> None:
    """Free the reservation made in the same moment as the client disconnected."""
    if isinstance(ticket.outcome, PlacementDecision):
        reservation_id = ticket.outcome.selection.reservation_id
        if reservation_id is not msgspec.UNSET:
            service.selector.free_reservation(reservation_id, core_time())


def _log_decision(decision: PlacementDecision, request: Request) -> None:
    if not log.isEnabledFor(logging.DEBUG):
        return
    selection, waited = decision.selection, decision.queue_wait
    fields: dict[str, Any] = {
        "selection_id": selection.selection_id or None,
        "reservation_id": selection.reservation_id or None,
        **trace_fields(request),
        "model_name": selection.model_name,
        "tenant_id": selection.tenant_id,
        "worker_id": selection.worker_id,
        "dp_rank": selection.dp_rank,
        "candidates": decision.candidates,
    }
    if waited is not None:
        fields |= {
            "policy_class": waited.policy_class,
            "queue_position": waited.position,
            "queue_wait_s": round(waited.seconds, 6),
        }
    log.debug("decision", extra={"fields": {k: v for k, v in fields.items() if v is not None}})
