"""Endpoints that change the placement policy at run time."""

import logging
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from select_service.api.request_parameters import SCOPE_PARAMETERS, scope_filter
from select_service.api.service_context import ServiceContext, trace_fields
from select_service.auth.roles import OPERATOR, service_wide
from select_service.base.cooperative import collect_cooperatively
from select_service.base.errors import BadRequest, Conflict, NotFound, UnknownField
from select_service.core.placement.policies.policy_registry import validate_policy_choice
from select_service.core.registry.fleet.scoped_policies import PolicyScope
from select_service.core.views.policy_views import policy_state
from select_service.http.body_codec import json_response
from select_service.http.endpoint import (
    BODY_ERRORS,
    BodySpec,
    EndpointGroup,
    ResponseSpec,
    RouteSpec,
)
from select_service.schemas.policies import PolicyChange, PolicyState

log = logging.getLogger("select_service.policy")

_CHOSEN = {"policy": "work", "options": ["decode-sensitive"]}
_STATE: Mapping[str, Any] = {
    "default": {"policy": "work", "options": []},
    "rules": [{"model_name": "llama-3-8b", "tenant_id": None, **_CHOSEN}],
    "tried": [],
    "partitions": [{"model_name": "llama-3-8b", "tenant_id": "default", **_CHOSEN}],
    "kept": True,
}

POLICIES = EndpointGroup("policies", "Placement policies: how a rank is chosen.")


@POLICIES.declare_route(
    RouteSpec(
        "GET",
        "/policy",
        "policies",
        "Show the placement policies",
        {
            200: ResponseSpec(
                "Rules, and the resulting policy of each partition.", PolicyState, _STATE
            )
        },
        may_call=service_wide(OPERATOR),
    )
)
async def show_policies(service: ServiceContext, request: Request) -> Response:
    return _state_response(service)


@POLICIES.declare_route(
    RouteSpec(
        "PUT",
        "/policy",
        "set_policy",
        "Set the policy of a scope",
        {200: ResponseSpec("Effective rules.", PolicyState, _STATE)},
        may_call=service_wide(OPERATOR),
        detail="Takes effect with the next decision, for a tenant of a model, for all tenants of a "
        "model, or for all models. The most specific rule wins, also for partitions created later. "
        "Bookings are unaffected. Persisted with --snapshot-path. 409 while an experiment runs in "
        "the scope.",
        body=BodySpec(
            PolicyChange,
            {
                "everything": {"policy": "reference"},
                "a model": {"model_name": "llama-3-8b", **_CHOSEN},
            },
        ),
        refusals=(*BODY_ERRORS, Conflict),
        is_strict=True,
    )
)
async def set_policy(service: ServiceContext, request: Request, body: PolicyChange) -> Response:
    scope = policy_scope(body.resolved_model, body.resolved_tenant)
    choice = validate_policy_choice(body.policy, body.options)
    service.fleet.policies.put_rule(scope, choice)
    return await _apply_change(service, request, scope)


@POLICIES.declare_route(
    RouteSpec(
        "DELETE",
        "/policy",
        "remove_policy",
        "Remove the policy of a scope",
        {200: ResponseSpec("Effective rules.", PolicyState, _STATE)},
        may_call=service_wide(OPERATOR),
        detail="The scope must be exactly as it was set. Afterwards the most specific remaining "
        "rule applies, or else the policy that the process was started with.",
        query=SCOPE_PARAMETERS,
        refusals=(BadRequest, NotFound, Conflict, UnknownField),
        is_strict=True,
    )
)
async def remove_policy(
    service: ServiceContext, request: Request, query: Mapping[str, str]
) -> Response:
    scope = policy_scope(*scope_filter(query))
    service.fleet.policies.remove_rule(scope)
    return await _apply_change(service, request, scope)


def policy_scope(model_name: str | None, tenant_id: str | None) -> PolicyScope:
    """Return the scope.  Raises BadRequest for a tenant without a model."""
    if model_name is None and tenant_id is not None:
        raise BadRequest("`tenant_id` without `model_name`: give the model of the tenant, too")
    return PolicyScope(model_name, tenant_id)


async def _apply_change(service: ServiceContext, request: Request, scope: PolicyScope) -> Response:
    """Log the change and return the response once all partitions use the new policy."""
    fleet = service.fleet
    # None after a removal: the log line then has no policy for the scope.
    choice = fleet.policies.policy_rules.get(scope)
    policy_words = None if choice is None else [choice.policy, *choice.options]
    fields = trace_fields(request) | {**scope._asdict(), "policy": policy_words}
    log.warning("placement policy changed", extra={"fields": fields})
    await collect_cooperatively(fleet.policies.apply_to_partitions())
    await service.persistence.policy_store.write_policies()
    return _state_response(service)


def _state_response(service: ServiceContext) -> Response:
    is_written = service.persistence.policy_store.is_written
    return json_response(policy_state(service.fleet, is_written))
