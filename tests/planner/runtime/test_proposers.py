"""What others propose over HTTP, and what becomes of those who say nothing sensible."""

import asyncio
import json

import pytest
from aiohttp import web

from select_service.planner.config import ExternalProposerConfig
from select_service.planner.core.proposal_merge import BoundType, Proposal, ProposedCount
from select_service.planner.core.tick_input import Role, RoleReplicas, TickInput
from select_service.planner.planner_http import PlannerHttpClient
from select_service.planner.runtime.external_proposers import (
    FAILURES_MAX,
    PAUSE_S,
    ExternalProposers,
)
from tests.planner.runtime.serving import Answer, served

TICK = TickInput(now_s=5.0, replicas={Role.DECODE: RoleReplicas(ready=2)})


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def asked(answer: Answer, times: int, clock: Clock) -> list[tuple[Proposal, ...]]:
    async with served(answer) as url, PlannerHttpClient() as http:
        proposers = ExternalProposers([ExternalProposerConfig("cost", url, 5)], http, clock)
        return [await proposers.request_proposals("chat", TICK) for _ in range(times)]


async def test_a_proposal() -> None:
    bodies: list[bytes] = []

    async def answer(request: web.Request) -> web.Response:
        bodies.append(await request.read())
        target = {"component": "decode", "type": "AT_MOST", "replicas": 3}
        return web.json_response({"targets": [target]})

    app = web.Application()
    app.router.add_post("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with PlannerHttpClient() as http:
        proposers = ExternalProposers([ExternalProposerConfig("cost", url, 5)], http, Clock())
        (said,) = await proposers.request_proposals("chat", TICK)
    await runner.cleanup()
    assert said == Proposal(
        source="cost", priority=5, targets=(ProposedCount("decode", BoundType.AT_MOST, 3),)
    )
    body = json.loads(bodies[0])
    assert (body["deployment"], body["replicas"]) == ("chat", {"decode": 2})
    assert body["tick"]["now_s"] == 5.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"targets": [{"component": "gpu", "type": "SET", "replicas": 1}]}',
        '{"targets": [{"component": "decode", "type": "SET", "replicas": -1}]}',
        '{"targets": [], "finall": true}',
    ],
)
def test_nonsense_is_no_opinion(text: str) -> None:
    (said,) = asyncio.run(asked(lambda request: web.Response(text=text), 1, Clock()))
    assert said == ()


async def test_one_that_fails_is_left_alone_for_a_minute() -> None:
    calls: list[int] = []
    clock = Clock()

    def answer(request: web.Request) -> web.Response:
        calls.append(1)
        return web.Response(status=500)

    async with served(answer) as url, PlannerHttpClient() as http:
        proposers = ExternalProposers([ExternalProposerConfig("cost", url)], http, clock)
        for _ in range(FAILURES_MAX + 3):
            assert await proposers.request_proposals("chat", TICK) == ()
        assert len(calls) == FAILURES_MAX
        clock.now += PAUSE_S
        await proposers.request_proposals("chat", TICK)
        assert len(calls) == FAILURES_MAX + 1
        assert proposers.failures == {"cost": FAILURES_MAX + 1}
