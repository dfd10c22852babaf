"""Why a prompt went where it went, and where it would go now."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from select_service.access.roles import CALLER, OPERATOR, within_tenants
from select_service.api import parameters
from select_service.api.long_prompts import read_ahead
from select_service.api.parameters import query_number, query_word, scope_filter
from select_service.api.samples import RANK, SCOPE, TOKENS
from select_service.api.selection import (
    POLICY_CLASS,
    PROMPT_DETAIL,
    policy_class,
    unused_hashes,
    warn_of_overrides,
)
from select_service.api.service import Service, grant_of, now
from select_service.bodies.common import U64, U64_MAX
from select_service.bodies.decisions import DecisionList, DecisionRow, DecisionView
from select_service.bodies.selection import SelectRequest
from select_service.core.decide.prompt import is_long
from select_service.core.views.decisions import DecisionFilter
from select_service.errors import BadRequest, NoEligibleRank, NotFound, NoWorkers, Overloaded
from select_service.http.codec import json_response
from select_service.http.endpoint import WITH_BODY, Answer, Body, Noun, QueryParameter, Route
from select_service.turns import encoded_in_turns

I64_MAX = 2**63 - 1
LISTED = 100
LISTED_MAX = 1000
"""Rows of GET /decisions: unless asked otherwise, and at most."""

_QUERY = (
    QueryParameter("worker_id", U64, "Only decisions for this worker."),
    QueryParameter(
        "limit", Annotated[int, Meta(ge=1, le=LISTED_MAX)], "So many decisions at most.", LISTED
    ),
)
_FACTS: dict[str, Any] = {
    "decision": 17,
    "seconds_ago": 2.5,
    "reservation_id": "request-123",
    **SCOPE,
    "policy": "reference",
    "isl_tokens": 70,
    "prompt_blocks": 4,
    "prompt_hash": "00c0ffee00c0ffee",
    "reserved": True,
    "choice": "cheapest",
    "candidate_count": 2,
}
_CANDIDATE = {
    **RANK,
    "chosen": True,
    "gpu_blocks": 2,
    "cpu_blocks": 2,
    "disk_blocks": 2,
    "external_blocks": 2,
    "leading_run": 0,
    "prefill_tokens": 0,
    "active_blocks": 1,
    "active_requests": 1,
    "booked_work_tokens": 0,
    "left_work_tokens": 0,
    "extra_wait_tokens": 0,
    "extra_prefill_tokens": 0,
    "weight": 1.0,
    "speed": 1.0,
    "factor": 1.0,
    "terms": {"cached_tokens": 32, "effective_prefill_tokens": 38, "decode": 5, "cost": 7.375},
}
_VIEW = {
    **_FACTS,
    "block_size": 16,
    "temperature": 0.0,
    "draw": 0.25,
    "reported_share": 1.0,
    "candidates": [_CANDIDATE],
}

DECISIONS = Noun("decisions", "Why a prompt went where it went, and where it would go now.")


@DECISIONS.declare(
    Route(
        "GET",
        "/decisions",
        "list_decisions",
        "List the last decisions, newest first",
        {
            200: Answer(
                "Decisions without their candidates.",
                DecisionList,
                {
                    "decisions": [{**_FACTS, **RANK, "cost": 7.375, "runner_up_cost": 9.5}],
                    "kept": 17,
                },
            )
        },
        may_call=within_tenants(CALLER, OPERATOR),
        detail="Of those that are kept, see `--decisions`. Refused when none are kept.",
        query=parameters.SCOPE + _QUERY,
        refusals=(BadRequest, NotFound),
    )
)
async def listing(service: Service, request: Request, query: Mapping[str, str]) -> Response:
    model_name, tenant_id = scope_filter(query)
    explanations = service.selector.explanations
    wanted = DecisionFilter(
        model_name=model_name,
        tenant_id=tenant_id,
        worker_id=query_number(query, "worker_id", 0, U64_MAX),
        limit=query_number(query, "limit", 1, LISTED_MAX) or LISTED,
        tenants=(tenants := grant_of(request).tenants),
    )
    rows = cast(list[DecisionRow], await encoded_in_turns(explanations.rows(wanted, now())))
    kept = len(explanations) if tenants is None else len(rows)
    return json_response(DecisionList(decisions=rows, kept=kept))


@DECISIONS.declare(
    Route(
        "GET",
        "/decisions/{decision_id}",
        "get_decision",
        "Show one decision with all terms of its candidates",
        {200: Answer("The newest decision with this id.", DecisionView, _VIEW)},
        may_call=within_tenants(CALLER, OPERATOR),
        detail="Named by its `selection_id` or its `reservation_id`, or with `by=number` by the "
        "`decision` of a list.",
        in_path=parameters.DECISION_ID,
        query=(QueryParameter("by", Literal["id", "number"], "What is in the path.", "id"),),
        refusals=(BadRequest, NotFound),
    )
)
async def show(
    service: Service, request: Request, decision_id: str, query: Mapping[str, str]
) -> Response:
    tenants, explanations = grant_of(request).tenants, service.selector.explanations
    if query_word(query, "by", ("id", "number")) == "id":
        return json_response(explanations.find(decision_id, now(), tenants))
    number = query_number({"decision_id": decision_id}, "decision_id", 1, I64_MAX) or 0
    return json_response(explanations.numbered(number, now(), tenants))


@DECISIONS.declare(
    Route(
        "POST",
        "/explain",
        "explain",
        "What /select would answer now, and why",
        {
            200: Answer(
                "A decision that was not made.",
                DecisionView,
                {**_VIEW, "decision": None, "seconds_ago": None, "reserved": False},
            )
        },
        may_call=within_tenants(CALLER, OPERATOR),
        detail="Takes the body of /select. Nothing is booked, counted or kept, and nobody waits: "
        "`would_wait` says whether the request would. Shed tiers are not looked at. "
        + PROMPT_DETAIL,
        headers=POLICY_CLASS,
        body=Body(SelectRequest, {"tokens": {**SCOPE, **TOKENS}}, unused=unused_hashes),
        refusals=(*WITH_BODY, NoWorkers, NoEligibleRank, Overloaded),
    )
)
async def explain(service: Service, request: Request, body: SelectRequest) -> Response:
    warn_of_overrides(service, request, body)
    read = await read_ahead(service, body) if is_long(body) else None
    return json_response(service.selector.explain(body, policy_class(service, request, body), read))
