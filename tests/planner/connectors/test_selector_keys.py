"""Test of selectors that require a key, for which the planner sends the key of its file."""

import asyncio

import pytest

from select_service.planner.connectors.selector_client import SelectorClients
from select_service.planner.planner_http import PlannerHttpClient
from select_service.planner.runtime.selector_source import SelectorSource
from tests.builders import worker_body
from tests.builders.in_thread import InThread
from tests.builders.keys import bearer, entry, keys_file, secret


@pytest.fixture
def guarded_service(tmp_path):
    path = keys_file(tmp_path, entry("planner", "operator"))
    with InThread("--api-keys-file", str(path), "--health-checks=on") as service:
        body = worker_body(1)
        answer = service.call("POST", "/workers", body, authorization=bearer("planner"))
        assert answer.status == 201
        yield service


def test_observations_loads_and_drains_are_requested_with_the_key(guarded_service, tmp_path):
    key_file = tmp_path / "key"
    key_file.write_text(secret("planner"))
    url = f"http://127.0.0.1:{guarded_service.port}"

    async def read_selector(path):
        http, selectors = PlannerHttpClient(), SelectorClients([url], "m", "default", path)
        source = SelectorSource([url], http, "m", "default", lambda: 0.0, key_file=path)
        try:
            seen = await source.read_observations(60.0, ttft_s=1.0, itl_s=1.0)
            return seen, await selectors.read_loads(), source.faults
        finally:
            await http.close()
            await selectors.close()

    seen, loads, faults = asyncio.run(read_selector(str(key_file)))
    assert faults == {}
    assert seen is not None
    assert [load.worker_id for load in loads] == [1]
    seen, loads, faults = asyncio.run(read_selector(None))
    assert (seen, loads) == (None, None)
    assert "401" in faults[url]
