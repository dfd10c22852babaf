"""Discovery: what sources of workers say, and how far the catalog is."""

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from select_service.access.roles import OPERATOR, REPLICA, whole_service
from select_service.api.service import Service
from select_service.bodies.discovery import DiscoveryView
from select_service.bodies.state import KeptState
from select_service.bodies.workers import WorkerRegistration
from select_service.core.kept_state import kept_state
from select_service.http.codec import json_response
from select_service.http.endpoint import JSON, Answer, Noun, Route

_SHOWN = {
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

_GIVEN = WorkerRegistration(
    worker_id=1, model_name="qwen", endpoint="http://vllm-0:8000", block_size=16
)
_KEPT = {
    "workers": [
        {
            "given": msgspec.to_builtins(_GIVEN),
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

DISCOVERY = Noun("discovery", "Workers that nobody registers by hand.")


@DISCOVERY.declare(
    Route(
        "GET",
        "/discovery",
        "discovery",
        "What the sources of workers say",
        {200: Answer("Sources, first ones first.", DiscoveryView, _SHOWN)},
        may_call=whole_service(OPERATOR),
    )
)
async def discovery(service: Service, request: Request) -> Response:
    if service.discovery is None:
        return json_response(DiscoveryView(sources=[], pending=0))
    return json_response(service.discovery.view())


@DISCOVERY.declare(
    Route(
        "GET",
        "/state",
        "state",
        "Workers, thresholds and shedding, as they are kept",
        {200: Answer("As in the file of `--state-path`.", KeptState, _KEPT)},
        may_call=whole_service(OPERATOR, REPLICA),
        detail="A replica with `--state-path` that has no file yet takes it from its "
        "`--indexer-peers`.",
    )
)
async def state(service: Service, request: Request) -> Response:
    discovery = service.discovery
    kept = kept_state(service.selector) if discovery is None else discovery.state()
    content = await asyncio.to_thread(msgspec.json.encode, kept)
    return Response(content, media_type=JSON)
