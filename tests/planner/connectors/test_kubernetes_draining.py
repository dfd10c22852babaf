"""Tests of draining pods: workers finish first, and the platform removes just these pods."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from select_service.planner.connectors.connector import ConnectorStatus
from select_service.planner.connectors.kube.scale_target import DELETION_COST, DRAINED_WORKER
from select_service.planner.connectors.kubernetes_connector import KubernetesConnector
from select_service.planner.core.tick_input import count_serving
from tests.builders.fake_kubernetes.kinds import DEPLOYMENT, POD, STATEFUL_SET, Kind
from tests.builders.fake_kubernetes.server import Fault
from tests.planner.connectors.a_cluster import Cluster, D, P
from tests.planner.connectors.a_fleet import a_fleet
from tests.planner.connectors.a_selector import ASelector
from tests.planner.connectors.decided import roles_with


@contextlib.asynccontextmanager
async def fleet_connector(
    kind: Kind = DEPLOYMENT,
) -> AsyncIterator[tuple[Cluster, ASelector, KubernetesConnector]]:
    """Yield a cluster, its selector and a connector for four decode workers."""

    async with a_fleet(kind) as fleet:
        connector = fleet.planner()
        yield fleet.cluster, fleet.selector, connector
        await connector.close()


def costs(cluster: Cluster) -> list[str | None]:
    """Return the deletion costs of the decode pods, in order of creation."""
    return [
        pod["metadata"].get("annotations", {}).get(DELETION_COST)
        for pod in cluster.controller.pods("decode")
    ]


def addresses(cluster: Cluster, app: str) -> set[str]:
    pods = cluster.controller.pods(app)
    return {p["status"]["podIP"] for p in pods if "deletionTimestamp" not in p["metadata"]}


async def test_the_least_used_drain_are_marked_and_go() -> None:
    async with fleet_connector() as (cluster, selector, connector):
        decision = await connector.scale({D: 2})
        assert roles_with(decision, ConnectorStatus.DRAINING) == (D,)
        assert decision.roles[D].victims == ("103", "101")
        assert selector.draining == {101, 103}
        assert [cost is not None for cost in costs(cluster)] == [True, False, True, False]
        seen = (await connector.read())[D]
        assert (seen.in_progress, seen.ready, seen.draining) == (True, 4, 2)
        assert count_serving(seen) == 2
        selector.booked[103] = 0
        assert not await connector.wait(0)
        assert cluster.replicas("decode") == 4
        selector.booked[101] = 0
        assert await connector.wait(0)
        cluster.tick()
        assert addresses(cluster, "decode") == {selector.hosts[102], selector.hosts[104]}


async def test_the_highest_ordinals_of_a_stateful_set_drain() -> None:
    async with fleet_connector(STATEFUL_SET) as (cluster, selector, connector):
        decision = await connector.scale({D: 2})
        assert decision.roles[D].victims == ("104", "103")
        annotations = [
            pod["metadata"].get("annotations") for pod in cluster.controller.pods("engines")
        ]
        assert annotations == [None, None, {DRAINED_WORKER: "103"}, {DRAINED_WORKER: "104"}]
        selector.booked[103] = selector.booked[104] = 0
        await connector.wait(0)
        cluster.tick()
        assert addresses(cluster, "engines") == {selector.hosts[101], selector.hosts[102]}


async def test_a_label_identifies_the_worker_of_a_pod() -> None:
    async with fleet_connector() as (cluster, selector, connector):
        selector.hosts.clear()
        for number, pod in zip((104, 103), cluster.controller.pods("decode"), strict=False):
            where = {"labels": {"select-service/worker-id": str(number)}}
            if number == 104:
                where = {"annotations": {"select-service/worker-id": str(number)}}
            name = pod["metadata"]["name"]
            cluster.store.patch(POD, "default", name, {"metadata": where}, "merge-patch")
        decision = await connector.scale({D: 2})
        assert decision.roles[D].victims == ("103", "104")


async def test_a_cancelled_scale_down_ends_drains_and_removes_marks() -> None:
    async with fleet_connector() as (cluster, selector, connector):
        await connector.scale({D: 2})
        await connector.scale({D: 3})
        assert selector.draining == {103}
        assert sum(cost is not None for cost in costs(cluster)) == 1
        await connector.scale({D: 4})
        assert selector.draining == set()
        assert costs(cluster) == [None] * 4


async def test_the_next_reduction_of_the_same_size_drains_again() -> None:
    async with fleet_connector() as (cluster, selector, connector):
        await connector.scale({D: 3})
        selector.booked[103] = 0
        await connector.wait(0)
        cluster.tick()
        cluster.tick(10)
        del selector.booked[103], selector.blocks[103]
        decision = await connector.scale({D: 2})
        assert roles_with(decision, ConnectorStatus.DRAINING) == (D,)
        assert decision.roles[D].victims == ("101",)


async def test_a_raise_waits_for_those_that_drain_and_then_for_their_pods() -> None:
    async with fleet_connector() as (cluster, selector, connector):
        await connector.scale({D: 3, P: 5})
        for _ in range(10):
            cluster.tick()
            assert not await connector.wait(0)
        selector.booked[103] = 0
        for _ in range(4):
            await connector.wait(0)
            cluster.tick()
        assert (cluster.replicas("decode"), cluster.replicas("prefill")) == (3, 5)
        assert cluster.controller.most_pods == 8


async def test_workers_drained_for_a_count_that_cannot_be_lowered_serve_again() -> None:
    async with fleet_connector() as (cluster, selector, connector):
        cluster.fake.faults = [Fault("PATCH", "decode/scale", 403, times=9)]
        await connector.scale({D: 3})
        selector.booked[103] = 0
        assert await connector.wait(0)
        assert selector.draining == {103}
        cluster.tick(60)
        assert await connector.wait(0)
        assert selector.draining == set()
        assert costs(cluster) == [None] * 4


@pytest.mark.parametrize("status", [403, 404])
async def test_pods_that_cannot_be_marked_drain_all_the_same(status: int) -> None:
    async with fleet_connector() as (cluster, selector, connector):
        cluster.fake.faults = [Fault("PATCH", "/pods/", status)]
        await connector.scale({D: 3})
        assert selector.draining == {103}


async def test_no_worker_drains_before_its_pod_is_marked() -> None:
    async with fleet_connector() as (cluster, selector, connector):
        cluster.fake.faults = [Fault("PATCH", "/pods/", 500, times=2)]
        await connector.scale({D: 2})
        assert (selector.draining, costs(cluster)) == (set(), [None] * 4)
        await connector.wait(0)
        assert selector.draining == {101, 103}


async def test_nothing_goes_while_no_selector_answers() -> None:
    async with fleet_connector() as (cluster, selector, connector):
        selector.is_silent = True
        decision = await connector.scale({D: 3})
        assert roles_with(decision, ConnectorStatus.FAILED) == (D,)
        assert cluster.fake.writes() == []
        selector.is_silent = False
        decision = await connector.scale({D: 3})
        assert roles_with(decision, ConnectorStatus.DRAINING) == (D,)


async def test_a_foreign_count_during_a_drain_is_left_alone() -> None:
    async with fleet_connector() as (cluster, selector, connector):
        await connector.scale({D: 3})
        cluster.set_replicas("decode", 6)
        selector.booked[103] = 0
        await connector.wait(0)
        assert cluster.replicas("decode") == 6


async def test_a_failed_scale_down_keeps_track_of_drains() -> None:
    async with fleet_connector() as (cluster, selector, connector):
        await connector.scale({D: 3})
        selector.is_silent = True
        decision = await connector.scale({D: 2})
        assert roles_with(decision, ConnectorStatus.FAILED) == (D,)
        selector.is_silent = False
        await connector.scale({D: 2})
        assert selector.draining == {101, 103}
        assert [cost is not None for cost in costs(cluster)] == [True, False, True, False]
        await connector.scale({D: 4})
        assert selector.draining == set()
        assert costs(cluster) == [None] * 4


async def test_a_cancelled_tick_keeps_track_of_drains() -> None:
    async with fleet_connector() as (cluster, selector, connector):
        cluster.fake.faults = [Fault("PATCH", "/pods/", None)]
        scaling = asyncio.create_task(connector.scale({D: 3}))
        while not any(method == "PATCH" for method, _ in cluster.fake.requests):
            await asyncio.sleep(0)
        scaling.cancel()
        await asyncio.gather(scaling, return_exceptions=True)
        await connector.scale({D: 3})
        assert selector.draining == {103}
        await connector.scale({D: 4})
        assert selector.draining == set()
