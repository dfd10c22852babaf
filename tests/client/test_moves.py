"""Tests of leases that the service moves: the lease learns of a move at once or with an answer."""

import asyncio

import pytest

from select_service.client import AsyncSelector, SelectorError
from select_service.client.streamed_answers import MoveGap, decode_event
from select_service.schemas.migrations import MigratedRequest
from tests.builders import worker_body
from tests.builders.in_thread import InThread
from tests.builders.polling import PATIENCE_S, eventually_on_loop

IDS = list(range(10))


@pytest.fixture
def service():
    with InThread("--health-checks", "on") as service:
        for worker_id in (1, 2):
            body = worker_body(
                worker_id, endpoint="http://127.0.0.1:9", max_num_batched_tokens=8192
            )
            assert service.call("POST", "/workers", body).status == 201
        yield service


def client(service, **options):
    return AsyncSelector([f"http://127.0.0.1:{service.port}"], model_name="m", **options)


@pytest.mark.process
@pytest.mark.parametrize("transport", ["httpx", "aiohttp"])
async def test_a_subscribed_lease_receives_its_move(service, transport):
    async with (
        client(service, transport=transport) as selector,
        selector.lease(token_ids=IDS, subscribe=True) as lease,
    ):
        await selector.drain(lease.worker_id)
        async with asyncio.timeout(PATIENCE_S):
            to = await lease.move()
        assert to.worker_id == 3 - lease.worker_id
        assert lease.moved == to
        confirmed = await selector.migrated(lease.reservation_id, MigratedRequest(ok=False))
        assert confirmed.migrated_to == to


@pytest.mark.process
async def test_an_unsubscribed_lease_receives_its_move_with_the_next_answer(service):
    async with client(service) as selector, selector.lease(token_ids=IDS) as lease:
        await selector.drain(lease.worker_id)
        await eventually_on_loop(lambda: service.call("GET", "/migrations").body["events"])
        assert lease.moved is None
        lease.first_token()
        await eventually_on_loop(lambda: lease.moved)
        assert lease.moved.worker_id == 3 - lease.worker_id


EVENT = (
    b'id: 7\nevent: migration\ndata: {"seq":7,"reservation_id":"x","from":{"worker_id":1,'
    b'"dp_rank":0},"to":null,"method":"abort","estimated_ms":1.0,"cause":"connect","lockstep":true}'
)


def test_events_are_read_as_the_service_writes_them():
    assert decode_event(EVENT).seq == 7
    assert decode_event(b'event: gap\ndata: {"next":9}') == MoveGap(9)
    assert decode_event(b": alive") is None
    with pytest.raises(SelectorError):
        decode_event(b"data: {}")
