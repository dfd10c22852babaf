"""Views: loads, what a prompt would do, overlap, the index dump, the configuration."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from indexer.dumps.compact_dump import MEDIA_TYPE, compact_chunks
from indexer.dumps.json_dump import document_chunks
from indexer.dumps.moment import now
from select_service.api.service import Service, query_of, scope_filter
from select_service.bodies.prompts import PromptQuery
from select_service.core.views.dump_parts import DumpPart, by_name
from select_service.errors import CapacityExceeded
from select_service.http.accept import asks_for
from select_service.http.codec import body_as, json_response

DUMPS_MAX = 4
"""Dumps sent at one time."""

JSON = "application/json"
_VARY = {"vary": "Accept"}
_QUERY = msgspec.json.Decoder(PromptQuery)


async def loads(service: Service, request: Request) -> Response:
    query = query_of(request, "model_name", "tenant_id", "routing_group")
    return json_response(service.selector.loads(*scope_filter(query)))


async def potential_loads(service: Service, request: Request) -> Response:
    body = await body_as(request, _QUERY)
    return json_response(service.selector.potential_loads(body))


async def overlap_scores(service: Service, request: Request) -> Response:
    body = await body_as(request, _QUERY)
    return json_response(service.selector.overlap_scores(body))


async def config(service: Service, request: Request) -> Response:
    return json_response({"version": service.version, "settings": service.config.effective()})


async def dump(service: Service, request: Request) -> Response:
    """The index, streamed; each dump holds a copy of one partition until its client has read it."""
    if service.dumps_running >= DUMPS_MAX:
        raise CapacityExceeded(f"{DUMPS_MAX} dumps are being sent already; ask again later")
    accept = ",".join(request.headers.getlist("accept"))
    if asks_for(accept, MEDIA_TYPE, JSON):
        return StreamingResponse(_compact_dump(service), headers=_VARY, media_type=MEDIA_TYPE)
    return StreamingResponse(_dump(service), headers=_VARY, media_type=JSON)


async def _compact_dump(service: Service) -> AsyncIterator[bytes]:
    service.dumps_running += 1
    service.compact_dumps += 1
    try:
        parts = await _parts(service)
        chunks = compact_chunks((part.take() for part in parts), now)
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            yield chunk
    finally:
        service.dumps_running -= 1


async def _dump(service: Service) -> AsyncIterator[bytes]:
    """One partition after the other; each is copied and encoded on a thread, chunk by chunk."""
    service.dumps_running += 1
    service.json_dumps += 1
    try:
        separator = b"{"
        for parts in by_name(await _parts(service)):
            yield separator + msgspec.json.encode(parts[0].name) + b":"
            separator = b","
            chunks = _chunks(parts)
            while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
                yield chunk
        yield b"}" if separator == b"," else b"{}"
    finally:
        service.dumps_running -= 1


async def _parts(service: Service) -> list[DumpPart]:
    """Not while the catalog changes: no rank must be between waiting for its blocks and having."""
    async with service.catalog_lock:
        return service.selector.dumps()


def _chunks(parts: list[DumpPart]) -> Iterator[bytes]:
    """Everything slow happens when the first chunk is asked for."""
    yield from document_chunks([part.take() for part in parts])
