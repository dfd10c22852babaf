"""Policies compared while the fleet serves."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from select_service.api.service import Service
from select_service.bodies.comparing import ShadowState
from select_service.core.comparing.views import shadow_state
from select_service.errors import NotFound
from select_service.http.codec import json_response
from select_service.http.endpoint import Answer, Noun, Route

_SHADOW: dict[str, Any] = {
    "shadow_policy": "reference",
    "skipped": 0,
    "backlog": 0,
    "policies": [
        {
            "policy": "work",
            "decisions": 200,
            "other": 50,
            "no_choice": 0,
            "partial": 0,
            "regret": 12.5,
            "lowest_cost": 300.0,
            "made": {"wait": 100.0, "prefill": 400.0},
            "shadow": {"wait": 900.0, "prefill": 50.0},
        }
    ],
}

COMPARING = Noun("comparing", "Which policy is better for one's own traffic.")


@COMPARING.declare(
    Route(
        "GET",
        "/shadow",
        "shadow",
        "What another policy would have chosen",
        {200: Answer("Sums and means since the start.", ShadowState, _SHADOW)},
        detail="The policy of `--shadow-policy`, on the numbers of the decisions that were made. "
        "Refused when there is none.",
        refusals=(NotFound,),
    )
)
async def shadow(service: Service, request: Request) -> Response:
    found = service.selector.shadow
    if found is None:
        raise NotFound("no policy looks on: the service runs without --shadow-policy")
    return json_response(shadow_state(found.report()))
