"""Tests that the programs of the guide about prefill and decode run against two engines."""

import asyncio
import json
import re
import sys
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, SimpleNamespace

import httpx
import pytest

from tests.builders.in_process import Api
from tests.builders.in_thread import InThread
from tests.builders.polling import eventually
from tests.examples.gateway_scenes import Engine
from tests.examples.token_engine import generated, text_of

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "prefill-decode.md").read_text()
CLIENT_PROGRAM, RAY_PROGRAM = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
BODIES = [json.loads(body) for body in re.findall(r"-d '(\{.*?\})'\n", PAGE, re.DOTALL)]


def test_the_requests_of_the_page_are_accepted():
    with Api("--policy", "work") as api:
        *workers, pair = BODIES
        for worker in workers:
            assert api.post("/workers", worker).status == 201
        answer = api.post("/select_pair_and_reserve", pair)
        assert answer.status == 200
        assert [leg["worker_id"] for leg in answer.body["legs"]] == [1, 2]
        assert answer.body["handoff"]["kind"] == "nixl"
        assert not answer.body["handoff"]["missing"]


@pytest.fixture(scope="module")
def fleet():
    """Yield a service and an engine of each role; prompts are expensive on the decode engine."""
    with InThread("--policy", "work") as service, ExitStack() as stack:
        engines = []
        for role, flags in (("prefill", ()), ("decode", ("--no-prefill",))):
            transfer = {"kind": "nixl", "host": "a"}
            fields = {"model_name": "qwen", "role": role, "kv_transfer": transfer}
            engines.append(stack.enter_context(Engine(service, *flags, **fields)))
        # A long prompt on the decode engine: new prompts are cheaper on the prefill engine.
        busy = {"model_name": "qwen", "token_ids": list(range(4000)), "reservation_id": "busy"}
        busy["worker_id"] = engines[1].worker_id
        assert service.call("POST", "/reservations", busy).status == 201
        yield service, engines


def is_idle(service):
    return service.call("GET", "/reservations").body["total"] == 1


@pytest.mark.process
def test_the_program_with_the_client(fleet, capsys):
    service, _ = fleet
    text = CLIENT_PROGRAM.replace("http://selector-a:8092", f"http://127.0.0.1:{service.port}")
    exec(compile(text, "docs/guides/prefill-decode.md", "exec"), {"__name__": "__main__"})
    tokens = generated([1, 2, 3, 4, 5, 6, 7, 8])
    assert capsys.readouterr().out.strip() == text_of(next(tokens) for _ in range(16))
    eventually(lambda: is_idle(service))


class Replica:
    """Replica behind the handle of a deployment."""

    def __init__(self, engine):
        self._url = f"{engine.url}/v1/completions"
        self.calls = 0
        self.complete = SimpleNamespace(remote=self._complete)

    async def _complete(self, body):
        self.calls += 1
        async with httpx.AsyncClient() as http:
            answer = await http.post(self._url, json=body)
            return answer.raise_for_status().json()


@pytest.mark.process
def test_the_program_with_two_deployments(fleet, monkeypatch):
    service, engines = fleet
    ray, ours = ModuleType("ray"), ModuleType("select_service.ray")
    ray.serve = SimpleNamespace(deployment=lambda kind: kind)
    ours.find = lambda: [f"http://127.0.0.1:{service.port}"]
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "select_service.ray", ours)
    names = {"__name__": "page"}
    exec(compile(RAY_PROGRAM, "docs/guides/prefill-decode.md", "exec"), names)
    prefill, decode = map(Replica, engines)

    async def scene():
        handles = {engines[0].worker_id: prefill}, {engines[1].worker_id: decode}
        frontend = names["PairFrontend"](*handles)
        try:
            return await frontend({"prompt": [5, 6, 7], "max_tokens": 16})
        finally:
            await frontend.selector.close()

    answer = asyncio.run(scene())
    tokens = generated([5, 6, 7])
    assert answer["choices"][0]["text"] == text_of(next(tokens) for _ in range(16))
    assert (prefill.calls, decode.calls) == (1, 1)
    eventually(lambda: is_idle(service))
