"""Endpoint for caches that engines have cleared."""

import logging

from starlette.requests import Request
from starlette.responses import Response

from select_service.api import request_parameters
from select_service.api.service_context import ServiceContext, core_time, trace_fields
from select_service.auth.roles import CALLER, OPERATOR, tenant_scoped
from select_service.base.errors import NotFound
from select_service.http.body_codec import json_response
from select_service.http.endpoint import (
    BODY_ERRORS,
    BodySpec,
    EndpointGroup,
    ResponseSpec,
    RouteSpec,
)
from select_service.schemas.rank_index import ClearedBlocks, ClearedCache

log = logging.getLogger("select_service.workers")

CACHES = EndpointGroup("caches", "Caches of engines that do not announce what they hold.")


@CACHES.declare_route(
    RouteSpec(
        "POST",
        "/workers/{worker_id}/cache_cleared",
        "clear_cache",
        "Report that the KV cache of a worker was cleared",
        {
            200: ResponseSpec(
                "Blocks that were assumed until now.",
                ClearedBlocks,
                {"assumed_blocks": {"0": 4096}},
            )
        },
        may_call=tenant_scoped(CALLER, OPERATOR),
        detail="Call this after an update of the weights or a flush of the cache. Ranks without KV "
        "events are then assumed to hold the prompts of live reservations only; KV events are not "
        "affected, since engines announce a clear themselves.",
        in_path=request_parameters.WORKER_ID,
        body=BodySpec(ClearedCache, {"all": {}, "rank": {"dp_rank": 0}}, optional=True),
        refusals=(*BODY_ERRORS, NotFound),
    )
)
async def clear_cache(
    service: ServiceContext, request: Request, worker_id: int, body: ClearedCache
) -> Response:
    assumptions = service.followers.assumptions
    cleared = assumptions.clear_cache(worker_id, body.dp_rank, core_time())
    fields = trace_fields(request) | {"worker_id": worker_id, "blocks": sum(cleared.values())}
    log.info("cache of worker cleared", extra={"fields": fields})
    return json_response(ClearedBlocks(assumed_blocks=cleared))
