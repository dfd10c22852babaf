"""Tests of discovered engines, which become workers after their facts are read."""

import asyncio
import contextlib

import pytest

from select_service.adapters.discovery import engine_prober as module
from select_service.adapters.discovery.engine_prober import EngineProber
from select_service.adapters.discovery.source_status import SourceStatus
from select_service.core.registry.discovery.engine_candidates import EngineCandidate
from select_service.core.registry.discovery.worker_records import derive_worker_id
from tests.adapters.discovery.engines import engine, http_client
from tests.builders.polling import eventually_on_loop


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch):
    monkeypatch.setattr(module, "RETRY_S", 0.02)
    monkeypatch.setattr(module, "GATHER_S", 0.01)


class RecordedOffers:
    def __init__(self):
        self.offers = []
        self.readings = SourceStatus("a", "dns", "a", lambda *offer: self.offers.append(offer))

    @property
    def desired(self):
        return self.offers[-1][1] if self.offers else None

    @property
    def undecided(self):
        return self.offers[-1][2]


@contextlib.asynccontextmanager
async def running(http):
    told = RecordedOffers()
    completing = EngineProber(told.readings, http)
    task = asyncio.create_task(completing.run_prober())
    try:
        yield completing, told
    finally:
        task.cancel()
        await asyncio.wait([task])


@contextlib.asynccontextmanager
async def probing():
    """Yield an engine, its URL, its prober, and the recorded readings."""
    async with (
        http_client() as http,
        engine() as (told_engine, url),
        running(http) as (completing, told),
    ):
        yield told_engine, url, completing, told


def candidate(url, version="", **fields):
    return EngineCandidate(url, {"endpoint": url, **fields}, version)


async def test_fields_missing_in_the_template_are_read_from_the_engine():
    async with probing() as (_, url, completing, told):
        completing.set_candidates([candidate(url, model_name="mine")])
        await eventually_on_loop(lambda: told.desired)
        (worker,) = told.desired.values()
        assert (worker.model_name, worker.block_size) == ("mine", 16)
        assert worker.worker_id == derive_worker_id(url)
        completing.set_candidates([])
        await eventually_on_loop(lambda: told.desired == {})


async def test_a_silent_engine_is_withheld_and_queried_again():
    async with probing() as (told_engine, url, completing, told):
        told_engine.starts = True
        completing.set_candidates([candidate(url)])
        await eventually_on_loop(lambda: told_engine.asked > 8)
        assert told.desired == {}
        assert told.undecided == {derive_worker_id(url)}
        assert told.readings.withheld == {url: "status 503"}
        told_engine.starts = False
        await eventually_on_loop(lambda: told.desired)
        assert (told.undecided, told.readings.withheld) == (frozenset(), {})


async def test_another_engine_at_the_same_address_is_undecided_until_its_answer():
    async with probing() as (told_engine, url, completing, told):
        completing.set_candidates([candidate(url, "1")])
        await eventually_on_loop(lambda: told.desired)
        told_engine.starts = True
        completing.set_candidates([candidate(url, "2")])
        await eventually_on_loop(lambda: told.desired == {})
        assert told.undecided == {derive_worker_id(url)}
        told_engine.starts = False
        await eventually_on_loop(lambda: told.desired)


async def test_a_complete_template_needs_no_request():
    async with running(None) as (completing, told):
        urls = [f"http://e{n}:1" for n in range(3)]
        bad = EngineCandidate("http://bad", {"endpoint": "http://bad", "block_size": "x"})
        twice = candidate("http://other", worker_id=derive_worker_id(urls[0]))
        completing.set_candidates([*(candidate(url, block_size=4) for url in urls), bad, twice])
        await eventually_on_loop(lambda: told.desired)
        assert sorted(w.endpoint for w in told.desired.values()) == urls
        withheld = told.readings.withheld
        assert withheld["http://bad"].startswith("`block_size`: expected a whole number")
        assert withheld["http://other"].endswith("is already used by another engine")
        assert told.undecided == {derive_worker_id("http://bad")}


async def test_an_engine_that_changes_is_noticed(monkeypatch):
    monkeypatch.setattr(module, "REFRESH_S", 0.02)
    async with probing() as (told_engine, url, completing, told):
        completing.set_candidates([candidate(url)])
        await eventually_on_loop(lambda: told.desired)
        models = told_engine.answers["/v1/models"]
        told_engine.answers["/v1/models"] = models.replace(b'"qwen"', b'"new"')
        await eventually_on_loop(lambda: [w.model_name for w in told.desired.values()] == ["new"])


async def test_sglang_is_queried_for_its_model_as_well():
    async with engine("sglang-0.5.23-1") as (told_engine, url), http_client() as http:
        told_engine.answers["/model_info"] = b'{"architectures": ["GptOssForCausalLM"]}'
        async with running(http) as (completing, told):
            completing.set_candidates([candidate(url)])
            await eventually_on_loop(lambda: told.desired)
            (record,) = told.desired.values()
            assert record.kv_cache is not None
            assert record.kv_cache.certainty == "at_most"
