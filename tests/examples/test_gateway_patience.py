"""Tests of the surviving gateway's wait for a first token, from the service's observations."""

import asyncio
import contextlib
import importlib.util
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from select_service.core.load.histogram_bins import TIME_BINS, TIME_EDGES_S
from tests.builders import worker_body
from tests.builders.in_process import Api

PATH = Path(__file__).parents[2] / "docs/examples/surviving_gateway/gateway_patience.py"


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, PATH.with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def patience():
    return loaded("gateway_patience")


def observed(*seconds):
    """Return the service's answer with first tokens after these seconds."""
    counts = [0] * TIME_BINS
    for each in seconds:
        counts[int((each >= TIME_EDGES_S).sum()) - 1] += 1
    return {"ttft_s": {"counts": counts}, "bins": {"seconds": TIME_EDGES_S.tolist()}}


@pytest.mark.parametrize(
    ("seconds", "least", "most"),
    [
        ([0.05] * 100, 2.0, 2.0),
        ([0.5] * 100, 5.0, 5.7),
        ([0.5] * 98 + [20.0] * 2, 40.0, 45.0),
        ([9.0] * 100, 90.0, 101.0),
        ([0.5] * 98 + [50.0] * 2, 100.0, 112.0),
        ([100.0] * 100, 600.0, 600.0),
        ([0.5] * 19, 33.0, 33.0),
        ([], 33.0, 33.0),
    ],
)
def test_the_patience_is_some_medians_or_twice_the_time_of_long_prompts(
    patience, seconds, least, most
):
    assert least <= patience.compute_limit_s(observed(*seconds), 33.0) <= most


def test_an_answer_without_times_changes_nothing(patience):
    assert patience.compute_limit_s({}, 33.0) == 33.0


class Service:
    """Selector that answers as a real service in this process does."""

    def __init__(self, api):
        self._api, self.asked = api, []

    async def fetch_observation(self, model):
        self.asked.append(model)
        query = {"model_name": model, "window_s": 600}
        answer = await self._api._client.get("/planner/observation", params=query)
        return answer.json() if answer.status_code == 200 else {}


def test_the_patience_follows_reports_of_callers(patience, monkeypatch):
    monkeypatch.setattr(patience, "QUERY_INTERVAL_S", 0.001)
    with Api() as api:
        api.post("/workers", worker_body(1))
        api.get("/planner/observation?model_name=m")  # counting begins here
        for number in range(patience.SAMPLES_MIN):
            body = {"model_name": "m", "token_ids": [1, 2], "reservation_id": str(number)}
            assert api.post("/select_and_reserve", body).status == 200
            assert api.post(f"/reservations/{number}/prefill_complete").status == 200
        service = Service(api)
        first = patience.FirstTokenLimits(service, None)
        assert first.get_limit_s("m") == first.get_limit_s("unknown") == patience.DEFAULT_LIMIT_S

        async def follow():
            following = asyncio.create_task(first.follow_observations())
            while first.get_limit_s("m") == patience.DEFAULT_LIMIT_S:
                await asyncio.sleep(0.001)
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following

        api.wait_for(follow())
        assert first.get_limit_s("m") < patience.DEFAULT_LIMIT_S
        assert first.get_limit_s("unknown") == patience.DEFAULT_LIMIT_S


def test_the_patience_of_the_operator_counts_without_a_call(patience):
    first = patience.FirstTokenLimits(None, 7.0)
    asyncio.run(first.follow_observations())
    assert first.get_limit_s("m") == 7.0


def test_the_number_of_models_is_bounded(patience):
    first = patience.FirstTokenLimits(None, None)
    for number in range(2 * patience.MODELS_MAX):
        first.get_limit_s(str(number))
    assert len(first._limits_s) == patience.MODELS_MAX


async def test_a_refusal_of_the_service_is_logged_once(caplog):
    gateway_selector = loaded("gateway_selector")

    async def refuse(request):
        return web.json_response({"error": "this key may not"}, status=403)

    application = web.Application()
    application.router.add_get("/planner/observation", refuse)
    async with TestServer(application) as server, aiohttp.ClientSession() as http:
        selector = gateway_selector.Selector(http, str(server.make_url("/")))
        assert [await selector.fetch_observation("m") for _ in range(2)] == [{}, {}]
    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert "status 403" in record.getMessage()
    assert "--first-token-secs" in record.getMessage()
