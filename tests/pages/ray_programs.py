"""The programs of the page about Ray, run next to a service with a fake Ray.

`python -m tests.pages.ray_programs URL` prints a line of JSON with observations. It is a separate
process, because the fake must not replace Ray in other tests.
"""

import asyncio
import inspect
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import httpx

PAGE = Path(__file__).parents[2] / "docs" / "start" / "ray.md"
WORKER = {
    "worker_id": 1,
    "model_name": "qwen",
    "endpoint": "http://vllm-0:8000",
    "block_size": 16,
    "data_parallel_size": 2,
    "kv_events_endpoints": {"0": "tcp://127.0.0.1:1", "1": "tcp://127.0.0.1:2"},
}


class ActorDiedError(Exception):
    """Fake of the error of Ray."""


class RequestRouter:
    """Fake of the base class of routers."""


def install_stand_ins(scope: dict[str, Any]) -> None:
    """Provide the modules of Ray that `select_service.ray` imports."""
    actor = SimpleNamespace(
        select_service_worker=SimpleNamespace(
            remote=lambda: scope["Engine"]().select_service_worker()
        )
    )
    replicas = iter(range(10))
    ray = _add_module(
        "ray",
        remote=lambda given: given,
        get=lambda given: given,
        wait=lambda calls, **_: (calls, []),
        get_actor=lambda name, namespace: actor,
        init=MagicMock(),
    )
    ray.util = SimpleNamespace(
        list_named_actors=lambda all_namespaces: [{"name": "engine-7", "namespace": "fleet"}],
        get_node_ip_address=lambda: "127.0.0.1",
    )
    _add_module("ray.actor", ActorHandle=object)
    _add_module(
        "ray.exceptions", ActorDiedError=ActorDiedError, RayError=OSError, RayActorError=OSError
    )
    _add_module("ray.serve.handle", DeploymentHandle=object)
    _add_module("ray.serve.config", RequestRouterConfig=lambda **given: given)
    _add_module(
        "ray.serve.request_router",
        RequestRouter=RequestRouter,
        PendingRequest=object,
        ReplicaID=object,
        RunningReplica=object,
    )
    ray.serve = _add_module(
        "ray.serve",
        deployment=lambda **given: lambda engine: _with_options(engine, given),
        get_replica_context=lambda: _replica_context(next(replicas)),
    )


def _add_module(name: str, **members: Any) -> Any:
    module = sys.modules.setdefault(name, ModuleType(name))
    vars(module).update(members, __path__=[])
    return module


def _with_options(engine: Any, options: dict[str, Any]) -> Any:
    engine.serve_options = options
    return engine


def _replica_context(number: int) -> SimpleNamespace:
    name = f"replica-{number}"
    return SimpleNamespace(
        replica_id=SimpleNamespace(unique_id=name, to_full_id_str=lambda: f"app#{name}")
    )


def checking_arguments(function: Callable[..., Any], result: Any) -> Callable[..., Any]:
    """Return a function that accepts the arguments of `function` and returns `result`."""

    def call(*positional: Any, **named: Any) -> Any:
        inspect.signature(function).bind(*positional, **named)
        return result

    return call


def run_programs(url: str) -> dict[str, Any]:
    """Run all programs of the page in order and return observations for the test."""
    programs = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    start, client, follower, replica, hook, keys = programs
    scope: dict[str, Any] = {}
    install_stand_ins(scope)
    import select_service.ray as package
    from select_service.ray import deployment, router
    from select_service.ray import replica as replica_module

    package.deploy = checking_arguments(deployment.deploy, [url])
    package.find = lambda: [url]
    package.remove = lambda: None
    replica_module.make_lookup = lambda selectors: lambda: [url]
    seen: dict[str, Any] = {}

    exec(start, scope)
    httpx.post(f"{url}/workers", json=WORKER).raise_for_status()
    exec(client, scope)
    seen["answers"] = asyncio.run(ask_frontend(scope["Frontend"]))
    seen["reservations"] = httpx.get(f"{url}/reservations").json()["total"]

    exec(follower, scope)
    scope["follower"].turn()
    seen["followed"] = workers_at(url)[7]
    scope["follower"].close()

    exec(replica, scope)
    options = scope["Engine"].serve_options["request_router_config"]
    inspect.signature(router.SelectServiceRouter.initialize_state).bind(
        None, **options["request_router_kwargs"]
    )
    seen["router"] = options["request_router_class"]
    engines = [scope["Engine"](), scope["Engine"]()]
    for engine in engines:
        engine.worker.turn()
        asyncio.run(engine.generate([1, 2, 3]))
    seen["replicas"] = [each for each in workers_at(url).values() if each["worker_id"] > 7]
    del engine, engines

    exec(hook, scope)
    module, _, function = scope["HOOK"].rpartition(".")
    seen["hook"] = callable(getattr(__import__(module, fromlist=[function]), function))
    scope["Follower"] = checking_arguments(package.Follower, None)
    scope["deploy"] = package.deploy
    exec(keys, scope)
    return seen


async def ask_frontend(frontend: Any) -> list[Any]:
    """Return the requests that an engine gets for a plain prompt and with an adapter."""
    requests = []

    def answer(request: httpx.Request) -> httpx.Response:
        rank = request.headers["x-data-parallel-rank"]
        requests.append((str(request.url), rank, json.loads(request.content)))
        body = {"usage": {"completion_tokens": 20}, "choices": [{"text": "answer"}]}
        return httpx.Response(200, json=body)

    actor = frontend()
    await actor.engines.aclose()
    actor.engines = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    tokens = list(range(40))
    assert await actor.generate(tokens) == "answer"
    assert await actor.generate(tokens, lora_name="poems", cache_salt="red") == "answer"
    await actor.selector.close()
    return requests


def workers_at(url: str) -> dict[int, Any]:
    """Return the records of a selector's workers by id, without removed ones."""
    records = httpx.get(f"{url}/workers").json()
    return {each["worker_id"]: each for each in records if each["lifecycle"] != "unschedulable"}


if __name__ == "__main__":
    print(json.dumps(run_programs(sys.argv[1])))
