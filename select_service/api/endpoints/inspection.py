"""Endpoints that inspect state: loads, overlap scores, the index dump, the configuration.

The log level is the only setting that can be changed while the service runs.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from indexer.dumps.compact_writer import MEDIA_TYPE, compact_chunks
from indexer.dumps.json_writer import document_chunks
from select_service.api import request_parameters
from select_service.api.compact_views import compact_loads
from select_service.api.endpoints.selection import PROMPT_DETAIL, unused_hashes_warning
from select_service.api.example_values import (
    EXAMPLE_ANSWER_SCOPE,
    EXAMPLE_RANK,
    EXAMPLE_SCOPE,
    EXAMPLE_TOKENS,
)
from select_service.api.limit_usage import limit_views
from select_service.api.openapi.response_schemas import ConfigView, PartitionDumpView
from select_service.api.paging import PAGES, add_next_link, make_page, wants_compact, wants_page
from select_service.api.process_limits import request_holder
from select_service.api.prompt_preparation import prehash_prompt, prepare_prompt
from select_service.api.request_parameters import scope_filter
from select_service.api.service_context import ServiceContext, request_grant, trace_fields
from select_service.api.tenant_isolation import visible_rows
from select_service.auth.roles import CALLER, OPERATOR, REPLICA, service_wide, tenant_scoped
from select_service.base import log_format as logs
from select_service.base.clocks import read_clocks
from select_service.base.cooperative import collect_cooperatively, encode_cooperatively
from select_service.base.errors import BadRequest, CapacityExceeded, NoWorkers
from select_service.core.placement.prompt import is_long_prompt
from select_service.core.views.dump_parts import DumpPart, group_by_name
from select_service.core.views.policy_views import policy_rules
from select_service.http.body_codec import json_response
from select_service.http.bounded_stream import BoundedStream, ImportingStream
from select_service.http.content_negotiation import prefers_media_type
from select_service.http.endpoint import (
    BODY_ERRORS,
    JSON,
    BodySpec,
    EndpointGroup,
    ResponseSpec,
    RouteSpec,
)
from select_service.schemas.compact import CompactLoadPage
from select_service.schemas.inspection import (
    LogLevelChange,
    LogLevelView,
    OverlapRow,
    OverlapScores,
    PartitionLoads,
    RankLoad,
)
from select_service.schemas.prompts import PromptQuery

log = logging.getLogger("select_service")

_VARY = {"vary": "Accept"}
_QUERY = BodySpec(
    PromptQuery,
    {"tokens": {**EXAMPLE_SCOPE, **EXAMPLE_TOKENS}},
    unused_fields_warning=unused_hashes_warning,
)
_RANK_LOAD = {
    **EXAMPLE_RANK,
    "potential_prefill_tokens": 38,
    "potential_decode_blocks": 5,
    "active_requests": 1,
}
_OVERLAP = {
    **EXAMPLE_RANK,
    "device_blocks": 1,
    "host_pinned_blocks": 2,
    "disk_blocks": 2,
    "host_pinned_extension_blocks": 1,
    "disk_extension_blocks": 0,
    "shared_beyond_device_blocks": None,
    "router_credit_blocks": 1.75,
}
_STORED = {
    "parent_hash": None,
    "start_position": None,
    "blocks": [
        {"block_hash": 9001, "tokens_hash": 14643705804678351452, "mm_extra_info": None},
    ],
}
_EVENT = {
    "worker_id": 1,
    "storage_tier": "device",
    "residency_domain": "worker",
    "event": {"event_id": 0, "data": {"stored": _STORED}, "dp_rank": 0},
}
_LOG_LEVEL = {"configured": "info", "current": "debug"}

INSPECTION = EndpointGroup("inspection", "Inspect load, overlap, the index and the configuration.")


@INSPECTION.declare_route(
    RouteSpec(
        "GET",
        "/loads",
        "loads",
        "Show the load of every rank",
        {
            200: ResponseSpec(
                "Loads by model and tenant; with `view=compact` as columns.",
                list[PartitionLoads] | CompactLoadPage,
                [
                    {
                        **EXAMPLE_ANSWER_SCOPE,
                        "loads": [_RANK_LOAD],
                        "pending_count": 0,
                        "pending_isl_tokens": 0,
                    }
                ],
            )
        },
        may_call=tenant_scoped(CALLER, OPERATOR),
        query=request_parameters.SCOPE_PARAMETERS + PAGES,
        refusals=(BadRequest,),
    )
)
async def show_loads(
    service: ServiceContext, request: Request, query: Mapping[str, str]
) -> Response:
    scope = scope_filter(query)
    page = make_page(request_grant(request), service.selector.list_workers(*scope), query)
    answer: list[msgspec.Raw] | CompactLoadPage
    if wants_compact(query):
        found = await collect_cooperatively(compact_loads(service, page.workers))
        answer = CompactLoadPage(partitions=found, next=page.next)
    else:
        among = {worker.worker_id for worker in page.workers} if wants_page(query) else None
        answer = await encode_cooperatively(
            visible_rows(request, service.selector.inspection.partition_loads(*scope, among))
        )
    return add_next_link(json_response(answer), "/loads", query, page)


@INSPECTION.declare_route(
    RouteSpec(
        "POST",
        "/potential_loads",
        "potential_loads",
        "Predict the load of every rank with this prompt added",
        {200: ResponseSpec("Ranks by worker and rank.", list[RankLoad], [_RANK_LOAD])},
        may_call=tenant_scoped(CALLER, OPERATOR),
        detail=PROMPT_DETAIL,
        body=_QUERY,
        refusals=(*BODY_ERRORS, NoWorkers),
    )
)
async def predict_loads(service: ServiceContext, request: Request, body: PromptQuery) -> Response:
    read = await prehash_prompt(service, body) if is_long_prompt(body) else None
    loads = service.selector.inspection.potential_loads(body, read)
    return json_response(await encode_cooperatively(loads))


@INSPECTION.declare_route(
    RouteSpec(
        "POST",
        "/overlap_scores",
        "overlap_scores",
        "Show how many leading blocks of a prompt each rank holds",
        {
            200: ResponseSpec(
                "Ranks by worker and rank.",
                OverlapScores,
                {
                    "block_size": 16,
                    "num_blocks": 2,
                    "workers": [_OVERLAP],
                    "shared_cache": {
                        "enabled": False,
                        "total_hit_blocks": 0,
                        "ranges": [],
                        "error": None,
                    },
                },
            )
        },
        may_call=tenant_scoped(CALLER, OPERATOR),
        detail=PROMPT_DETAIL,
        body=_QUERY,
        refusals=(*BODY_ERRORS, NoWorkers),
    )
)
async def show_overlap_scores(
    service: ServiceContext, request: Request, body: PromptQuery
) -> Response:
    read = await prepare_prompt(service, body)
    scores, rows = service.selector.inspection.overlap_scores(body, read)
    scores.workers = cast(list[OverlapRow], await encode_cooperatively(rows))
    return json_response(scores)


@INSPECTION.declare_route(
    RouteSpec(
        "GET",
        "/dump",
        "dump",
        "Dump the index of every partition",
        {
            200: ResponseSpec(
                "Indexed blocks by `model:tenant`.",
                dict[str, PartitionDumpView],
                {"llama-3-8b:default": {"block_size": 16, "events": [_EVENT]}},
                alternative_types=(MEDIA_TYPE,),
            )
        },
        may_call=service_wide(OPERATOR, REPLICA),
        detail="The dump is a stream of KV events that would rebuild the index. Large: one entry "
        "for every block. With `Accept: application/msgpack`, the compact form described in "
        "docs/reference/files.md.",
        refusals=(CapacityExceeded,),
    )
)
async def dump_index(service: ServiceContext, request: Request) -> Response:
    """Stream the index; each dump holds a copy of one partition until its client has read that."""
    # A slow client keeps the copy of its partition in memory: the limit bounds that memory.
    limit, holder = service.limits.dumps, request_holder(request)
    accept = ",".join(request.headers.getlist("accept"))
    is_compact = prefers_media_type(accept, MEDIA_TYPE, JSON)
    if request.method == "HEAD":  # do not copy the index for HEAD
        return ImportingStream(_empty_stream(), 200, _VARY, MEDIA_TYPE if is_compact else JSON)
    if is_compact:
        return BoundedStream(limit, holder, _compact_dump(service), _VARY, MEDIA_TYPE)
    return BoundedStream(limit, holder, _json_dump(service), _VARY, JSON)


async def _empty_stream() -> AsyncIterator[bytes]:
    return
    yield


async def _compact_dump(service: ServiceContext) -> AsyncIterator[bytes]:
    """Yield the chunks of the compact dump, each produced on a thread."""
    service.process.compact_dumps += 1
    parts = await _dump_parts(service)
    chunks = compact_chunks((part.take() for part in parts), read_clocks)
    while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
        yield chunk


async def _json_dump(service: ServiceContext) -> AsyncIterator[bytes]:
    """Yield the JSON dump partition by partition; copying and encoding run on a thread."""
    service.process.json_dumps += 1
    # Written piece by piece: encoding one object would hold the dump of the whole index in memory.
    separator = b"{"
    for parts in group_by_name(await _dump_parts(service)):
        yield separator + msgspec.json.encode(parts[0].name) + b":"
        separator = b","
        chunks = _json_chunks(parts)
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            yield chunk
    yield b"}" if separator == b"," else b"{}"


async def _dump_parts(service: ServiceContext) -> list[DumpPart]:
    """Return the parts to dump, once no rank is between waiting for recovered blocks and having
    them.
    """
    await service.catalog_follower.wait_until_adopted()
    return service.selector.inspection.index_dumps()


def _json_chunks(parts: list[DumpPart]) -> Iterator[bytes]:
    """Yield the chunks of one partition; the slow copy happens when the first chunk is
    requested.
    """
    yield from document_chunks([part.take() for part in parts])


@INSPECTION.declare_route(
    RouteSpec(
        "GET",
        "/config",
        "config",
        "Show the effective configuration",
        {
            200: ResponseSpec(
                "Every setting with its value and origin.",
                ConfigView,
                {
                    "version": "0.3.0",
                    "settings": {
                        "port": {
                            "value": 8092,
                            "origin": "default",
                            "flag": "--port",
                            "variable": "SELECT_SERVICE_PORT",
                        }
                    },
                    "log_level": _LOG_LEVEL,
                    "policy_rules": [],
                    "unknown_variables": {"SELECT_SERVICE_PROT": "SELECT_SERVICE_PORT"},
                    "limits": {
                        "live_streams": {
                            "total": 32,
                            "used": 9,
                            "unit": "streams of /live",
                            "share": {"bound_key": 8, "tenant": 16, "unbound_key": 28},
                            "keys": {"web": 8, "ops": 1},
                            "refused": {"web": 3},
                        }
                    },
                },
            )
        },
        may_call=service_wide(OPERATOR),
    )
)
async def show_config(service: ServiceContext, request: Request) -> Response:
    config = service.config
    body = {
        "version": service.version,
        "settings": config.effective_settings(),
        "log_level": _log_level_view(service),
        "policy_rules": policy_rules(service.fleet.policies),
        "unknown_variables": config.unknown,
        "limits": limit_views(service),
    }
    return json_response(body)


@INSPECTION.declare_route(
    RouteSpec(
        "PUT",
        "/log_level",
        "set_log_level",
        "Change the log level",
        {200: ResponseSpec("Level in effect.", LogLevelView, _LOG_LEVEL)},
        may_call=service_wide(OPERATOR),
        detail="Takes effect with the next line, for all parts of the process. Lost on restart.",
        body=BodySpec(LogLevelChange, {"show every decision": {"level": "debug"}}),
        refusals=BODY_ERRORS,
    )
)
async def set_log_level(
    service: ServiceContext, request: Request, body: LogLevelChange
) -> Response:
    """Change the log level; the change is logged at the old level, so that a silenced log explains
    why.
    """
    before = logs.current_log_level()
    if before != body.level:
        fields = trace_fields(request) | {"before": before, "now": body.level}
        log.warning("log level changed", extra={"fields": fields})
        logs.set_log_level(body.level)
    return json_response(_log_level_view(service))


def _log_level_view(service: ServiceContext) -> LogLevelView:
    return LogLevelView(configured=service.config["log_level"], current=logs.current_log_level())
