"""Views: loads, what a prompt would do, overlap, the index dump, the configuration.

The level of the log is the one setting that can be changed while the service runs.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from indexer.dumps.compact_dump import MEDIA_TYPE, compact_chunks
from indexer.dumps.json_dump import document_chunks
from select_service import log as logs
from select_service.access.roles import CALLER, OPERATOR, REPLICA, whole_service, within_tenants
from select_service.api import parameters
from select_service.api.compact import compact_loads
from select_service.api.documents import ConfigView, PartitionDumpView
from select_service.api.limit_views import limit_views
from select_service.api.limits import holder_of
from select_service.api.long_prompts import read_ahead
from select_service.api.pages import PAGES, is_compact, is_paged, linked, page_of
from select_service.api.parameters import scope_filter
from select_service.api.samples import RANK, SCOPE, TOKENS
from select_service.api.selection import PROMPT_DETAIL, unused_hashes
from select_service.api.service import Service, grant_of, trace_of
from select_service.api.tenancy import seen
from select_service.bodies.compact import CompactLoadPage
from select_service.bodies.inspection import (
    LogLevelChange,
    LogLevelView,
    OverlapRow,
    OverlapScores,
    PartitionLoads,
    RankLoad,
)
from select_service.bodies.prompts import PromptQuery
from select_service.clocks import now
from select_service.core.decide.prompt import is_long
from select_service.core.views.dump_parts import DumpPart, by_name
from select_service.core.views.policies import policy_rules
from select_service.errors import BadRequest, CapacityExceeded, NoWorkers
from select_service.http.accept import asks_for
from select_service.http.codec import json_response
from select_service.http.endpoint import JSON, WITH_BODY, Answer, Body, Noun, Route
from select_service.http.streams import BoundedStream, Stream
from select_service.turns import encoded_in_turns, in_turns

log = logging.getLogger("select_service")

_VARY = {"vary": "Accept"}
_QUERY = Body(PromptQuery, {"tokens": {**SCOPE, **TOKENS}}, unused=unused_hashes)
_RANK_LOAD = {
    **RANK,
    "potential_prefill_tokens": 38,
    "potential_decode_blocks": 5,
    "active_requests": 1,
}
_OVERLAP = {
    **RANK,
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
    "event": {"event_id": 0, "data": {"stored": _STORED}, "dp_rank": 0},
}
_LOG_LEVEL = {"configured": "info", "current": "debug"}

INSPECTION = Noun("inspection", "What the service knows: load, overlap, index, configuration.")


@INSPECTION.declare(
    Route(
        "GET",
        "/loads",
        "loads",
        "Load of every rank now",
        {
            200: Answer(
                "Partitions by model and tenant; or the same as columns.",
                list[PartitionLoads] | CompactLoadPage,
                [{**SCOPE, "loads": [_RANK_LOAD], "pending_count": 0, "pending_isl_tokens": 0}],
            )
        },
        may_call=within_tenants(CALLER, OPERATOR),
        query=parameters.SCOPE + PAGES,
        refusals=(BadRequest,),
    )
)
async def loads(service: Service, request: Request, query: Mapping[str, str]) -> Response:
    scope = scope_filter(query)
    page = page_of(grant_of(request), service.selector.workers(*scope), query)
    answer: list[msgspec.Raw] | CompactLoadPage
    if is_compact(query):
        found = await in_turns(compact_loads(service, page.workers))
        answer = CompactLoadPage(partitions=found, next=page.next)
    else:
        among = {worker.worker_id for worker in page.workers} if is_paged(query) else None
        answer = await encoded_in_turns(seen(request, service.selector.loads(*scope, among)))
    return linked(json_response(answer), "/loads", query, page)


@INSPECTION.declare(
    Route(
        "POST",
        "/potential_loads",
        "potential_loads",
        "What the load of every rank would be with this prompt on it",
        {200: Answer("Ranks by worker and rank.", list[RankLoad], [_RANK_LOAD])},
        may_call=within_tenants(CALLER, OPERATOR),
        detail=PROMPT_DETAIL,
        body=_QUERY,
        refusals=(*WITH_BODY, NoWorkers),
    )
)
async def potential_loads(service: Service, request: Request, body: PromptQuery) -> Response:
    read = await read_ahead(service, body) if is_long(body) else None
    loads = service.selector.potential_loads(body, read)
    return json_response(await encoded_in_turns(loads))


@INSPECTION.declare(
    Route(
        "POST",
        "/overlap_scores",
        "overlap_scores",
        "How many leading blocks of this prompt every rank holds",
        {
            200: Answer(
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
        may_call=within_tenants(CALLER, OPERATOR),
        detail=PROMPT_DETAIL,
        body=_QUERY,
        refusals=(*WITH_BODY, NoWorkers),
    )
)
async def overlap_scores(service: Service, request: Request, body: PromptQuery) -> Response:
    read = await read_ahead(service, body) if is_long(body) else None
    scores, rows = service.selector.overlap_scores(body, read)
    scores.workers = cast(list[OverlapRow], await encoded_in_turns(rows))
    return json_response(scores)


@INSPECTION.declare(
    Route(
        "GET",
        "/dump",
        "dump",
        "The index of every partition",
        {
            200: Answer(
                "`model:tenant` to the blocks held.",
                dict[str, PartitionDumpView],
                {"llama-3-8b:default": {"block_size": 16, "events": [_EVENT]}},
                also=(MEDIA_TYPE,),
            )
        },
        may_call=whole_service(OPERATOR, REPLICA),
        detail="As a stream of KV events that would rebuild it. Large: one entry for every block "
        "held. With `Accept: application/msgpack` the compact form of docs/recovery.md.",
        refusals=(CapacityExceeded,),
    )
)
async def dump(service: Service, request: Request) -> Response:
    """The index, streamed; each dump holds a copy of one partition until its client has read it."""
    limit, holder = service.limits.dumps, holder_of(request)
    accept = ",".join(request.headers.getlist("accept"))
    is_compact = asks_for(accept, MEDIA_TYPE, JSON)
    if request.method == "HEAD":  # nothing is copied for it
        return Stream(_nothing(), 200, _VARY, MEDIA_TYPE if is_compact else JSON)
    if is_compact:
        return BoundedStream(limit, holder, _compact_dump(service), _VARY, MEDIA_TYPE)
    return BoundedStream(limit, holder, _dump(service), _VARY, JSON)


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield


async def _compact_dump(service: Service) -> AsyncIterator[bytes]:
    service.compact_dumps += 1
    parts = await _parts(service)
    chunks = compact_chunks((part.take() for part in parts), now)
    while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
        yield chunk


async def _dump(service: Service) -> AsyncIterator[bytes]:
    """One partition after the other; each is copied and encoded on a thread, chunk by chunk."""
    service.json_dumps += 1
    separator = b"{"
    for parts in by_name(await _parts(service)):
        yield separator + msgspec.json.encode(parts[0].name) + b":"
        separator = b","
        chunks = _chunks(parts)
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            yield chunk
    yield b"}" if separator == b"," else b"{}"


async def _parts(service: Service) -> list[DumpPart]:
    """Not in the midst of an adoption: no rank must be between waiting for blocks and having."""
    await service.follower.adopted()
    return service.selector.dumps()


def _chunks(parts: list[DumpPart]) -> Iterator[bytes]:
    """Everything slow happens when the first chunk is asked for."""
    yield from document_chunks([part.take() for part in parts])


@INSPECTION.declare(
    Route(
        "GET",
        "/config",
        "config",
        "The effective configuration",
        {
            200: Answer(
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
        may_call=whole_service(OPERATOR),
    )
)
async def config(service: Service, request: Request) -> Response:
    config = service.config
    body = {
        "version": service.version,
        "settings": config.effective(),
        "log_level": _log_level(service),
        "policy_rules": policy_rules(service.selector.fleet.policies),
        "unknown_variables": config.unknown,
        "limits": limit_views(service),
    }
    return json_response(body)


@INSPECTION.declare(
    Route(
        "PUT",
        "/log_level",
        "set_log_level",
        "Change the level of the log",
        {200: Answer("The level that counts now.", LogLevelView, _LOG_LEVEL)},
        may_call=whole_service(OPERATOR),
        detail="From the next line on, for all parts of the process. Not kept over a restart.",
        body=Body(LogLevelChange, {"show every decision": {"level": "debug"}}),
        refusals=WITH_BODY,
    )
)
async def set_log_level(service: Service, request: Request, body: LogLevelChange) -> Response:
    """Told at the old level: who makes the log silent finds that in it."""
    before = logs.current_level()
    if before != body.level:
        fields = trace_of(request) | {"before": before, "now": body.level}
        log.warning("log level changed", extra={"fields": fields})
        logs.set_level(body.level)
    return json_response(_log_level(service))


def _log_level(service: Service) -> LogLevelView:
    return LogLevelView(configured=service.config["log_level"], current=logs.current_level())
