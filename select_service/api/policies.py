"""By which policy ranks are chosen, changed at run time."""

import logging
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from select_service.access.roles import OPERATOR, whole_service
from select_service.api.parameters import SCOPE, scope_filter
from select_service.api.service import Service, trace_of
from select_service.bodies.policies import PolicyChange, PolicyState
from select_service.core.decide.policies import checked_choice
from select_service.core.fleet.scoped_policies import PolicyScope
from select_service.core.views.policies import policy_state
from select_service.errors import BadRequest, Conflict, NotFound, UnknownField
from select_service.http.codec import json_response
from select_service.http.endpoint import WITH_BODY, Answer, Body, Noun, Route
from select_service.turns import in_turns

log = logging.getLogger("select_service.policy")

_CHOSEN = {"policy": "work", "options": ["decode-sensitive"]}
_STATE: Mapping[str, Any] = {
    "default": {"policy": "work", "options": []},
    "rules": [{"model_name": "llama-3-8b", "tenant_id": None, **_CHOSEN}],
    "tried": [],
    "partitions": [{"model_name": "llama-3-8b", "tenant_id": "default", **_CHOSEN}],
    "kept": True,
}

POLICIES = Noun("policies", "How a rank is chosen.")


@POLICIES.declare(
    Route(
        "GET",
        "/policy",
        "policies",
        "Which policy counts where",
        {200: Answer("The rules, and what follows from them.", PolicyState, _STATE)},
        may_call=whole_service(OPERATOR),
    )
)
async def policies(service: Service, request: Request) -> Response:
    return _state(service)


@POLICIES.declare(
    Route(
        "PUT",
        "/policy",
        "set_policy",
        "Set the policy of a scope",
        {200: Answer("The rules that count now.", PolicyState, _STATE)},
        may_call=whole_service(OPERATOR),
        detail="From the next decision on, for one tenant of a model, for all tenants of a model, "
        "or for all models. The most specific rule wins, and partitions that come later follow it, "
        "too. What is booked stays. Kept over a restart with --snapshot-path. Refused where an "
        "experiment runs.",
        body=Body(
            PolicyChange,
            {
                "everything": {"policy": "reference"},
                "a model": {"model_name": "llama-3-8b", **_CHOSEN},
            },
        ),
        refusals=(*WITH_BODY, Conflict),
        is_strict=True,
    )
)
async def set_policy(service: Service, request: Request, body: PolicyChange) -> Response:
    scope = policy_scope(body.of_model, body.of_tenant)
    choice = checked_choice(body.policy, body.options)
    service.selector.fleet.policies.put(scope, choice)
    return await _changed(service, request, scope)


@POLICIES.declare(
    Route(
        "DELETE",
        "/policy",
        "remove_policy",
        "Take the policy of a scope back",
        {200: Answer("The rules that count now.", PolicyState, _STATE)},
        may_call=whole_service(OPERATOR),
        detail="The scope is named as it was set. What counts there then is the most specific of "
        "the rules that are left, or else the policy that the process was started with.",
        query=SCOPE,
        refusals=(BadRequest, NotFound, Conflict, UnknownField),
        is_strict=True,
    )
)
async def remove_policy(service: Service, request: Request, query: Mapping[str, str]) -> Response:
    scope = policy_scope(*scope_filter(query))
    service.selector.fleet.policies.remove(scope)
    return await _changed(service, request, scope)


def policy_scope(model_name: str | None, tenant_id: str | None) -> PolicyScope:
    """Raises BadRequest for a tenant without its model."""
    if model_name is None and tenant_id is not None:
        raise BadRequest("a `tenant_id` is that of a model: give its `model_name`, too")
    return PolicyScope(model_name, tenant_id)


async def _changed(service: Service, request: Request, scope: PolicyScope) -> Response:
    """The answer once all partitions follow."""
    fleet = service.selector.fleet
    choice = fleet.policies.rules.get(scope)
    said = None if choice is None else [choice.policy, *choice.options]
    fields = trace_of(request) | {**scope._asdict(), "policy": said}
    log.warning("the policy of a scope changed", extra={"fields": fields})
    await in_turns(fleet.policies.following())
    if service.kept_policies is not None:
        await service.kept_policies.keep()
    return _state(service)


def _state(service: Service) -> Response:
    file = service.kept_policies
    kept = file is not None and file.is_kept
    return json_response(policy_state(service.selector.fleet, kept))
