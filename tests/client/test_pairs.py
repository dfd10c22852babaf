"""Tests of leases of pairs and of groups against the service itself."""

import asyncio

import pytest

from select_service.client import (
    AsyncSelector,
    HandoffError,
    Refused,
    Selector,
    SelectorError,
    Unavailable,
    make_decode_body,
    make_prefill_body,
    round_robin,
)
from select_service.schemas.pairs import Handoff
from tests.builders import worker_body
from tests.builders.in_thread import InThread
from tests.builders.polling import eventually, eventually_on_loop
from tests.client.world import URLS, World, client, late, lose_answer, run

pytestmark = pytest.mark.process
IDS = list(range(400))
PREFILLS, DECODES = (1, 2), (3, 4)


@pytest.fixture(scope="module")
def service():
    with InThread("--policy", "work") as service:
        for worker_id in (*PREFILLS, *DECODES):
            role = "prefill" if worker_id in PREFILLS else "decode"
            transfer = {"host": f"h{worker_id}", "kind": "nixl", "link_gbps": 100.0}
            body = worker_body(worker_id, role=role, kv_transfer=transfer)
            assert service.call("POST", "/workers", body).status == 201
        yield service


@pytest.fixture
def url(service):
    return f"http://127.0.0.1:{service.port}"


def booked(service):
    rows = service.call("GET", "/reservations?separate_legs=true").body["reservations"]
    return {(row["reservation_id"].partition("\x1f")[0], row["worker_id"]) for row in rows}


async def test_a_pair_of_asyncio_frees_one_leg_after_the_other(service, url):
    async with AsyncSelector([url], model_name="m") as selector:
        async with selector.pair_lease(token_ids=IDS, local="never") as lease:
            assert not lease.is_local
            assert lease.prefill.worker_id in PREFILLS
            assert lease.decode.worker_id == lease.worker_id in DECODES
            assert lease.endpoint == lease.decode.endpoint
            name = lease.reservation_id
            decode, prefill = (name, lease.worker_id), (name, lease.prefill.worker_id)
            assert booked(service) == {decode, prefill}
            lease.prefill_complete()
            await eventually_on_loop(lambda: booked(service) == {decode})
            lease.first_token()
            lease.tokens(9)
        await eventually_on_loop(lambda: not booked(service))


async def test_the_first_token_alone_frees_the_prefill_leg(service, url):
    async with AsyncSelector([url], model_name="m") as selector:
        async with selector.pair_lease(token_ids=IDS, local="never") as lease:
            lease.first_token()
            await eventually_on_loop(
                lambda: booked(service) == {(lease.reservation_id, lease.worker_id)}
            )
        await eventually_on_loop(lambda: not booked(service))


async def test_a_failed_leg_moves_and_at_last_one_rank_does_both(service, url):
    async with AsyncSelector([url], model_name="m") as selector:
        async with selector.pair_lease(token_ids=IDS, local="never") as lease:
            first, decode = lease.prefill.worker_id, lease.worker_id
            await lease.move_leg("prefill")
            assert {first, lease.prefill.worker_id} == set(PREFILLS)
            assert lease.worker_id == decode
            await lease.move_leg("decode")
            assert {decode, lease.worker_id} == set(DECODES)
            assert lease.endpoint == f"http://w{lease.worker_id}:8000"
        fields = {"prefill": {"allowed_worker_ids": [1, *DECODES]}}
        async with selector.pair_lease(token_ids=IDS, **fields) as lease:
            if not lease.is_local:
                await lease.move_leg("prefill")
            assert lease.is_local
            assert lease.prefill.worker_id == lease.decode.worker_id
            body = {"prompt": IDS, "stream": True}
            assert lease.prefill_body(body) == lease.decode_body(body) == body
        await eventually_on_loop(lambda: not booked(service))


async def test_without_another_rank_a_move_is_refused(service, url):
    async with AsyncSelector([url], model_name="m") as selector:
        fields = {"prefill": {"allowed_worker_ids": [1]}, "local": "never"}
        async with selector.pair_lease(token_ids=IDS, **fields) as lease:
            with pytest.raises(Refused) as refused:
                await lease.move_leg("prefill")
            assert refused.value.status == 503
            assert lease.prefill.worker_id == 1


def test_a_pair_of_threads(service, url):
    with Selector([url], model_name="m") as selector:
        with selector.pair_lease(token_ids=IDS, local="never") as lease:
            first = lease.prefill.worker_id
            lease.move_leg("prefill")
            assert lease.prefill.worker_id != first
            lease.prefill_complete()
            eventually(lambda: len(booked(service)) == 1)
            lease.first_token()
        eventually(lambda: not booked(service))


def test_a_fallback_does_both_and_never_on_a_prefill_worker():
    async def scene():
        world = World()
        async with client(world, fallback=round_robin) as selector:
            async with selector.pair_lease(token_ids=IDS):
                await asyncio.sleep(1.0)
            world.down = set(URLS)
            for _ in range(3):
                async with selector.pair_lease(token_ids=IDS) as lease:
                    assert (lease.is_local, lease.booked) == (True, False)
                    assert lease.decode.worker_id == lease.prefill.worker_id == 1
                    with pytest.raises(Unavailable):
                        await lease.move_leg("prefill")

    run(scene())


async def test_a_group_of_leases_ends_one_by_one(service, url):
    async with AsyncSelector([url], model_name="m") as selector:
        async with selector.lease_group(5, token_ids=IDS) as leases:
            assert len({lease.reservation_id for lease in leases}) == 5
            assert len(booked(service)) == 5
            leases[0].end()
            await eventually_on_loop(lambda: len(booked(service)) == 4)
        await eventually_on_loop(lambda: not booked(service))


def test_a_group_of_threads(service, url):
    with Selector([url], model_name="m") as selector:
        with selector.lease_group(3, token_ids=IDS, reservation_id="g") as leases:
            assert [lease.reservation_id for lease in leases] == ["g-0", "g-1", "g-2"]
        eventually(lambda: not booked(service))
        with selector.lease_group(1, token_ids=IDS, reservation_id="g") as (lease,):
            assert lease.reservation_id == "g"
        eventually(lambda: not booked(service))


def test_a_selector_without_groups_is_named_and_its_reservation_freed():
    async def scene():
        world = World()
        async with client(world) as selector:
            with pytest.raises(SelectorError, match="no groups"):
                await selector.begin_group(2, token_ids=IDS)
            await asyncio.sleep(1.0)
            assert not world.live()

    run(scene())


NIXL = Handoff(
    order="sequential",
    peer_binding=False,
    kind="nixl",
    prefill_params={"max_tokens": 1, "stream": False, "kv_transfer_params": {"a": 1}},
    pass_on="kv_transfer_params",
    reply_path="kv_transfer_params",
)
TRT = Handoff(
    order="sequential",
    peer_binding=False,
    kind="tensorrt_llm",
    prefill_params={"stream": False, "disaggregated_params": {"request_type": "context_only"}},
    decode_params={"disaggregated_params": {"request_type": "generation_only"}},
    pass_on="disaggregated_params",
    reply_path="choices.0.disaggregated_params",
)


def test_the_prefill_call_requests_one_token_and_no_stream():
    body = {
        "prompt": [1],
        "max_tokens": 50,
        "max_completion_tokens": 50,
        "min_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert make_prefill_body(body, NIXL) == {
        "prompt": [1],
        "max_tokens": 1,
        "max_completion_tokens": 1,
        "stream": False,
        "kv_transfer_params": {"a": 1},
    }
    assert body["max_tokens"] == 50


def test_several_answers_need_several_pairs():
    with pytest.raises(HandoffError, match="n is 2"):
        make_prefill_body({"prompt": [1], "n": 2}, NIXL)


def test_the_decode_call_gets_the_object_of_the_reply_verbatim():
    passed = {"remote_block_ids": [[1, 2]], "remote_engine_id": "e"}
    made = make_decode_body({"prompt": [1]}, NIXL, {"kv_transfer_params": passed})
    assert made == {"prompt": [1], "kv_transfer_params": passed}
    reply = {"choices": [{"disaggregated_params": {"request_type": "context_only", "state": "s"}}]}
    assert make_decode_body({}, TRT, reply) == {
        "disaggregated_params": {"request_type": "generation_only", "state": "s"}
    }


@pytest.mark.parametrize("reply", [None, {}, {"kv_transfer_params": None}, {"choices": []}])
def test_a_reply_without_its_object_is_no_hand_over(reply):
    for handoff in (NIXL, TRT):
        with pytest.raises(HandoffError, match="has no"):
            make_decode_body({}, handoff, reply)


@pytest.mark.parametrize("fault", [lose_answer, late(60.0)])
def test_a_lost_answer_leaves_no_pair_behind(fault):
    async def scene():
        world = World()
        async with client(world, ttl_s=30.0) as selector:
            world.next[selector.core.home_selector()] = [fault]
            async with selector.pair_lease(token_ids=IDS) as lease:
                await asyncio.sleep(5.0)
                assert world.live() == [lease.reservation_id]
            await asyncio.sleep(5.0)
            assert not world.live()

    run(scene())
