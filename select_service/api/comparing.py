"""Policies compared while the fleet serves."""

import logging
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from select_service.access.roles import OPERATOR, whole_service
from select_service.api import parameters
from select_service.api.policies import policy_scope
from select_service.api.service import Service, now, trace_of
from select_service.bodies.comparing import (
    ExperimentList,
    ExperimentRequest,
    ExperimentView,
    ShadowState,
)
from select_service.bodies.policies import ScopeOfPolicy
from select_service.core.comparing.experiment import Experiment
from select_service.core.comparing.views import experiment_view, shadow_state
from select_service.core.decide.policies import choice_named
from select_service.errors import BadRequest, Conflict, InvalidBody, NotFound
from select_service.http.codec import json_response
from select_service.http.endpoint import WITH_BODY, Answer, Body, Noun, Route
from select_service.turns import encoded_in_turns, in_turns

log = logging.getLogger("select_service.experiments")

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
_BEGUN: dict[str, Any] = {
    "experiment_id": "1",
    "state": "running",
    "ending": None,
    "model_name": "llama-3-8b",
    "tenant_id": None,
    "policies": [
        {"policy": "reference", "requests": 0, "mean_ttft_s": None},
        {"policy": "work", "requests": 0, "mean_ttft_s": None},
    ],
    "slot_s": 180.0,
    "dropped_s": 30.0,
    "seconds": 0.0,
    "current": "work",
    "pairs_measured": 0,
    "pairs_left_out": 0,
    "difference": None,
    "unreported": 0,
    "unfollowed": 0,
}
_FOUND: dict[str, Any] = {
    **_BEGUN,
    "policies": [
        {"policy": "reference", "requests": 8112, "mean_ttft_s": 1.25},
        {"policy": "work", "requests": 8097, "mean_ttft_s": 0.75},
    ],
    "seconds": 720.5,
    "pairs_measured": 2,
    "difference": {
        "mean_s": -0.5,
        "low_s": -1.135,
        "high_s": 0.135,
        "confidence": 0.95,
        "relative": -0.4,
    },
}
_PAIRS = [
    {"began": 1, "requests": [4060, 4041], "mean_ttft_s": [1.2, 0.75]},
    {"began": 0, "requests": [4052, 4056], "mean_ttft_s": [1.3, 0.75]},
]

COMPARING = Noun("comparing", "Which policy is better for one's own traffic.")


@COMPARING.declare(
    Route(
        "GET",
        "/shadow",
        "shadow",
        "What another policy would have chosen",
        {200: Answer("Sums and means since the start.", ShadowState, _SHADOW)},
        may_call=whole_service(OPERATOR),
        detail="The policy of `--shadow-policy`, on the numbers of the decisions that were made. "
        "Refused when there is none.",
        refusals=(NotFound,),
    )
)
async def shadow(service: Service, request: Request) -> Response:
    found = service.selector.hindsight.shadow
    if found is None:
        raise NotFound("no policy looks on: the service runs without --shadow-policy")
    return json_response(shadow_state(found.report()))


@COMPARING.declare(
    Route(
        "POST",
        "/experiments",
        "begin_experiment",
        "Switch a scope between two policies, and measure",
        {201: Answer("It has begun.", ExperimentView, {**_BEGUN, "pairs": []})},
        may_call=whole_service(OPERATOR),
        detail="All of the scope follows one policy for a slot of time, then the other, in random "
        "order in each pair of slots. Measured is the time from each booking to "
        "`prefill_complete`. Refused where another experiment runs in the scope.",
        body=Body(
            ExperimentRequest,
            {
                "a model": {
                    "policies": ["reference", "work"],
                    "slot_s": 180.0,
                    "scope": {"model_name": "llama-3-8b"},
                },
                "everything": {"policies": ["work", "work+strict-tail"]},
            },
        ),
        refusals=(*WITH_BODY, Conflict),
        is_strict=True,
    )
)
async def begin(service: Service, request: Request, body: ExperimentRequest) -> Response:
    first, second = (choice_named(text, f"policies[{at}]") for at, text in enumerate(body.policies))
    if first == second:
        raise InvalidBody(f"`policies`: two different ones are compared, got `{first}` twice")
    given = body.scope if isinstance(body.scope, ScopeOfPolicy) else ScopeOfPolicy()
    scope = policy_scope(given.of_model, given.of_tenant)
    selector = service.selector
    experiment = selector.hindsight.experiments.begin((first, second), body.slot_s, scope, now())
    _tell("an experiment began", experiment, request)
    await in_turns(selector.fleet.policies.following())
    return json_response(experiment_view(experiment, now(), True), 201)


@COMPARING.declare(
    Route(
        "GET",
        "/experiments",
        "list_experiments",
        "List experiments",
        {200: Answer("The oldest first.", ExperimentList, {"experiments": [_FOUND]})},
        may_call=whole_service(OPERATOR),
        detail="Those that run, and of those that have ended the last ones.",
    )
)
async def listing(service: Service, request: Request) -> Response:
    known = list(service.selector.hindsight.experiments)
    rows = await encoded_in_turns(experiment_view(each, now(), False) for each in known)
    return json_response({"experiments": rows})


@COMPARING.declare(
    Route(
        "GET",
        "/experiments/{experiment_id}",
        "get_experiment",
        "Show what an experiment has found",
        {200: Answer("With all pairs.", ExperimentView, {**_FOUND, "pairs": _PAIRS})},
        may_call=whole_service(OPERATOR),
        in_path=parameters.EXPERIMENT_ID,
        refusals=(BadRequest, NotFound),
    )
)
async def show(service: Service, request: Request, experiment_id: str) -> Response:
    experiment = service.selector.hindsight.experiments.get(experiment_id)
    return json_response(experiment_view(experiment, now(), True))


@COMPARING.declare(
    Route(
        "DELETE",
        "/experiments/{experiment_id}",
        "end_experiment",
        "End an experiment",
        {
            200: Answer(
                "It has ended, and this is what it has found.",
                ExperimentView,
                {
                    **_FOUND,
                    "state": "ended",
                    "ending": "deleted",
                    "current": None,
                    "pairs": _PAIRS,
                },
            )
        },
        may_call=whole_service(OPERATOR),
        detail="The policy that was set before counts again. What was found can still be read, "
        "until later experiments take its place. Ending one again changes nothing.",
        in_path=parameters.EXPERIMENT_ID,
        refusals=(BadRequest, NotFound),
    )
)
async def end(service: Service, request: Request, experiment_id: str) -> Response:
    selector = service.selector
    experiment = selector.hindsight.experiments.end(experiment_id, now())
    _tell("an experiment was ended", experiment, request)
    await in_turns(selector.fleet.policies.following())
    return json_response(experiment_view(experiment, now(), True))


def _tell(what: str, experiment: Experiment, request: Request) -> None:
    fields = {
        "experiment_id": experiment.id,
        **experiment.scope._asdict(),
        "policies": list(map(str, experiment.policies)),
    }
    log.warning(what, extra={"fields": trace_of(request) | fields})
