"""Endpoint of shared caches, in which prompts are looked up."""

from starlette.requests import Request
from starlette.responses import Response

from select_service.api.service_context import ServiceContext
from select_service.auth.roles import OPERATOR, service_wide
from select_service.core.views.shared_cache_views import make_shared_cache_view
from select_service.http.body_codec import json_response
from select_service.http.endpoint import EndpointGroup, ResponseSpec, RouteSpec
from select_service.schemas.shared_caches import SharedCacheList

_EXAMPLE_CACHE = {
    "model_name": "llama-3-8b",
    "kind": "mooncake",
    "url": "http://mooncake-master:9003",
    "answering": True,
    "changed_s": 86_012.4,
    "breaker_open": False,
    "last_error": "no complete look-up within 2 s",
    "error_s": 86_020.9,
    "lookups": {"hit": 5120, "miss": 880, "timeout": 12, "failed": 8},
    "hit_rate": 0.8533,
    "found_tokens": 9_830_400,
    "wait_ms": 1.204,
    "request_ms": 1.671,
    "in_flight": 1,
}

SHARED_CACHES = EndpointGroup("shared caches", "Caches outside the ranks, which all ranks read.")


@SHARED_CACHES.declare_route(
    RouteSpec(
        "GET",
        "/shared_caches",
        "shared_caches",
        "Show the shared caches and whether they answer",
        {
            200: ResponseSpec(
                "Shared caches by model.", SharedCacheList, {"caches": [_EXAMPLE_CACHE]}
            )
        },
        may_call=service_wide(OPERATOR),
    )
)
async def show_shared_caches(service: ServiceContext, request: Request) -> Response:
    caches = service.features.shared_caches
    found = [] if caches is None else caches.list_status()
    return json_response(SharedCacheList(caches=[make_shared_cache_view(each) for each in found]))
