"""Engines that a source has found become workers when they have said what they are."""

import asyncio
import contextlib

import pytest

from select_service.core.discovery.candidates import Candidate
from select_service.core.discovery.records import made_id
from select_service.edge.discovery import completing as module
from select_service.edge.discovery.completing import Completing
from select_service.edge.discovery.source import Readings
from tests.edge.discovery.engines import engine, http_client
from tests.patience import eventually_on_loop


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch):
    monkeypatch.setattr(module, "AGAIN_S", 0.02)
    monkeypatch.setattr(module, "GATHER_S", 0.01)


class Told:
    def __init__(self):
        self.offers = []
        self.readings = Readings("a", "dns", "a", lambda *offer: self.offers.append(offer))

    @property
    def desired(self):
        return self.offers[-1][1] if self.offers else None

    @property
    def undecided(self):
        return self.offers[-1][2]


@contextlib.asynccontextmanager
async def running(http):
    told = Told()
    completing = Completing(told.readings, http)
    task = asyncio.create_task(completing.run())
    try:
        yield completing, told
    finally:
        task.cancel()
        await asyncio.wait([task])


@contextlib.asynccontextmanager
async def asking():
    """An engine, and who asks it."""
    async with (
        http_client() as http,
        engine() as (told_engine, url),
        running(http) as (completing, told),
    ):
        yield told_engine, url, completing, told


def candidate(url, version="", **fields):
    return Candidate(url, {"endpoint": url, **fields}, version)


def test_what_the_template_does_not_say_the_engine_is_asked_for():
    async def story():
        async with asking() as (_, url, completing, told):
            completing.want([candidate(url, model_name="mine")])
            await eventually_on_loop(lambda: told.desired)
            (worker,) = told.desired.values()
            assert (worker.model_name, worker.block_size) == ("mine", 16)
            assert worker.worker_id == made_id(url)
            completing.want([])
            await eventually_on_loop(lambda: told.desired == {})

    asyncio.run(story())


def test_an_engine_that_does_not_answer_is_withheld_and_asked_again():
    async def story():
        async with asking() as (told_engine, url, completing, told):
            told_engine.starts = True
            completing.want([candidate(url)])
            await eventually_on_loop(lambda: told_engine.asked > 8)
            assert told.desired == {}
            assert told.undecided == {made_id(url)}
            assert told.readings.withheld == {url: "status 503"}
            told_engine.starts = False
            await eventually_on_loop(lambda: told.desired)
            assert (told.undecided, told.readings.withheld) == (frozenset(), {})

    asyncio.run(story())


def test_another_engine_at_the_same_address_is_asked_and_until_then_undecided():
    async def story():
        async with asking() as (told_engine, url, completing, told):
            completing.want([candidate(url, "1")])
            await eventually_on_loop(lambda: told.desired)
            told_engine.starts = True
            completing.want([candidate(url, "2")])
            await eventually_on_loop(lambda: told.desired == {})
            assert told.undecided == {made_id(url)}
            told_engine.starts = False
            await eventually_on_loop(lambda: told.desired)

    asyncio.run(story())


def test_nobody_is_asked_where_the_template_says_all():
    async def story():
        async with running(None) as (completing, told):
            urls = [f"http://e{n}:1" for n in range(3)]
            bad = Candidate("http://bad", {"endpoint": "http://bad", "block_size": "x"})
            twice = candidate("http://other", worker_id=made_id(urls[0]))
            completing.want([*(candidate(url, block_size=4) for url in urls), bad, twice])
            await eventually_on_loop(lambda: told.desired)
            assert sorted(w.endpoint for w in told.desired.values()) == urls
            withheld = told.readings.withheld
            assert withheld["http://bad"].startswith("`block_size`: expected a whole number")
            assert withheld["http://other"].startswith("another one has the worker_id")
            assert told.undecided == {made_id("http://bad")}

    asyncio.run(story())


def test_an_engine_that_changes_is_noticed(monkeypatch):
    monkeypatch.setattr(module, "REFRESH_S", 0.02)

    async def story():
        async with asking() as (told_engine, url, completing, told):
            completing.want([candidate(url)])
            await eventually_on_loop(lambda: told.desired)
            models = told_engine.answers["/v1/models"]
            told_engine.answers["/v1/models"] = models.replace(b'"qwen"', b'"new"')
            await eventually_on_loop(
                lambda: [w.model_name for w in told.desired.values()] == ["new"]
            )

    asyncio.run(story())
