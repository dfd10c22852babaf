"""Tests of a simulated rank's KV events on the wire: frames, sequence numbers, replay."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from select_service.sim.demo import kv_publisher as publisher_module
from select_service.sim.demo.kv_publisher import END_OF_REPLAY, TOPIC, KvPublisherSockets
from select_service.sim.engine.prefix_cache import (
    VllmAllBlocksCleared,
    VllmBlockRemoved,
    VllmBlockStored,
)
from tests.builders.polling import PATIENCE_S

STORED = VllmBlockStored([2**64 - 1, 7], None, [1, 2, 3, 4], 2, medium="GPU")


@contextlib.asynccontextmanager
async def zmq_context() -> AsyncIterator[zmq.asyncio.Context]:
    context = zmq.asyncio.Context()
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield context
    finally:
        context.destroy(linger=0)


def a_subscriber(context: zmq.asyncio.Context, endpoint: str) -> zmq.asyncio.Socket:
    socket = context.socket(zmq.SUB)
    socket.subscribe(b"")
    socket.connect(endpoint)
    return socket


async def request_replay(
    context: zmq.asyncio.Context, publisher: KvPublisherSockets, request: list[bytes]
) -> list[list[bytes]]:
    """Return the answer to a replay request, up to and including its end marker."""
    server = asyncio.create_task(publisher.serve_replay())
    socket = context.socket(zmq.DEALER)
    socket.connect(publisher.replay_endpoint)
    await socket.send_multipart(request)
    answer: list[list[bytes]] = []
    while not answer or answer[-1][-1] != b"":
        answer.append(await socket.recv_multipart())
    server.cancel()
    return answer


def payload_of(frames: list[bytes]) -> Any:
    return msgspec.msgpack.decode(frames[-1])


async def test_a_live_batch_has_vllms_three_frames_and_map_events() -> None:
    async with zmq_context() as context:
        publisher = KvPublisherSockets(context, dp_rank=3)
        socket = a_subscriber(context, publisher.endpoint)
        assert await publisher.wait_for_subscriber(PATIENCE_S)
        publisher.publish_batch([VllmBlockRemoved([5], "GPU"), STORED, VllmAllBlocksCleared()])
        topic, sequence, payload = await socket.recv_multipart()
        assert (topic, sequence) == (TOPIC, bytes(8))
        _, events, dp_rank = msgspec.msgpack.decode(payload)
        assert dp_rank == 3
        assert events == [
            {"type": "BlockRemoved", "block_hashes": [5], "medium": "GPU"},
            {
                "type": "BlockStored",
                "block_hashes": [2**64 - 1, 7],
                "parent_block_hash": None,
                "token_ids": [1, 2, 3, 4],
                "block_size": 2,
                "medium": "GPU",
            },
            {"type": "AllBlocksCleared"},
        ]
        publisher.close()


async def test_no_events_make_no_batch() -> None:
    async with zmq_context() as context:
        publisher = KvPublisherSockets(context, dp_rank=0)
        publisher.publish_batch([])
        assert publisher.batches == 0
        publisher.close()


async def test_waiting_for_a_subscriber_times_out() -> None:
    async with zmq_context() as context:
        publisher = KvPublisherSockets(context, dp_rank=0)
        assert not await publisher.wait_for_subscriber(timeout_s=0.02)
        publisher.close()


async def test_withheld_batches_are_numbered_and_can_be_replayed() -> None:
    async with zmq_context() as context:
        publisher = KvPublisherSockets(context, dp_rank=0, lose=lambda: publisher.batches == 2)
        socket = a_subscriber(context, publisher.endpoint)
        assert await publisher.wait_for_subscriber(PATIENCE_S)
        for _ in range(3):
            publisher.publish_batch([STORED])
        received = [await socket.recv_multipart() for _ in range(2)]
        assert [frames[1][-1] for frames in received] == [0, 2]
        assert publisher.lost_batches == 1
        answer = await request_replay(context, publisher, [b"", (1).to_bytes(8, "big")])
        assert [frames[2] for frames in answer] == [
            (1).to_bytes(8, "big"),
            (2).to_bytes(8, "big"),
            END_OF_REPLAY,
        ]
        assert all(len(frames) == 4 and frames[0] == b"" for frames in answer)
        assert payload_of(answer[0])[1][0]["type"] == "BlockStored"
        publisher.close()


async def test_a_withheld_last_batch_is_revealed_by_an_empty_one() -> None:
    async with zmq_context() as context:
        publisher = KvPublisherSockets(context, dp_rank=0, lose=lambda: publisher.batches == 1)
        socket = a_subscriber(context, publisher.endpoint)
        assert await publisher.wait_for_subscriber(PATIENCE_S)
        publisher.publish_batch([STORED])
        publisher.expose_trailing_gap()
        publisher.expose_trailing_gap()
        frames = await socket.recv_multipart()
        assert frames[1][-1] == 1
        assert payload_of(frames)[1] == []
        assert publisher.batches == 2
        publisher.close()


async def test_only_the_newest_batches_are_kept_for_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "BUFFER_BATCHES_MAX", 2)
    async with zmq_context() as context:
        publisher = KvPublisherSockets(context, dp_rank=0)
        for _ in range(5):
            publisher.publish_batch([STORED])
        answer = await request_replay(context, publisher, [b"", bytes(8)])
        assert [frames[2][-1] for frames in answer[:-1]] == [3, 4]
        publisher.close()


async def test_a_malformed_replay_request_does_not_stop_the_next_one() -> None:
    async with zmq_context() as context:
        publisher = KvPublisherSockets(context, dp_rank=0)
        publisher.publish_batch([STORED])
        bad = context.socket(zmq.DEALER)
        bad.connect(publisher.replay_endpoint)
        await bad.send_multipart([b"", b"short"])
        answer = await request_replay(context, publisher, [b"", bytes(8)])
        assert len(answer) == 2
        publisher.close()
