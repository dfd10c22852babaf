"""Views: loads, what a prompt would do, overlap, the index dump, the configuration."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from indexer.compact_dump import MEDIA_TYPE, compact_chunks
from indexer.snapshot import dump_chunks
from select_service.api.codec import body_as, json_response
from select_service.api.service import Service, query_of, scope_filter
from select_service.core.selector import PartitionDump
from select_service.errors import CapacityExceeded
from select_service.schema import PromptQuery

DUMPS_MAX = 4
"""Dumps sent at one time."""

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
    if MEDIA_TYPE in request.headers.get("accept", ""):
        return StreamingResponse(_compact_dump(service), media_type=MEDIA_TYPE)
    return StreamingResponse(_dump(service), media_type="application/json")


async def _compact_dump(service: Service) -> AsyncIterator[bytes]:
    service.dumps_running += 1
    service.compact_dumps += 1
    try:
        dumps = iter(service.selector.dumps())
        chunks = compact_chunks(dump.dumped() for dump in dumps)
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
        for partition in service.selector.dumps():
            yield separator + msgspec.json.encode(partition.name) + b":"
            separator = b","
            chunks = iter(await asyncio.to_thread(_chunks, partition))
            while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
                yield chunk
        yield b"}" if separator == b"," else b"{}"
    finally:
        service.dumps_running -= 1


def _chunks(partition: PartitionDump) -> Iterator[bytes]:
    return dump_chunks(partition.take_snapshot(), partition.block_size, partition.slot_ranks)
