"""Endpoints that explain decisions: past ones, and a dry run for a given prompt."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from select_service.api import request_parameters
from select_service.api.endpoints.selection import (
    POLICY_CLASS_HEADERS,
    PROMPT_DETAIL,
    requested_policy_class,
    unused_hashes_warning,
    warn_ignored_overrides,
)
from select_service.api.example_values import EXAMPLE_RANK, EXAMPLE_SCOPE, EXAMPLE_TOKENS
from select_service.api.prompt_preparation import prepare_prompt
from select_service.api.request_parameters import (
    parse_choice,
    parse_number,
    parse_page,
    scope_filter,
)
from select_service.api.service_context import ServiceContext, core_time, request_grant
from select_service.auth.roles import CALLER, OPERATOR, tenant_scoped
from select_service.base.cooperative import encode_cooperatively
from select_service.base.errors import BadRequest, NoEligibleRank, NotFound, NoWorkers, Overloaded
from select_service.core.views.decision_views import DecisionFilter
from select_service.http.body_codec import json_response
from select_service.http.endpoint import (
    BODY_ERRORS,
    BodySpec,
    EndpointGroup,
    QueryParameter,
    ResponseSpec,
    RouteSpec,
)
from select_service.schemas.common import U64, U64_MAX
from select_service.schemas.decisions import DecisionList, DecisionRow, DecisionView
from select_service.schemas.pairs import ExplainRequest

I64_MAX = 2**63 - 1

_QUERY = (
    QueryParameter("worker_id", U64, "Only decisions for this worker."),
    QueryParameter(
        "limit",
        Annotated[int, Meta(ge=1, le=request_parameters.PAGE_ROWS_MAX)],
        "Maximum number of decisions.",
        request_parameters.PAGE_ROWS,
    ),
)
_FACTS: dict[str, Any] = {
    "decision": 17,
    "seconds_ago": 2.5,
    "reservation_id": "request-123",
    **EXAMPLE_SCOPE,
    "policy": "reference",
    "isl_tokens": 70,
    "prompt_blocks": 4,
    "prompt_hash": "00c0ffee00c0ffee",
    "reserved": True,
    "choice": "cheapest",
    "candidate_count": 2,
}
_CANDIDATE = {
    **EXAMPLE_RANK,
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

DECISIONS = EndpointGroup(
    "decisions", "Explain decisions: past ones, and the one a prompt would get now."
)


@DECISIONS.declare_route(
    RouteSpec(
        "GET",
        "/decisions",
        "list_decisions",
        "List recent decisions, newest first",
        {
            200: ResponseSpec(
                "Decisions without their candidates.",
                DecisionList,
                {
                    "decisions": [{**_FACTS, **EXAMPLE_RANK, "cost": 7.375, "runner_up_cost": 9.5}],
                    "kept": 17,
                },
            )
        },
        may_call=tenant_scoped(CALLER, OPERATOR),
        detail="Lists the recorded decisions (`--decisions`). 404 when recording is off.",
        query=request_parameters.SCOPE_PARAMETERS + _QUERY,
        refusals=(BadRequest, NotFound),
    )
)
async def list_decisions(
    service: ServiceContext, request: Request, query: Mapping[str, str]
) -> Response:
    model_name, tenant_id = scope_filter(query)
    explanations = service.followers.explanations
    decision_filter = DecisionFilter(
        model_name=model_name,
        tenant_id=tenant_id,
        worker_id=parse_number(query, "worker_id", 0, U64_MAX),
        limit=parse_page(query)[0],
        tenants=(tenants := request_grant(request).tenants),
    )
    rows = cast(
        list[DecisionRow],
        await encode_cooperatively(explanations.list_decisions(decision_filter, core_time())),
    )
    # The total would disclose the traffic of other tenants to a bound key.
    kept = len(explanations) if tenants is None else len(rows)
    return json_response(DecisionList(decisions=rows, kept=kept))


@DECISIONS.declare_route(
    RouteSpec(
        "GET",
        "/decisions/{decision_id}",
        "get_decision",
        "Show one decision with the cost terms of its candidates",
        {200: ResponseSpec("The newest decision with this id.", DecisionView, _VIEW)},
        may_call=tenant_scoped(CALLER, OPERATOR),
        detail="The path has the `selection_id` or the `reservation_id`, or with `by=number` the "
        "number `decision` from the list, with `by=pair` the number of its `pair`.",
        in_path=request_parameters.DECISION_ID,
        query=(
            QueryParameter(
                "by", Literal["id", "number", "pair"], "Kind of the id in the path.", "id"
            ),
        ),
        refusals=(BadRequest, NotFound),
    )
)
async def show_decision(
    service: ServiceContext, request: Request, decision_id: str, query: Mapping[str, str]
) -> Response:
    tenants, explanations = request_grant(request).tenants, service.followers.explanations
    kind = parse_choice(query, "by", ("id", "number", "pair"))
    if kind == "id":
        return json_response(explanations.find_decision(decision_id, core_time(), tenants))
    number = parse_number({"decision_id": decision_id}, "decision_id", 1, I64_MAX) or 0
    if kind == "pair":
        return json_response(explanations.find_pair_by_number(number, core_time(), tenants))
    return json_response(explanations.find_by_number(number, core_time(), tenants))


@DECISIONS.declare_route(
    RouteSpec(
        "POST",
        "/explain",
        "explain",
        "Explain what /select would answer now",
        {
            200: ResponseSpec(
                "Decision of the dry run.",
                DecisionView,
                {**_VIEW, "decision": None, "seconds_ago": None, "reserved": False},
            )
        },
        may_call=tenant_scoped(CALLER, OPERATOR),
        detail="Takes the body of /select, or with `pair` that of /select_pair. Nothing is booked, "
        "counted, recorded or queued: `would_wait` is true if the request would be queued, and "
        "`refusal` is the error if the queue would refuse it. Shed tiers are ignored. "
        + PROMPT_DETAIL,
        headers=POLICY_CLASS_HEADERS,
        body=BodySpec(
            ExplainRequest,
            {
                "tokens": {**EXAMPLE_SCOPE, **EXAMPLE_TOKENS},
                "pair": {**EXAMPLE_SCOPE, **EXAMPLE_TOKENS, "pair": True},
            },
            unused_fields_warning=unused_hashes_warning,
        ),
        refusals=(*BODY_ERRORS, NoWorkers, NoEligibleRank, Overloaded),
    )
)
async def explain_selection(
    service: ServiceContext, request: Request, body: ExplainRequest
) -> Response:
    warn_ignored_overrides(service, request, body)
    policy_class = requested_policy_class(service, request, body)
    explanations = service.followers.explanations
    read = await prepare_prompt(service, body)
    if body.pair:
        return json_response(explanations.explain_pair(body, policy_class, read, core_time()))
    return json_response(explanations.explain_request(body, policy_class, read, core_time()))
