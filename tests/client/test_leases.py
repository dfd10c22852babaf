"""Tests of leases: booked once, reported in order, renewed, and always ended."""

import asyncio

import pytest

from select_service.client import Refused, Unavailable, least_in_flight, round_robin
from tests.client.world import (
    TTL_S,
    URLS,
    World,
    bad_gateway,
    client,
    home_of,
    is_without_debts,
    late,
    lose_answer,
    lose_request,
    run,
)

RUN_ASYNC = run
"""Tests run in virtual time."""
IDS = list(range(8))


def verbs(world):
    """Return method and last path segment of the calls about reservations."""
    return [
        (method, target.rsplit("/", 1)[-1].partition("?")[0])
        for _, method, target in world.heard
        if target.startswith("/reservations/") and method != "GET"
    ]


async def test_a_lease_returns_its_rank_and_reports_its_life_in_order():
    world = World()
    async with client(world, ttl_s=TTL_S) as selector:
        async with selector.lease(token_ids=IDS) as lease:
            assert (lease.endpoint, lease.worker_id, lease.dp_rank) == (
                "http://engine-1:8000",
                1,
                0,
            )
            assert lease.booked
            assert lease.selector == home_of(selector)
            assert lease.overlap.gpu == lease.effective_prefill_tokens == lease.block_size == 4
            assert (lease.kv_source.worker_id, lease.kv_source.fetch_tokens) == (2, 4)
            assert world.live() == [lease.reservation_id]
            lease.first_token()
            lease.tokens(9)
        await asyncio.sleep(1.0)
        name = lease.reservation_id
        assert verbs(world) == [
            ("POST", "prefill_complete"),
            ("POST", "output_block"),
            ("POST", "output_block"),
            ("DELETE", name),
        ]
        assert world.calls(f"{name}?outcome=ok")
        assert not world.live()


@pytest.mark.parametrize(
    ("error", "query"), [(RuntimeError, "?outcome=failure"), (asyncio.CancelledError, "")]
)
async def test_the_end_of_the_block_reports_the_outcome_of_the_request(error, query):
    world = World()
    async with client(world, ttl_s=TTL_S) as selector:
        with pytest.raises(error):
            async with selector.lease(token_ids=IDS) as lease:
                raise error
        await asyncio.sleep(1.0)
        assert world.heard[-1][1:] == ("DELETE", f"/reservations/{lease.reservation_id}{query}")


@pytest.mark.parametrize("knows_repeats", [True, False])
@pytest.mark.parametrize("fault", [lose_answer, lose_request, bad_gateway, late(60.0)])
async def test_a_booking_with_a_lost_answer_is_made_once(fault, knows_repeats):
    world = World(knows_repeats=knows_repeats)
    async with client(world, ttl_s=TTL_S) as selector:
        world.next[home_of(selector)] = [fault]
        async with selector.lease(token_ids=IDS) as lease:
            assert lease.endpoint == "http://engine-1:8000"
            assert world.admissions == [lease.reservation_id]
            assert lease.effective_prefill_tokens == 4
        await asyncio.sleep(1.0)
        assert not world.live()


async def test_a_name_that_is_in_use_is_refused_the_first_time():
    world = World()
    async with client(world, ttl_s=TTL_S) as selector:
        await selector.begin(token_ids=IDS, reservation_id="x")
        with pytest.raises(Refused) as raised:
            await selector.begin(token_ids=IDS, reservation_id="x")
        assert raised.value.status == 409
        assert world.live() == ["x"]


async def test_a_booking_of_another_prompt_under_the_name_is_left_alone():
    world = World(knows_repeats=False)
    async with client(world, ttl_s=TTL_S) as selector:
        await selector.begin(token_ids=IDS, reservation_id="x")
        world.next[home_of(selector)] = [lose_request]
        with pytest.raises(Refused):
            await selector.begin(token_ids=[1, 2], reservation_id="x")
        await asyncio.sleep(5.0)
        assert world.live() == ["x"]


async def test_a_booking_that_is_given_up_is_freed():
    world = World()
    async with client(world, ttl_s=TTL_S, deadline_s=2.0) as selector:
        world.next = {url: [lose_answer] + [lose_request] * 20 for url in URLS}
        with pytest.raises(Unavailable):
            async with selector.lease(token_ids=IDS):
                pass
        assert len(world.live()) == 1
        world.next.clear()
        await asyncio.sleep(TTL_S / 2)
        assert not world.live()
        assert is_without_debts(selector)


async def test_a_booking_with_a_cancelled_caller_is_freed():
    world = World()
    async with client(world, ttl_s=TTL_S) as selector:
        world.next[home_of(selector)] = [late(0.5)]
        booking = asyncio.ensure_future(selector.begin(token_ids=IDS))
        await asyncio.sleep(0.2)
        booking.cancel()
        world.next[home_of(selector)] = [late(1.0)]  # the first DELETE comes after the booking
        await asyncio.sleep(5.0)
        assert world.admissions
        assert not world.live()


async def test_a_lease_goes_on_at_another_selector_when_its_own_is_gone():
    world = World()
    async with client(world, ttl_s=TTL_S) as selector:
        async with selector.lease(token_ids=IDS) as lease:
            world.down.add(lease.selector)
            lease.first_token()
            await asyncio.sleep(1.0)
            assert len(world.calls("/prefill_complete")) == 1
        await asyncio.sleep(1.0)
        assert not world.live()


async def test_the_end_is_reported_when_selectors_are_back():
    world = World()
    async with client(world, ttl_s=TTL_S, deadline_s=1.0) as selector:
        async with selector.lease(token_ids=IDS) as lease:
            lease.first_token()
            world.down = set(URLS)
        await asyncio.sleep(3.0)
        assert world.live()
        world.down.clear()
        await asyncio.sleep(TTL_S / 2)
        assert not world.live()
        assert is_without_debts(selector)


@pytest.mark.parametrize("given", [True, False])
async def test_a_lease_that_is_silent_is_renewed_at_a_third_of_its_time_to_live(given):
    world = World()
    async with client(world, **({"ttl_s": TTL_S} if given else {})) as selector:
        async with selector.lease(token_ids=IDS) as lease:
            await asyncio.sleep(10 * TTL_S)
            assert world.live() == [lease.reservation_id]
            renewals = len(world.calls("/renew"))
            assert 30 <= renewals <= 38
            for _ in range(100):
                lease.tokens(4)
                await asyncio.sleep(1.0)
            assert len(world.calls("/renew")) <= renewals + 1, "what is told renews as well"
        await asyncio.sleep(TTL_S)
        before = len(world.heard)
        await asyncio.sleep(TTL_S)
        assert len(world.heard) == before


async def test_a_lease_unknown_to_all_selectors_is_lost():
    world = World()
    async with client(world, ttl_s=TTL_S) as selector:
        async with selector.lease(token_ids=IDS) as lease:
            world.booked.clear()
            assert not lease.lost
            lease.first_token()
            await asyncio.sleep(1.0)
            assert lease.lost
            lease.tokens(100)
        await asyncio.sleep(1.0)
        assert not world.calls("/output_block")
        assert world.admissions == [lease.reservation_id]


async def test_a_client_that_is_closed_leaves_nothing_behind():
    world = World()
    selector = client(world, ttl_s=TTL_S)
    leases = [await selector.begin(token_ids=IDS) for _ in range(5)]
    leases[0].end()
    await selector.close()
    assert not world.live()
    assert len(world.admissions) == 5


async def test_headers_of_traces_and_the_key_are_sent_with_every_call_of_a_lease():
    world = World()
    options = {"trace_headers": lambda: {"traceparent": "00-1"}, "api_key": "secret"}
    async with client(world, ttl_s=TTL_S, **options) as selector:
        assert "secret" not in repr(selector.core.settings)
        async with selector.lease(token_ids=IDS, headers={"tracestate": "a=b"}) as lease:
            lease.first_token()
        await asyncio.sleep(1.0)
    assert len(world.headers) == 3
    for headers in world.headers:
        assert headers["traceparent"] == "00-1"
        assert headers["tracestate"] == "a=b"
        assert headers["authorization"] == "Bearer secret"


async def test_a_text_is_tokenized():
    world = World()
    async with client(world, ttl_s=TTL_S, tokenize=lambda text: [len(text)]) as selector:
        await selector.begin("hello")
    async with client(world) as selector:
        with pytest.raises(ValueError, match="tokenize"):
            await selector.begin("hello")


@pytest.mark.parametrize("fallback", [round_robin, least_in_flight])
async def test_a_fallback_chooses_from_the_last_workers(fallback):
    world = World()
    async with client(world, ttl_s=TTL_S, fallback=fallback, deadline_s=1.0) as selector:
        async with selector.lease(token_ids=IDS):
            pass
        await asyncio.sleep(5.0)
        world.down = set(URLS)
        async with selector.lease(token_ids=IDS) as one, selector.lease(token_ids=IDS) as two:
            assert {one.worker_id, two.worker_id} == {1, 2}
            assert not one.booked
            assert one.selector is None
            one.first_token()
            one.tokens(100)
        heard = len(world.heard)
        await asyncio.sleep(0.2)
        assert len(world.heard) == heard


async def test_without_a_fallback_the_caller_gets_an_error():
    world = World()
    world.down = set(URLS)
    async with client(world, deadline_s=1.0) as selector:
        with pytest.raises(Unavailable):
            await selector.begin(token_ids=IDS)
