"""Endpoints of discovery: sources of workers, and the persisted state."""

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from select_service.api.service_context import ServiceContext
from select_service.auth.roles import OPERATOR, REPLICA, service_wide
from select_service.http.body_codec import json_response
from select_service.http.endpoint import JSON, EndpointGroup, ResponseSpec, RouteSpec
from select_service.schemas.discovery import DiscoveryView
from select_service.schemas.persisted_state import PersistedState
from select_service.schemas.workers import WorkerRegistration

_EXAMPLE_VIEW = {
    "sources": [
        {
            "name": "workers-file",
            "kind": "file",
            "place": "/etc/select-service/workers.yaml",
            "read_s": 12.4,
            "error": None,
            "readings": 3,
            "failures": 0,
            "desired": 8,
            "owned": 8,
            "leaving": 1,
            "conflicts": 1,
            "refused": 0,
            "conflicting": {"7": "HTTP"},
            "reasons": {},
            "patched": [3],
            "deleted": [],
            "withheld": 1,
            "unanswered": {"http://vllm-9:8000": "cannot connect to vllm-9:8000"},
        }
    ],
    "pending": 0,
}

_EXAMPLE_WORKER = WorkerRegistration(
    worker_id=1, model_name="qwen", endpoint="http://vllm-0:8000", block_size=16
)
_EXAMPLE_STATE = {
    "workers": [
        {
            "given": msgspec.to_builtins(_EXAMPLE_WORKER),
            "source": "workers-file",
            "said": None,
            "drain": None,
        }
    ],
    "deleted": [],
    "thresholds": [],
    "shed": None,
    "format": "select-service state",
    "version": 1,
}

DISCOVERY = EndpointGroup(
    "discovery", "Workers registered from sources such as files, DNS and Kubernetes."
)


@DISCOVERY.declare_route(
    RouteSpec(
        "GET",
        "/discovery",
        "discovery",
        "Show the sources of workers",
        {200: ResponseSpec("Sources by precedence.", DiscoveryView, _EXAMPLE_VIEW)},
        may_call=service_wide(OPERATOR),
    )
)
async def show_sources(service: ServiceContext, request: Request) -> Response:
    return json_response(service.features.discovery.discovery_view())


@DISCOVERY.declare_route(
    RouteSpec(
        "GET",
        "/state",
        "state",
        "Show the persisted state: workers, thresholds and shedding",
        {
            200: ResponseSpec(
                "Content of the file of `--state-path`.", PersistedState, _EXAMPLE_STATE
            )
        },
        may_call=service_wide(OPERATOR, REPLICA),
        detail="A replica with `--state-path` but without a file fetches the state from its "
        "`--indexer-peers`.",
    )
)
async def show_persisted_state(service: ServiceContext, request: Request) -> Response:
    kept = service.features.discovery.persisted_state()
    content = await asyncio.to_thread(msgspec.json.encode, kept)
    return Response(content, media_type=JSON)
