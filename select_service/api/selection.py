"""POST /select and /select_and_reserve."""

import asyncio
import logging
from contextlib import suppress
from math import isfinite
from time import perf_counter
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from select_service.access.roles import CALLER, within_tenants
from select_service.api.long_prompts import may_book, read_ahead
from select_service.api.samples import RANK, SCOPE, TOKENS
from select_service.api.service import Service, now, trace_of
from select_service.api.using import booking, queued
from select_service.bodies.prompts import PromptFields
from select_service.bodies.selection import SelectAndReserveRequest, Selection, SelectRequest
from select_service.core.admission.waiting import Ticket
from select_service.core.decide.prompt import is_long
from select_service.core.decisions import Decision
from select_service.errors import (
    CapacityShed,
    Conflict,
    Degraded,
    NoEligibleRank,
    NoWorkers,
    Overloaded,
    QueueFull,
    QueueTimeout,
    SelectError,
    ShuttingDown,
)
from select_service.http.codec import json_response
from select_service.http.connection import ClientGone, connection_of
from select_service.http.endpoint import WITH_BODY, Answer, Body, HeaderParameter, Noun, Route
from select_service.http.request_warnings import not_heeded, unknown_policy_class, warn

log = logging.getLogger("select_service.decisions")

POLICY_CLASS_HEADER = "x-dynamo-meta-policy-class"

PROMPT_DETAIL = (
    "The prompt is given in one of three forms, looked at in this order: `mm_routing_info` with a "
    "`routing_token_ids` that is not empty; `token_ids`; or the three fields `block_hashes`, "
    "`sequence_hashes` (of equal length) and `isl_tokens` (greater than 0). Hashes may be signed "
    "or unsigned 64-bit integers."
)


def unused_hashes(body: PromptFields) -> str | None:
    """What to say of a prompt that came in two forms."""
    if body.token_ids is None or (body.block_hashes is None and body.sequence_hashes is None):
        return None
    return "token_ids are given, so block_hashes, sequence_hashes and isl_tokens are not used"


_FULL = (Overloaded, CapacityShed, Degraded, QueueFull, QueueTimeout)
"""Refusals of a fleet that is full; all of them name a time in `Retry-After`."""
POLICY_CLASS = (
    HeaderParameter(
        POLICY_CLASS_HEADER,
        "Policy family, or the name of an explicit class, in whose queue the request waits.",
    ),
)
_HASHED_PROMPT = {
    "block_hashes": [11, 12, 13, 14],
    "sequence_hashes": [21, 22, 23, 24],
    "isl_tokens": 70,
}
_CHOSEN = {
    **SCOPE,
    **RANK,
    "endpoint": "http://worker-1:8000",
    "block_size": 16,
    "overlap": {"longest_matched": 32, "gpu": 32, "dp": {"0": 32, "1": 0}, "cpu": 32, "disk": 32},
    "effective_prefill_tokens": 38,
}

SELECTION = Noun("selection", "Choose the rank that should run a prompt.")


@SELECTION.declare(
    Route(
        "POST",
        "/select_and_reserve",
        "select_and_reserve",
        "Choose a rank and book the load on it",
        {
            200: Answer(
                "The chosen rank.",
                Selection,
                {"selection_id": "turn-17", "reservation_id": "request-123", **_CHOSEN},
            )
        },
        may_call=within_tenants(CALLER),
        detail="Choosing and booking are one step: of two requests that arrive together, the "
        "second sees the load of the first. A refused request books nothing. " + PROMPT_DETAIL,
        headers=POLICY_CLASS,
        body=Body(
            SelectAndReserveRequest,
            {
                "tokens": {"reservation_id": "request-123", **SCOPE, **TOKENS},
                "hashes": {
                    "selection_id": "turn-17",
                    "reservation_id": "request-123",
                    **SCOPE,
                    **_HASHED_PROMPT,
                },
                "constrained": {
                    **SCOPE,
                    **TOKENS,
                    "allowed_worker_ids": [1, 2],
                    "routing_constraints": {
                        "required_taints": ["h100"],
                        "preferred_taints": {"zone-a": 0.5},
                    },
                    "router_config_override": {"router_temperature": 0.2},
                },
            },
            unused=unused_hashes,
        ),
        refusals=(*WITH_BODY, Conflict, NoWorkers, NoEligibleRank, *_FULL),
    )
)
async def select_and_reserve(
    service: Service, request: Request, body: SelectAndReserveRequest
) -> Response:
    """Choose a rank and book the load on it in one step."""
    warn_of_overrides(service, request, body)
    read = await read_ahead(service, body) if is_long(body) else None
    await may_book(service, body)
    if connection_of(request).gone:
        raise ClientGone  # its booking would only hold load until it expires
    with booking(service, request, body, body.reservation_id) as booked:
        started = perf_counter()
        explain = log.isEnabledFor(logging.DEBUG)
        outcome = service.selector.select_and_reserve(
            body, now(), policy_class(service, request, body), explain, read
        )
        service.metrics.selection("/select_and_reserve", perf_counter() - started)
        decision = await _decided(service, request, outcome)
        reservation_id = decision.selection.reservation_id
        assert isinstance(reservation_id, str)
        booked(reservation_id)
    return json_response(decision.selection)


@SELECTION.declare(
    Route(
        "POST",
        "/select",
        "select",
        "Choose a rank without booking",
        {200: Answer("The chosen rank.", Selection, {"selection_id": "turn-17", **_CHOSEN})},
        may_call=within_tenants(CALLER),
        detail="Callers that ask at the same moment all see the same load and meet on one rank; "
        "prefer /select_and_reserve. " + PROMPT_DETAIL,
        headers=POLICY_CLASS,
        body=Body(
            SelectRequest,
            {
                "impatient": {
                    **SCOPE,
                    **TOKENS,
                    "priority_tier": "premium",
                    "strict_priority": 1,
                    "timeout_ms": 2000,
                },
                "tokens": {"selection_id": "turn-17", **SCOPE, **TOKENS},
                "pinned": {**SCOPE, **_HASHED_PROMPT, "pinned_worker": RANK},
            },
            unused=unused_hashes,
        ),
        refusals=(*WITH_BODY, NoWorkers, NoEligibleRank, *_FULL),
    )
)
async def select(service: Service, request: Request, body: SelectRequest) -> Response:
    """Choose a rank; nothing is booked."""
    warn_of_overrides(service, request, body)
    read = await read_ahead(service, body) if is_long(body) else None
    started = perf_counter()
    explain = log.isEnabledFor(logging.DEBUG)
    wanted = policy_class(service, request, body)
    outcome = service.selector.select(body, now(), wanted, explain, read)
    service.metrics.selection("/select", perf_counter() - started)
    decision = await _decided(service, request, outcome)
    return json_response(decision.selection)


def policy_class(service: Service, request: Request, body: SelectRequest) -> str | None:
    """What the header says, with a warning where nothing is called so.

    Headers are looked through only when it matters.
    """
    rules = service.selector.gate.rules
    wanted = None if rules is None else request.headers.get(POLICY_CLASS_HEADER)
    if rules is None or not wanted:
        return None
    profile = rules.profile(body.model_name)
    if not profile.knows(wanted):
        warn(request, [unknown_policy_class(wanted, profile.names(), profile.default_family)])
    return wanted


def warn_of_overrides(service: Service, request: Request, body: SelectRequest) -> None:
    """Where the policy that decides has no use for what the request overrides."""
    override = body.router_config_override
    names = [] if override is None else override.of_reference()
    partition = service.selector.prompts.partition(body) if names else None
    if partition is not None and (policy := partition.placing.policy.name) != "reference":
        warn(request, [not_heeded(names, policy)])


async def _decided(service: Service, request: Request, outcome: Decision | Ticket) -> Decision:
    if isinstance(outcome, Ticket):
        outcome = await _waited(service, request, outcome)
    if "span" in request.scope:
        request.scope["span"].chose(outcome, service.selector.ring)
    _log_decision(outcome, request)
    return outcome


async def _waited(service: Service, request: Request, ticket: Ticket) -> Decision:
    """What becomes of a request that must wait.  A client that goes away leaves the queue at once.

    Raises SelectError, ClientGone.
    """
    gate = service.selector.gate
    over, connection = asyncio.Event(), connection_of(request)
    ticket.settled = over.set
    left_s = ticket.deadline - now() if isfinite(ticket.deadline) else None
    try:
        with queued(service, request, ticket), suppress(TimeoutError):
            connection.tell(over.set)
            async with asyncio.timeout(left_s):
                await over.wait()
        if connection.gone:
            _give_back(service, ticket)
            raise ClientGone
        gate.time_out(ticket, now())
    except asyncio.CancelledError:
        raise ShuttingDown("the service is ending; nothing was done") from None
    finally:
        connection.forget()
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
        "candidates": decision.candidates,
    }
    if waited is not None:
        fields |= {
            "policy_class": waited.policy_class,
            "queue_position": waited.position,
            "queue_wait_s": round(waited.seconds, 6),
        }
    log.debug("decision", extra={"fields": {k: v for k, v in fields.items() if v is not None}})
