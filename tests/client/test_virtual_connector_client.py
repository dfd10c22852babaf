"""Tests of a program that carries out decisions: the decisions awaited and acknowledged."""

import asyncio
import contextlib
import socket

import pytest
import uvicorn
from starlette.applications import Starlette

from select_service.client import Refused, ScalingDecision, VirtualConnectorClient
from select_service.client import virtual_connector_client as module
from select_service.planner.connectors.virtual_api import decision_routes
from select_service.planner.connectors.virtual_connector import VirtualConnector
from select_service.planner.core.tick_input import Role
from select_service.planner.json_bodies import PlannerRefusal, answer_refusal
from tests.builders.launched_process import free_port

P, D = Role.PREFILL, Role.DECODE


def app_of(connector, name=None) -> Starlette:
    def find(request):
        return connector if request.query_params.get("deployment", name) == name else None

    handlers = {PlannerRefusal: answer_refusal}
    return Starlette(routes=decision_routes(find), exception_handlers=handlers)


@contextlib.asynccontextmanager
async def serving(app, port=0):
    """Serve an application over a real socket."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = server.force_exit = True
            await task


async def test_a_decision_is_waited_for_carried_out_and_acknowledged():
    connector = VirtualConnector(None)
    async with serving(app_of(connector)) as url, VirtualConnectorClient(url) as planner:
        assert await planner.read() is None
        waiting = asyncio.create_task(planner.wait())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await connector.scale({P: 1, D: 2}, (7,))
        decision = await asyncio.wait_for(waiting, 10)
        assert decision == ScalingDecision(0, 1, 2, (), (7,), False)
        assert await planner.complete(decision, num_prefill=1, num_decode=2)
        assert not connector.is_open
        assert (await planner.read()).is_completed


async def test_a_restarted_program_gets_open_decisions_and_no_done_ones():
    connector = VirtualConnector(None)
    await connector.scale({D: 2})
    async with serving(app_of(connector)) as url:
        for _ in range(2):
            async with VirtualConnectorClient(url) as planner:
                decision = await asyncio.wait_for(planner.wait(), 10)
                assert (decision.num_prefill, decision.num_decode) == (None, 2)
        async with VirtualConnectorClient(url) as planner:
            assert await planner.complete(decision)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(planner.wait(), 0.1)


async def test_a_decision_that_was_replaced_is_not_completed():
    connector = VirtualConnector(None)
    await connector.scale({D: 2})
    async with serving(app_of(connector)) as url, VirtualConnectorClient(url) as planner:
        old = await planner.wait()
        for _ in range(2):
            await connector.scale({D: 3})
        assert not await planner.complete(old)
        assert (await planner.wait()).num_decode == 3


async def test_a_wrong_deployment_is_refused():
    connector = VirtualConnector(None)
    async with (
        serving(app_of(connector, name="fleet")) as url,
        VirtualConnectorClient(url, deployment="other one") as planner,
    ):
        with pytest.raises(Refused) as refused:
            await planner.wait()
        assert refused.value.status == 404


async def test_a_planner_that_is_away_is_waited_for(monkeypatch):
    monkeypatch.setattr(module, "PAUSE_S", 0.02)
    connector, port = VirtualConnector(None), free_port()
    await connector.scale({D: 2})
    async with VirtualConnectorClient(f"http://127.0.0.1:{port}") as planner:
        waiting = asyncio.create_task(planner.wait())
        await asyncio.sleep(0.1)
        assert not waiting.done()
        async with serving(app_of(connector), port):
            assert (await asyncio.wait_for(waiting, 10)).decision_id == 0
