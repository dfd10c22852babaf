"""Endpoints that compare policies on live traffic: the shadow policy and experiments."""

import logging
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from select_service.api import request_parameters
from select_service.api.endpoints.policies import policy_scope
from select_service.api.service_context import ServiceContext, core_time, trace_fields
from select_service.auth.roles import OPERATOR, service_wide
from select_service.base.cooperative import collect_cooperatively, encode_cooperatively
from select_service.base.errors import BadRequest, Conflict, InvalidBody, NotFound
from select_service.core.analysis.comparison.comparison_views import experiment_view, shadow_state
from select_service.core.analysis.comparison.switchback_experiment import SwitchbackExperiment
from select_service.core.placement.policies.policy_registry import parse_policy_choice
from select_service.http.body_codec import json_response
from select_service.http.endpoint import (
    BODY_ERRORS,
    BodySpec,
    EndpointGroup,
    ResponseSpec,
    RouteSpec,
)
from select_service.schemas.experiments import (
    ExperimentList,
    ExperimentRequest,
    ExperimentView,
    ShadowState,
)
from select_service.schemas.policies import ScopeOfPolicy

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
_EXAMPLE_BEGUN: dict[str, Any] = {
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
_EXAMPLE_RESULTS: dict[str, Any] = {
    **_EXAMPLE_BEGUN,
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

EXPERIMENTS = EndpointGroup(
    "comparing", "Compare policies on live traffic: a shadow policy, and experiments."
)


@EXPERIMENTS.declare_route(
    RouteSpec(
        "GET",
        "/shadow",
        "shadow",
        "Show the choices of the shadow policy",
        {200: ResponseSpec("Sums and means since the start.", ShadowState, _SHADOW)},
        may_call=service_wide(OPERATOR),
        detail="Evaluates the policy of `--shadow-policy` on the recorded inputs of actual "
        "decisions. 404 without a shadow policy.",
        refusals=(NotFound,),
    )
)
async def show_shadow(service: ServiceContext, request: Request) -> Response:
    found = service.followers.evaluation.shadow
    if found is None:
        raise NotFound("no shadow policy is configured: start the service with --shadow-policy")
    return json_response(shadow_state(found.make_report()))


@EXPERIMENTS.declare_route(
    RouteSpec(
        "POST",
        "/experiments",
        "begin_experiment",
        "Begin an experiment that alternates a scope between two policies",
        {201: ResponseSpec("The new experiment.", ExperimentView, {**_EXAMPLE_BEGUN, "pairs": []})},
        may_call=service_wide(OPERATOR),
        detail="The whole scope uses one policy for a time slot, then the other, in random order "
        "within each pair of slots. The experiment measures the time from each booking to "
        "`prefill_complete`. 409 while another experiment runs in the scope.",
        body=BodySpec(
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
        refusals=(*BODY_ERRORS, Conflict),
        is_strict=True,
    )
)
async def begin_experiment(
    service: ServiceContext, request: Request, body: ExperimentRequest
) -> Response:
    first, second = (
        parse_policy_choice(text, f"policies[{at}]") for at, text in enumerate(body.policies)
    )
    if first == second:
        raise InvalidBody(f"`policies` must be two different policies, got `{first}` twice")
    given = body.scope if isinstance(body.scope, ScopeOfPolicy) else ScopeOfPolicy()
    scope = policy_scope(given.resolved_model, given.resolved_tenant)
    experiment = service.followers.evaluation.experiments.begin_experiment(
        (first, second), body.slot_s, scope, core_time()
    )
    _log_experiment("experiment started", experiment, request)
    await collect_cooperatively(service.fleet.policies.apply_to_partitions())
    return json_response(experiment_view(experiment, core_time(), True), 201)


@EXPERIMENTS.declare_route(
    RouteSpec(
        "GET",
        "/experiments",
        "list_experiments",
        "List experiments",
        {
            200: ResponseSpec(
                "Experiments, oldest first.", ExperimentList, {"experiments": [_EXAMPLE_RESULTS]}
            )
        },
        may_call=service_wide(OPERATOR),
        detail="Includes all running experiments and the latest ended experiments.",
    )
)
async def list_experiments(service: ServiceContext, request: Request) -> Response:
    all_experiments = list(service.followers.evaluation.experiments)
    rows = await encode_cooperatively(
        experiment_view(each, core_time(), False) for each in all_experiments
    )
    return json_response({"experiments": rows})


@EXPERIMENTS.declare_route(
    RouteSpec(
        "GET",
        "/experiments/{experiment_id}",
        "get_experiment",
        "Show an experiment with its results",
        {
            200: ResponseSpec(
                "The experiment with all pairs.",
                ExperimentView,
                {**_EXAMPLE_RESULTS, "pairs": _PAIRS},
            )
        },
        may_call=service_wide(OPERATOR),
        in_path=request_parameters.EXPERIMENT_ID,
        refusals=(BadRequest, NotFound),
    )
)
async def show_experiment(
    service: ServiceContext, request: Request, experiment_id: str
) -> Response:
    experiment = service.followers.evaluation.experiments.get_experiment(experiment_id)
    return json_response(experiment_view(experiment, core_time(), True))


@EXPERIMENTS.declare_route(
    RouteSpec(
        "DELETE",
        "/experiments/{experiment_id}",
        "end_experiment",
        "End an experiment",
        {
            200: ResponseSpec(
                "The ended experiment with its results.",
                ExperimentView,
                {
                    **_EXAMPLE_RESULTS,
                    "state": "ended",
                    "ending": "deleted",
                    "current": None,
                    "pairs": _PAIRS,
                },
            )
        },
        may_call=service_wide(OPERATOR),
        detail="The policy set before applies again. Results remain readable until later "
        "experiments replace them. Idempotent.",
        in_path=request_parameters.EXPERIMENT_ID,
        refusals=(BadRequest, NotFound),
    )
)
async def end_experiment(service: ServiceContext, request: Request, experiment_id: str) -> Response:
    experiment = service.followers.evaluation.experiments.end_experiment(experiment_id, core_time())
    _log_experiment("experiment ended", experiment, request)
    await collect_cooperatively(service.fleet.policies.apply_to_partitions())
    return json_response(experiment_view(experiment, core_time(), True))


def _log_experiment(what: str, experiment: SwitchbackExperiment, request: Request) -> None:
    fields = {
        "experiment_id": experiment.id,
        **experiment.scope._asdict(),
        "policies": list(map(str, experiment.policies)),
    }
    log.warning(what, extra={"fields": trace_fields(request) | fields})
