"""Tests of failing calls: repeated calls, their selectors and number, and the errors of callers."""

import asyncio
import json
from typing import Any

import pytest

from select_service.client import AsyncSelector, Refused, Selector, Unavailable
from select_service.client.refusals import classify_refusal
from select_service.client.retry_budget import REPEATS_SAVED_MAX, RetryBudget
from select_service.client.transport import ClientResponse
from tests.client.world import (
    URLS,
    World,
    bad_gateway,
    client,
    home_of,
    late,
    lose_answer,
    lose_request,
    refuse,
    run,
)

RUN_ASYNC = run
"""Tests run in virtual time."""
LOST = {"lost answer": lose_answer, "lost request": lose_request, "bad gateway": bad_gateway}


async def test_a_call_goes_to_the_selector_of_its_scope():
    async with client(World()) as selector:
        await selector.health()
        await selector.health()
        assert selector.core.transport.calls("/health") == [home_of(selector)] * 2


async def test_a_selector_that_is_down_is_skipped_until_it_is_ready():
    world = World()
    async with client(world) as selector:
        home = home_of(selector)
        world.down.add(home)
        await selector.health()
        other = world.calls("/health")[-1]
        assert other != home
        world.down.clear()
        await selector.health()
        assert world.calls("/health")[-1] == other, "before its rest is over"
        await asyncio.sleep(1.0)
        assert world.calls("/ready") == [home]
        await selector.health()
        assert world.calls("/health")[-1] == home


@pytest.mark.parametrize("fault", LOST.values(), ids=LOST)
async def test_a_read_with_a_lost_answer_is_repeated_elsewhere(fault):
    world = World()
    async with client(world) as selector:
        home = home_of(selector)
        world.next[home] = [fault]
        assert (await selector.health()).status == "ok"
        assert world.calls("/health")[-1] != home


async def test_an_output_block_with_a_lost_answer_is_not_repeated():
    world = World()
    async with client(world) as selector:
        world.next[home_of(selector)] = [lose_answer]
        with pytest.raises(Unavailable) as raised:
            await selector.output_block("x")
        assert raised.value.may_be_done
        assert len(world.calls("/output_block")) == 1


async def test_a_refusal_of_4xx_is_raised_at_once():
    world = World()
    async with client(world) as selector:
        with pytest.raises(Refused) as raised:
            await selector.reservation("nobody")
        assert (raised.value.status, raised.value.code) == (404, "not_found")
        assert len(world.heard) == 1


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_waited_for_when_it_fits_into_the_deadline(status):
    world = World()
    async with client(world) as selector:
        world.next[home_of(selector)] = [refuse(status, "queue_full", "2")]
        begin = world.now
        await selector.health()
        assert 2.0 <= world.now - begin < 3.0
        assert world.calls("/health") == [home_of(selector)]


async def test_retry_after_that_does_not_fit_is_raised():
    world = World()
    async with client(world) as selector:
        world.next[home_of(selector)] = [refuse(503, "capacity_shed", "30")]
        begin = world.now
        with pytest.raises(Refused) as raised:
            await selector.health()
        assert raised.value.retry_after_s == 30.0
        assert world.now - begin < 0.1


async def test_a_selector_without_workers_is_not_the_last_word():
    world = World()
    async with client(world) as selector:
        home = home_of(selector)
        world.next[home] = [refuse(503, "no_schedulable_workers")]
        await selector.health()
        assert world.calls("/health")[-1] != home
        assert home_of(selector) == home, "it has answered, and serves"


async def test_a_refusal_of_all_selectors_is_raised_after_one_round():
    world = World()
    async with client(world) as selector:
        world.next = {url: [refuse(503, "no_schedulable_workers")] for url in URLS}
        with pytest.raises(Refused) as raised:
            await selector.health()
        assert raised.value.code == "no_schedulable_workers"
        assert not any(world.next.values())


async def test_the_deadline_holds_when_no_selector_answers():
    world = World()
    world.down = set(URLS)
    async with client(world, deadline_s=3.0) as selector:
        begin = world.now
        with pytest.raises(Unavailable) as raised:
            await selector.health()
        assert 1.5 < world.now - begin <= 3.0
        assert not raised.value.may_be_done


async def test_the_deadline_holds_when_all_answer_too_late():
    world = World()
    async with client(world, deadline_s=3.0) as selector:
        world.next = {url: [late(60.0)] * 9 for url in URLS}
        begin = world.now
        with pytest.raises(Unavailable) as raised:
            await selector.health()
        assert 1.5 < world.now - begin <= 3.0
        assert raised.value.may_be_done


def test_a_budget_bounds_repeats_and_calls_and_time_fill_it():
    budget = RetryBudget()
    assert sum(budget.take_repeat(0.0) for _ in range(1000)) == REPEATS_SAVED_MAX
    for _ in range(101):
        budget.add_call()
    assert sum(budget.take_repeat(0.0) for _ in range(1000)) == 10
    assert sum(budget.take_repeat(1.0) for _ in range(1000)) == 10


def test_a_url_that_is_none_is_refused():
    with pytest.raises(ValueError, match="not the URL of a selector"):
        client(World(), urls=("localhost:8092",))


@pytest.mark.parametrize(
    ("urls", "told"),
    [
        ("http://a:8092", "expected a list of URLs of selectors, got one text"),
        ((), "URLs of selectors are missing"),
    ],
)
def test_urls_that_are_no_list_of_some_are_refused(urls: Any, told: str) -> None:
    for kind in (AsyncSelector, Selector):
        with pytest.raises(ValueError, match=told):
            kind(urls)


def test_a_transport_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="transport: expected httpx or aiohttp, got `htpx`"):
        AsyncSelector(["http://a:8092"], transport="htpx")


def test_a_refusal_names_unknown_fields() -> None:
    said = {"error": "a prompt is missing", "code": "bad_request", "warnings": ["`tokenids`: no"]}
    refused, _ = classify_refusal(ClientResponse(400, {}, json.dumps(said).encode()))
    assert str(refused) == "400 bad_request: a prompt is missing; `tokenids`: no"
