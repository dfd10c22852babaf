"""Discovery: what sources of workers say, and how far the catalog is."""

from starlette.requests import Request
from starlette.responses import Response

from select_service.access.roles import OPERATOR, whole_service
from select_service.api.service import Service
from select_service.bodies.discovery import DiscoveryView
from select_service.http.codec import json_response
from select_service.http.endpoint import Answer, Noun, Route

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
