"""Player of kubectl's recorded requests against the fake API server of the connector's tests.

Values that a client depends on are compared: status, kind, names, replica counts of scale.
Versions are the fake's own, and specs are skipped: recorded answers show objects at the end of the
recording.
"""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import aiohttp

from tests.builders.fake_kubernetes.kinds import KINDS
from tests.builders.fake_kubernetes.server import FakeKubernetes, serving
from tests.vectors.differences import Difference, differences

Case = dict[str, Any]


def play(case: Case) -> Iterator[Difference]:
    """Play all exchanges in order."""
    yield from asyncio.run(_play_exchanges(case["exchanges"]))


async def _play_exchanges(exchanges: list[Case]) -> list[Difference]:
    found: list[Difference] = []
    fake = FakeKubernetes()
    _seed(fake, exchanges)
    async with serving(fake), aiohttp.ClientSession(fake.url) as session:
        for number, exchange in enumerate(exchanges):
            status, answer = await _send_request(session, fake, exchange)
            where = f"exchanges[{number}] {exchange['method']} {exchange['path']}"
            found += differences(exchange["status"], status, f"{where} status")
            found += differences(_essence(exchange["answer"]), _essence(answer), where)
            found += _compare_scale(exchange, answer, where)
    return found


def _seed(fake: FakeKubernetes, exchanges: list[Case]) -> None:
    """Create the objects that the recording has read."""
    kinds = {(kind.api_version, kind.kind): kind for kind in KINDS}
    for exchange in exchanges:
        answer = exchange["answer"]
        kind = kinds.get((answer.get("apiVersion"), answer.get("kind")))
        if exchange["method"] != "GET" or kind is None or "metadata" not in answer:
            continue
        where = answer["metadata"]
        if (kind.plural, where["namespace"], where["name"]) not in fake.store.objects:
            fake.store.create(kind, where["namespace"], answer)


async def _send_request(
    session: aiohttp.ClientSession, fake: FakeKubernetes, exchange: Case
) -> tuple[int, Any]:
    headers = {"Accept": exchange["accept"]}
    headers["Content-Type"] = exchange["content_type"] or "application/json"
    body = exchange["body"]
    if body and "resourceVersion" in body and exchange["status"] == 200:
        body = _with_version(fake, json.loads(body))
    async with session.request(
        exchange["method"], exchange["path"], data=body, headers=headers
    ) as answer:
        return answer.status, await answer.json(content_type=None)


def _with_version(fake: FakeKubernetes, body: Case) -> str:
    """Return the body with the current resource version, as after a read by the client."""
    where = body["metadata"]
    for (_, namespace, name), stored in fake.store.objects.items():
        if (namespace, name) == (where["namespace"], where["name"]):
            where["resourceVersion"] = stored["metadata"]["resourceVersion"]
    return json.dumps(body)


def _essence(answer: Case) -> Case:
    """Return the fields that a client depends on.

    Lists become maps by name, so that additional entries are no difference.
    """
    named = ("name", "namespace")
    metadata = answer.get("metadata", {})
    essence: Case = {key: answer[key] for key in ("kind", "apiVersion", "code") if key in answer}
    essence["metadata"] = {key: metadata[key] for key in named if key in metadata}
    essence["groups"] = {group["name"]: group for group in answer.get("groups", ())}
    essence["resources"] = {
        resource["name"]: {key: resource.get(key) for key in ("kind", "group", "version")}
        for resource in answer.get("resources", ())
    }
    return essence


def _compare_scale(exchange: Case, answer: Case, where: str) -> Iterator[Difference]:
    if exchange["path"].endswith("/scale") and exchange["body"] and exchange["status"] == 200:
        expected = exchange["answer"]["spec"]
        yield from differences(expected, answer.get("spec"), f"{where} spec")
