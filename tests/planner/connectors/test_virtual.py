"""Tests of the virtual connector from its clients' view: HTTP, restarts, other planners."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from select_service.planner.connectors.connector import (
    ConnectorError,
    ConnectorStatus,
    ConnectorUnavailable,
)
from select_service.planner.connectors.dry_run_connector import DryRunConnector
from select_service.planner.connectors.virtual_api import decision_routes
from select_service.planner.connectors.virtual_connector import (
    WAITERS_MAX,
    TooManyPolls,
    VirtualConnector,
)
from select_service.planner.core.tick_input import Role, RoleReplicas
from select_service.planner.json_bodies import BODY_BYTES_MAX, PlannerRefusal, answer_refusal
from tests.planner.connectors.decided import roles_with

P, D = Role.PREFILL, Role.DECODE
JSON = {"content-type": "application/json"}


def client_of(connector: VirtualConnector) -> httpx.AsyncClient:
    handlers = {PlannerRefusal: answer_refusal}
    routes = decision_routes(lambda _request: connector)
    app = Starlette(routes=routes, exception_handlers=handlers)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://planner")


async def status_of(
    connector: VirtualConnector, wanted: Mapping[Role, int]
) -> set[ConnectorStatus]:
    decision = await connector.scale(wanted)
    return {decided.status for decided in decision.roles.values()}


async def test_a_decision_is_fetched_and_acknowledged_over_http() -> None:
    connector = VirtualConnector(None, clock=lambda: 7.0)
    async with client_of(connector) as client:
        before = (await client.get("/v1/decision")).json()
        assert (before["decision_id"], before["completed"]) == (-1, True)
        assert await status_of(connector, {P: 1, D: 2}) == {ConnectorStatus.APPLIED}
        found = (await client.get("/v1/decision?after=-1&timeout_ms=1000")).json()
        assert found == {
            "decision_id": 0, "num_prefill": 1, "num_decode": 2, "superseded": False,
            "decided_at": 7.0, "victims": [], "replace": [], "completed": False, "kept": None,
        }  # fmt: skip
        body = {"num_prefill": 1, "num_decode": 2}
        answer = await client.post("/v1/decision/0/complete", json=body)
        assert (answer.status_code, answer.json()["status"]) == (200, "completed")
    replicas = await connector.read()
    assert replicas == {r: RoleReplicas(ready=n, expected=n) for r, n in ((P, 1), (D, 2))}


async def test_waiting_callers_get_the_next_decision() -> None:
    connector = VirtualConnector(None)
    await connector.scale({D: 1})
    async with client_of(connector) as client:
        waiting = asyncio.create_task(client.get("/v1/decision?after=0&timeout_ms=60000"))
        while not connector._waiters:
            await asyncio.sleep(0)
        await connector.acknowledge(0, {D: 1})
        await connector.scale({D: 3})
        assert (await waiting).json()["num_decode"] == 3
        same = await client.get("/v1/decision?after=1&timeout_ms=1")
        assert (same.status_code, same.json()["decision_id"]) == (200, 1)


async def test_closing_answers_waiting_callers() -> None:
    connector = VirtualConnector(None)
    async with client_of(connector) as client:
        waiting = asyncio.create_task(client.get("/v1/decision?after=0&timeout_ms=60000"))
        while not connector._waiters:
            await asyncio.sleep(0)
        async with asyncio.timeout(10.0):
            await connector.end_polls()
            late = await client.get("/v1/decision?after=0&timeout_ms=60000")
            for answer in (await waiting, late):
                assert (answer.status_code, answer.json()["decision_id"]) == (200, -1)


async def test_waiting_callers_are_bounded() -> None:
    connector = VirtualConnector(None)
    async with client_of(connector) as client:
        tasks = [
            asyncio.create_task(connector.wait_for_decision(0, 60.0)) for _ in range(WAITERS_MAX)
        ]
        while connector._waiters < WAITERS_MAX:
            await asyncio.sleep(0)
        with pytest.raises(TooManyPolls):
            await connector.wait_for_decision(0, 1.0)
        refused = await client.get("/v1/decision?after=0&timeout_ms=1000")
        assert (refused.status_code, refused.json()["code"]) == (503, "capacity_exceeded")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert connector._waiters == 0


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/v1/decision?after=x", "", 422, "invalid_parameter"),
        ("GET", "/v1/decision?after=-2", "", 422, "invalid_parameter"),
        ("GET", "/v1/decision?timeout_ms=60001", "", 422, "invalid_parameter"),
        ("GET", "/v1/decision?timeout_ms=٣", "", 422, "invalid_parameter"),
        ("POST", "/v1/decision/1/complete", "", 404, "not_found"),
        ("POST", "/v1/decision/-1/complete", "", 400, "bad_request"),
        ("POST", "/v1/decision/one/complete", "", 400, "bad_request"),
        ("POST", "/v1/decision/0/complete", "{", 400, "malformed_json"),
        ("POST", "/v1/decision/0/complete", "\udcff", 400, "malformed_json"),
        ("POST", "/v1/decision/0/complete", "[]", 422, "invalid_body"),
        ("POST", "/v1/decision/0/complete", '{"num_decode": -1}', 422, "invalid_body"),
        ("POST", "/v1/decision/0/complete", '{"num_decoders": 1}', 422, "invalid_body"),
        ("POST", "/v1/decision/0/complete", " " * (BODY_BYTES_MAX + 1), 413, "body_too_large"),
    ],
)
async def test_bad_requests_change_nothing(
    method: str, path: str, body: str, status: int, code: str
) -> None:
    connector = VirtualConnector(None)
    await connector.scale({D: 1})
    async with client_of(connector) as client:
        content = body.encode("utf-8", "surrogateescape")
        answer = await client.request(method, path, content=content, headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.json()["error"]
    assert connector.is_open


async def test_a_planner_that_starts_again_finds_its_decisions(tmp_path: Path) -> None:
    path = tmp_path / "decision.json"
    first = VirtualConnector(path)
    await first.scale({P: 1, D: 2})
    await first.acknowledge(0, {D: 2})
    await first.scale({D: 4})
    again = VirtualConnector(path)
    assert again.decision == first.decision
    assert again.is_open
    await again.acknowledge(1, {})
    assert not VirtualConnector(path).is_open


async def test_a_decision_that_cannot_be_kept_is_not_made(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    connector = VirtualConnector(folder / "decision.json")
    await connector.validate()
    folder.rmdir()
    with pytest.raises(ConnectorUnavailable):
        await connector.scale({D: 2})
    assert connector.decision.decision_id == -1
    with pytest.raises(ConnectorError):
        await connector.validate()


async def test_a_flipped_bit_is_found_wherever_it_is(tmp_path: Path) -> None:
    path = tmp_path / "decision.json"
    connector = VirtualConnector(path)
    await connector.scale({P: 1, D: 2})
    await connector.acknowledge(0, {D: 2})
    before = connector.decision
    text, random = path.read_bytes(), Random(27)
    refused = 0
    for _ in range(500):
        content = bytearray(text)
        content[random.randrange(len(text))] ^= 1 << random.randrange(8)
        path.write_bytes(content)
        try:
            found = VirtualConnector(path)
        except ConnectorError:
            refused += 1
        else:
            assert found.decision == before
            assert not found.is_open
    assert refused > 300


async def test_decisions_of_before_there_were_checksums_are_read(tmp_path: Path) -> None:
    path = tmp_path / "decision.json"
    first = VirtualConnector(path)
    await first.scale({P: 1, D: 2})
    document = json.loads(path.read_bytes())
    assert document.pop("format") == "select-planner decisions"
    assert document.pop("checksum")
    path.write_text(json.dumps(document))
    assert VirtualConnector(path).decision == first.decision
    assert path.stat().st_mode & 0o777 == 0o600


FOREIGN = ["", "{", '{"decision": 1}', '{"acknowledged": "0"}', '{"name": "a package"}', "[1]"]


@pytest.mark.parametrize("content", FOREIGN)
def test_a_file_of_something_else_is_refused_at_the_start(tmp_path: Path, content: str) -> None:
    path = tmp_path / "decision.json"
    path.write_text(content)
    with pytest.raises(ConnectorError, match="is not a decision file of a planner"):
        VirtualConnector(path)


async def test_observed_counts_override_acknowledged_counts() -> None:
    seen: dict[Role, int] | None = {D: 1}

    async def ready() -> dict[Role, int] | None:
        return seen

    connector = VirtualConnector(None, ready, clock=lambda: 0.0)
    assert await connector.read() == {D: RoleReplicas(ready=1)}, "nothing was decided yet"
    assert P in connector.faults()
    await connector.scale({D: 3})
    await connector.acknowledge(0, {D: 3})
    pending = RoleReplicas(ready=1, expected=3, pending=2, in_progress=True, startup_only=True)
    assert await connector.read() == {D: pending}
    seen = None
    assert await connector.read() == {D: RoleReplicas(ready=3, expected=3)}


async def test_wait_ends_with_the_acknowledgement() -> None:
    connector = VirtualConnector(None)
    assert await connector.wait(0)
    await connector.scale({D: 3})
    assert not await connector.wait(0)
    waiting = asyncio.create_task(connector.wait(60))
    while not connector._waiters:
        await asyncio.sleep(0)
    await connector.acknowledge(0, {})
    assert await waiting


async def test_a_dry_run_writes_a_line_for_each_change(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    dry: Any = DryRunConnector(path, {P: 1, D: 1}, clock=lambda: 5.0)
    await dry.validate()
    await dry.scale({P: 1, D: 1})
    decision = await dry.scale({P: 1, D: 3})
    assert roles_with(decision, ConnectorStatus.APPLIED) == (D,)
    assert (
        path.read_text() == '{"at":5.0,"scale_to":{"decode":3},"from":{"prefill":1,"decode":1}}\n'
    )
    assert (await dry.read())[D] == RoleReplicas(ready=3, expected=3)
    for count in (-1, 10_000_000):
        with pytest.raises(ValueError, match="replicas of decode"):
            await dry.scale({D: count})
