"""Tests of fake features beyond the connector's use: watches, bookmarks, patches."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from tests.builders.fake_kubernetes.kinds import DEPLOYMENT, POD
from tests.builders.fake_kubernetes.patches import PatchError, merged, patched
from tests.builders.fake_kubernetes.server import FakeKubernetes, serving
from tests.vectors.planner_kubectl import play

PODS = "/api/v1/namespaces/default/pods"


async def next_event(stream: aiohttp.StreamReader) -> dict[str, Any]:
    async with asyncio.timeout(30):
        return dict(json.loads(await stream.readline()))


async def test_a_watch_sends_changes_and_bookmarks() -> None:
    async with serving(FakeKubernetes()) as fake, aiohttp.ClientSession(fake.url) as session:
        spec = {"metadata": {"name": "decode"}, "spec": {"replicas": 1}}
        fake.store.create(DEPLOYMENT, "default", spec)
        query = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": "1"}
        async with session.get(PODS, params=query) as answer:
            fake.controller.step(30)
            assert (await next_event(answer.content))["type"] == "ADDED"
            fake.controller.step(30)
            changed = await next_event(answer.content)
            assert (changed["type"], changed["object"]["status"]["phase"]) == (
                "MODIFIED",
                "Running",
            )
            fake.store.bookmark()
            mark = await next_event(answer.content)
            assert mark["type"] == "BOOKMARK"
            assert mark["object"]["metadata"]["resourceVersion"] == str(fake.store.version)


async def test_a_watch_of_a_forgotten_version_is_gone() -> None:
    async with serving(FakeKubernetes()) as fake, aiohttp.ClientSession(fake.url) as session:
        pod = {"metadata": {"name": "a", "labels": {"app": "a"}}}
        fake.store.create(POD, "default", pod)
        async with session.get(PODS, params={"watch": "1", "resourceVersion": "1"}) as open_one:
            fake.store.create(POD, "default", {"metadata": {"name": "b", "labels": {}}})
            assert (await next_event(open_one.content))["type"] == "ADDED"
        fake.store.compact()
        async with session.get(PODS, params={"watch": "1", "resourceVersion": "1"}) as late:
            assert (late.status, (await late.json())["reason"]) == (410, "Expired")


def test_patches_are_those_of_the_standards() -> None:
    assert merged({"a": {"b": 1, "c": 2}}, {"a": {"b": None, "d": [1]}}) == {
        "a": {"c": 2, "d": [1]}
    }
    document = {"a": [{"n": 1}, {"n": 2}]}
    add = [{"op": "test", "path": "/a/1/n", "value": 2}, {"op": "add", "path": "/a/-", "value": 3}]
    assert patched(document, add) == {"a": [{"n": 1}, {"n": 2}, 3]}
    assert patched(document, [{"op": "remove", "path": "/a/0"}]) == {"a": [{"n": 2}]}
    for bad in ({"op": "test", "path": "/a/0/n", "value": 2}, {"op": "remove", "path": "/b"}):
        with pytest.raises(PatchError):
            patched(document, [bad])


def test_requests_of_a_client_can_be_played() -> None:
    path = "/apis/apps/v1/namespaces/default/deployments/decode"
    metadata = {"name": "decode", "namespace": "default", "resourceVersion": "4", "uid": "u"}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata}
    scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata}
    put = {"kind": "Scale", "metadata": metadata, "spec": {"replicas": 3}}
    exchanges = [
        exchange_of("GET", path, None, 200, deployment | {"spec": {"replicas": 2}}),
        exchange_of(
            "GET", path + "s", None, 404, {"kind": "Status", "apiVersion": "v1", "code": 404}
        ),
        exchange_of("PUT", path + "/scale", put, 200, scale | {"spec": {"replicas": 3}}),
    ]
    assert list(play({"exchanges": exchanges})) == []
    exchanges[2]["answer"]["spec"]["replicas"] = 2
    (found,) = play({"exchanges": exchanges})
    assert (found.expected, found.found) == (2, 3)


def exchange_of(
    method: str, path: str, body: dict[str, Any] | None, status: int, answer: dict[str, Any]
) -> dict[str, Any]:
    return {
        "method": method,
        "path": path,
        "accept": "application/json",
        "content_type": None,
        "body": None if body is None else json.dumps(body),
        "status": status,
        "answer": answer,
    }
