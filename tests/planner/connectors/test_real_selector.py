"""Tests of draining with a real selector: its routes and answers are as the planner expects."""

import pytest

from select_service.planner.connectors.connector import ConnectorStatus
from select_service.planner.connectors.selector_client import DrainAnswer, SelectorClients
from select_service.planner.connectors.virtual_connector import VirtualConnector
from select_service.planner.connectors.worker_drain import WorkerDrainer
from select_service.planner.core.tick_input import Role
from tests.builders import worker_body
from tests.builders.in_thread import InThread
from tests.planner.connectors.decided import roles_with

pytestmark = pytest.mark.process
P, D = Role.PREFILL, Role.DECODE


def reserved_on_all(service: InThread) -> None:
    """Register a prefill worker 1 and decode workers 2 (long prompt) and 3 (short prompt)."""
    for worker_id, role in ((1, "prefill"), (2, "decode"), (3, "decode")):
        body = worker_body(worker_id, role=role)
        assert service.call("POST", "/workers", body).status == 201
        tokens = list(range(8 if worker_id == 3 else 80))
        prompt = {
            "model_name": "m", "reservation_id": f"r{worker_id}", "token_ids": tokens,
            "allowed_worker_ids": [worker_id],
        }  # fmt: skip
        answer = service.call("POST", "/select_and_reserve", prompt)
        assert answer.status == 200, answer.body


async def scale_down_drained(service: InThread) -> VirtualConnector:
    """Return the connector after a scale-down from two decode replicas to one."""

    selectors = SelectorClients([f"http://127.0.0.1:{service.port}"], "m", "default")
    connector = VirtualConnector(None, drainer=WorkerDrainer(selectors))
    await connector.scale({P: 1, D: 2})
    await connector.acknowledge(0, {P: 1, D: 2})
    decision = await connector.scale({D: 1})
    if roles_with(decision, ConnectorStatus.DRAINING):
        assert decision.roles[D].victims == ("3",)
        assert not await connector.wait(0)
        workers = service.call("GET", "/workers").body
        drains = {w["worker_id"]: w["drain"]["state"] for w in workers if "drain" in w}
        assert drains == {3: "draining"}
        assert service.call("DELETE", "/reservations/r3").status < 300
        await connector.wait(0)
    await connector.close()
    return connector


@pytest.mark.parametrize("flags", [(), ("--health-checks=on",)])
async def test_a_worker_drains_until_its_reservations_have_ended(tmp_path, flags):
    with InThread(*flags, folder=tmp_path) as service:
        reserved_on_all(service)
        decision = (await scale_down_drained(service)).decision
        assert (decision.num_prefill, decision.num_decode, decision.victims) == (1, 1, (3,))


@pytest.mark.parametrize("flags", [(), ("--health-checks=on",)])
async def test_a_drain_by_an_operator_outlives_that_of_the_planner(tmp_path, flags):
    with InThread(*flags, folder=tmp_path) as service:
        reserved_on_all(service)
        selectors = SelectorClients([f"http://127.0.0.1:{service.port}"], "m", "default")
        connector = VirtualConnector(None, drainer=WorkerDrainer(selectors))
        await connector.scale({P: 1, D: 2})
        await connector.acknowledge(0, {P: 1, D: 2})
        await connector.scale({D: 1})
        assert asked_by(service, 3) == ["planner"]
        assert service.call("POST", "/workers/3/drain").status == 202
        assert asked_by(service, 3) == ["operator", "planner"]
        await connector.scale({D: 2})
        assert asked_by(service, 3) == ["operator"]
        assert not serves(service, 3)
        assert service.call("POST", "/workers/3/undrain").status == 202
        assert asked_by(service, 3) is None
        assert serves(service, 3)
        await connector.close()


@pytest.mark.parametrize("flags", [(), ("--health-checks=on",)])
async def test_a_drain_by_the_planner_outlives_that_of_an_operator(tmp_path, flags):
    with InThread(*flags, folder=tmp_path) as service:
        reserved_on_all(service)
        selectors = SelectorClients([f"http://127.0.0.1:{service.port}"], "m", "default")
        assert service.call("POST", "/workers/3/drain").status == 202
        assert await selectors.drain_worker(3) == DrainAnswer.ASKED
        assert service.call("POST", "/workers/3/undrain").status == 202
        assert asked_by(service, 3) == ["planner"]
        assert not serves(service, 3)
        assert await selectors.undrain_worker(3)
        assert asked_by(service, 3) is None
        assert serves(service, 3)
        await selectors.close()


def asked_by(service: InThread, worker_id: int) -> list[str] | None:
    drain = service.call("GET", f"/workers/{worker_id}").body.get("drain")
    return None if drain is None else drain["asked_by"]


def serves(service: InThread, worker_id: int) -> bool:
    prompt = {"model_name": "m", "token_ids": [1] * 8, "allowed_worker_ids": [worker_id]}
    return service.call("POST", "/select", prompt).status == 200
