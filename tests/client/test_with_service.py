"""Tests of both faces and both transports against the service itself."""

import asyncio
import threading

import pytest

from select_service.client import AsyncSelector, Refused, Selector, Unavailable
from select_service.schemas.kv_cache import KvCacheFields, KvCacheHashFields
from select_service.schemas.reservations import ReservationRequest
from select_service.schemas.selection import SelectAndReserveRequest, SelectRequest
from select_service.schemas.workers import WorkerPatch, WorkerRegistration
from tests.builders import worker_body
from tests.builders.in_thread import InThread
from tests.builders.launched_process import free_port
from tests.builders.polling import eventually, eventually_on_loop

pytestmark = pytest.mark.process
IDS = list(range(10))
TRANSPORTS = pytest.mark.parametrize("transport", ["httpx", "aiohttp"])


@pytest.fixture(scope="module")
def service():
    with InThread() as service:
        for worker_id in (1, 2):
            assert service.call("POST", "/workers", worker_body(worker_id)).status == 201
        yield service


@pytest.fixture
def url(service):
    return f"http://127.0.0.1:{service.port}"


def live(service):
    return service.call("GET", "/reservations").body["reservations"]


@TRANSPORTS
async def test_a_lease_of_asyncio(service, url, transport):
    async with AsyncSelector([url], model_name="m", transport=transport) as selector:
        async with selector.lease(token_ids=IDS) as lease:
            assert lease.endpoint == f"http://w{lease.worker_id}:8000"
            assert (lease.block_size, lease.effective_prefill_tokens) == (4, 10)
            row = await selector.reservation(lease.reservation_id)
            assert row.state == "prefill"
            lease.tokens(13)
            await eventually_on_loop(lambda: live(service)[0]["output_blocks"] == 3)
            assert live(service)[0]["state"] == "decode"
        await eventually_on_loop(lambda: not live(service))


@TRANSPORTS
async def test_a_selection_id_names_the_lease(service, url, transport):
    async with AsyncSelector([url], model_name="m", transport=transport) as selector:
        async with selector.lease(token_ids=IDS, selection_id="s") as lease:
            assert lease.reservation_id == "s"
            assert (await selector.reservation("s")).isl_tokens == len(IDS)
        await eventually_on_loop(lambda: not live(service))
        chosen = await selector.select_and_reserve(
            SelectAndReserveRequest(token_ids=IDS, selection_id="t", return_hashes=True)
        )
        assert (chosen.selection_id, chosen.reservation_id) == ("t", "t")
        assert len(chosen.sequence_hashes) == len(IDS) // 4
        await selector.free("t")
        booked = await selector.reserve(
            ReservationRequest(token_ids=IDS, selection_id="t", worker_id=1)
        )
        assert (booked.selection_id, booked.reservation_id) == ("t", "t")
        await selector.free("t")


@TRANSPORTS
def test_a_lease_of_threads(service, url, transport):
    with Selector([url], model_name="m", transport=transport) as selector:
        with selector.lease(token_ids=IDS) as lease:
            lease.first_token()
            eventually(lambda: live(service)[0]["state"] == "decode")
        eventually(lambda: not live(service))
        with pytest.raises(RuntimeError, match="engine"), selector.lease(token_ids=IDS):
            raise RuntimeError("engine")
    assert not live(service)


def test_threads_share_a_client(service, url):
    names = []

    def ask():
        for _ in range(20):
            with selector.lease(token_ids=IDS) as lease:
                lease.tokens(5)
                names.append(lease.reservation_id)

    with Selector([url], model_name="m") as selector:
        threads = [threading.Thread(target=ask) for _ in range(5)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert len(set(names)) == 100
    assert not live(service)


def test_a_lease_that_lives_when_a_client_is_closed_is_freed(service, url):
    with Selector([url], model_name="m") as selector:
        lease = selector.begin(token_ids=IDS)
        assert len(live(service)) == 1
    assert not live(service)
    lease.end()


def test_routes(service, url, tmp_path):
    with Selector([url], model_name="m") as selector:
        assert selector.health().status == "ok"
        assert selector.ready().ready
        assert [each.worker_id for each in selector.workers("m")] == [1, 2]
        assert selector.workers("nobody") == []
        chosen = selector.select(SelectRequest(token_ids=IDS))
        assert chosen.model_name == "m"
        booked = selector.select_and_reserve(SelectAndReserveRequest(token_ids=IDS))
        selector.prefill_complete(booked.reservation_id)
        selector.output_block(booked.reservation_id, 0.5)
        selector.renew(booked.reservation_id)
        assert selector.reservations(worker_id=booked.worker_id, limit=1).total == 1
        selector.free(booked.reservation_id, "ok")
        reserved = selector.reserve(
            ReservationRequest(reservation_id="a/b", worker_id=1, token_ids=IDS)
        )
        assert reserved.worker_id == selector.reservation("a/b").worker_id == 1
        selector.free("a/b")
        assert sum(row.active_requests for row in selector.loads("m")[0].loads) == 0
        assert "select_service" in selector.metrics()
        assert selector.openapi()["openapi"]
        assert selector.admission().waiting_requests == 0
        selector.register(WorkerRegistration(worker_id=9, endpoint="http://w9:1", block_size=4))
        assert selector.worker(9).model_name == "m"
        assert selector.patch(9, WorkerPatch(taints=["x"])).taints == ["x"]
        facts = KvCacheFields(eagle_drop=True, hash=KvCacheHashFields(seed="7"))
        assert selector.patch(9, WorkerPatch(kv_cache=facts)).kv_cache == facts
        assert selector.delete_worker(9).lifecycle == "unschedulable"
        assert selector.dump(tmp_path / "index") == (tmp_path / "index").stat().st_size > 0
        with pytest.raises(Refused) as raised:
            selector.fleet_health()
        assert raised.value.code == "health_off"


def test_both_transports_report_the_same_refusal(service, url):
    said = []
    for transport in ("httpx", "aiohttp"):
        with Selector([url], model_name="nobody", transport=transport) as selector:
            with pytest.raises(Refused) as raised:
                selector.begin(token_ids=IDS)
            said.append((raised.value.status, raised.value.code, raised.value.text))
    assert said[0] == said[1]
    assert said[0][:2] == (503, "no_schedulable_workers")


@TRANSPORTS
def test_a_selector_that_is_not_there(transport):
    with Selector(
        [f"http://127.0.0.1:{free_port()}"], deadline_s=0.5, transport=transport
    ) as selector:
        with pytest.raises(Unavailable) as raised:
            selector.begin(token_ids=IDS)
        assert not raised.value.may_be_done


def test_a_hasher_of_both_faces_hashes_as_the_workers(service, url):
    async def main():
        async with AsyncSelector([url], model_name="m") as selector:
            hasher = await selector.prompt_hasher()
            hasher.extend(IDS)
            async with selector.lease(**hasher.prompt()) as lease:
                assert lease.block_size == hasher.block_size
                (row,) = (await selector.reservations(sequence_hashes=True)).reservations
                assert row.sequence_hashes == hasher.prompt()["sequence_hashes"]
            with pytest.raises(Unavailable, match=r"no schedulable worker of .'none', 'default'. "):
                await selector.prompt_hasher(model_name="none")

    asyncio.run(main())
    with Selector([url], model_name="m") as selector:
        hasher = selector.prompt_hasher(cache_salt="gold")
        hasher.extend(IDS)
        with selector.lease(token_ids=IDS, cache_salt="gold"):
            (row,) = selector.reservations(sequence_hashes=True).reservations
            assert row.sequence_hashes == hasher.prompt()["sequence_hashes"]


@TRANSPORTS
def test_ids_of_any_kind_arrive_as_they_are(service, url, transport):
    with Selector([url + "/"], model_name="m", transport=transport) as selector:
        for name in ("a/b c", "ü?#%", "..", "%2F"):
            with selector.lease(token_ids=IDS, reservation_id=name):
                assert selector.reservation(name).reservation_id == name
    assert not live(service)
