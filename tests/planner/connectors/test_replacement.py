"""Tests of pods with lost workers: replaced once, one at a time, and never while serving."""

import asyncio
import shutil

import pytest

from select_service.planner.connectors.kube.pod_replacement import REPLACE_MARK, PodRules
from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import replica_gpus
from select_service.planner.core.tick_input import LostWorker, RoleHealth
from tests.builders.fake_kubernetes.kinds import DEPLOYMENT, STATEFUL_SET
from tests.builders.fake_kubernetes.server import Fault
from tests.planner.connectors.a_cluster import D, P
from tests.planner.connectors.a_fleet import a_fleet
from tests.planner.core.deployments import IDLE, a_deployment, passes, tick_input, traffic

KINDS = pytest.mark.parametrize("kind", [DEPLOYMENT, STATEFUL_SET], ids=["Deployment", "Stateful"])


def planner_of(fleet, mode="delete"):
    return fleet.planner(pods=PodRules(replaces=mode))


def pod_names(fleet):
    return {worker_id: pod["metadata"]["name"] for worker_id, pod in fleet.staying().items()}


@KINDS
async def test_the_pod_of_a_lost_worker_is_deleted_and_another_starts(kind):
    async with a_fleet(kind) as fleet:
        connector = planner_of(fleet)
        uid = fleet.staying()[102]["metadata"]["uid"]
        fleet.selector.draining.add(102)  # the worker's ranks have no weight
        decision = await connector.scale({}, (102,))
        assert decision.replaced == (102,)
        fleet.cluster.settle()
        pods = fleet.cluster.controller.pods(fleet.app)
        assert len(pods) == 4
        assert uid not in {pod["metadata"]["uid"] for pod in pods}
        assert (await connector.read())[D].ready == 4
        await connector.close()


async def test_a_worker_that_serves_again_keeps_its_pod():
    async with a_fleet() as fleet:
        connector = planner_of(fleet)
        before = pod_names(fleet)
        decision = await connector.scale({}, (102,))
        assert decision.replaced == ()
        assert "takes requests again" in connector.faults()[P]
        assert pod_names(fleet) == before
        await connector.close()


async def test_while_a_selector_is_silent_nothing_is_deleted():
    async with a_fleet() as fleet:
        connector = planner_of(fleet)
        fleet.selector.draining.add(102)
        before = pod_names(fleet)
        fleet.selector.is_silent = True
        assert (await connector.scale({}, (102,))).replaced == ()
        assert pod_names(fleet) == before
        await connector.close()


async def test_a_worker_without_a_pod_is_a_fault():
    async with a_fleet() as fleet:
        connector = planner_of(fleet)
        assert (await connector.scale({}, (999,))).replaced == ()
        assert "select-service/worker-id" in connector.faults()[P]
        fleet.cluster.time.now += 200
        assert not connector.faults()
        await connector.close()


async def test_a_mark_is_set_once_and_the_worker_stays_lost():
    async with a_fleet() as fleet:
        connector = planner_of(fleet, "annotate")
        fleet.selector.draining.add(102)
        for _ in range(2):
            assert (await connector.scale({}, (102,))).replaced == ()
        pod = fleet.staying()[102]
        assert pod["metadata"]["annotations"][REPLACE_MARK] == "102"
        version = pod["metadata"]["resourceVersion"]
        await connector.scale({}, (102,))
        assert fleet.staying()[102]["metadata"]["resourceVersion"] == version
        await connector.close()


async def test_never_means_that_no_pod_is_touched():
    async with a_fleet() as fleet:
        connector = planner_of(fleet, "never")
        fleet.selector.draining.add(102)
        before = pod_names(fleet)
        assert (await connector.scale({}, (102,))).replaced == ()
        assert pod_names(fleet) == before
        await connector.close()


async def test_a_refused_deletion_is_a_fault_and_is_tried_again():
    async with a_fleet() as fleet:
        connector = planner_of(fleet)
        fleet.selector.draining.add(102)
        fleet.cluster.fake.faults.append(Fault("DELETE", "/pods/", 403))
        assert (await connector.scale({}, (102,))).replaced == ()
        assert "worker 102 is not replaced" in connector.faults()[P]
        assert (await connector.scale({}, (102,))).replaced == (102,)
        assert not connector.faults()
        await connector.close()


class PlannedFleet:
    """Core of a planner over four decode pods, with a selector that has its own health."""

    def __init__(self, fleet, **settings):
        given = {"mode": "agg", "enable_load_scaling": True, "replace_after_s": 30.0}
        self.fleet, self.connector = fleet, planner_of(fleet)
        self.deployment = a_deployment(**given, **settings)
        self.out_since, self.effects, self.most = {}, None, 0

    async def tick(self):
        cluster = self.fleet.cluster
        cluster.tick(5.0)
        now = cluster.time.now
        replicas = {D: (await self.connector.read())[D]}
        lost = tuple(
            LostWorker(worker_id=w, out_s=now - at, state="unhealthy", cause="token_mismatch")
            for w, at in self.out_since.items()
        )
        serving = replicas[D].ready - len(lost)
        window = self.deployment.tick_needs(now).traffic_s
        of = None if window is None else traffic(0.0 * window, window)
        tick = tick_input(now, replicas, of=of, engines={D: passes(D, [IDLE] * serving)})
        fields = {name: getattr(tick, name) for name in tick.__struct_fields__}
        fields["health"] = {D: RoleHealth(serving=serving, lost=lost)}
        self.effects = effects = self.deployment.run_tick(type(tick)(**fields))
        if effects.scale_to or effects.replace:
            decision = await self.connector.scale(effects.scale_to or {}, effects.replace)
            begun = decision.replaced
            self.deployment.undo_replacement(set(effects.replace) - set(begun))
            for worker_id in begun:
                del self.out_since[worker_id]
        await self.connector.wait(0.0)
        self.most = max(self.most, cluster.replicas("decode"))


async def test_an_engine_dies_by_canary_and_is_replaced_within_the_budget():
    async with a_fleet() as fleet:
        planned = PlannedFleet(fleet, max_gpu_budget=4, min_endpoint=4)
        for _ in range(6):
            await planned.tick()
        before = set(pod_names(fleet).values())
        fleet.selector.draining.add(102)
        planned.out_since[102] = fleet.cluster.time.now
        reasons, loads = set(), set()
        for _ in range(40):
            await planned.tick()
            reasons |= set(planned.effects.diagnostics.reasons)
            loads.add(planned.effects.diagnostics.load_reason)
        assert {Reason.CAPACITY_LOST, Reason.REPLACE} <= reasons
        assert Reason.WORKER_COUNT_MISMATCH not in loads
        assert planned.most == 4, "the budget is kept"
        pods = fleet.cluster.controller.pods("decode")
        assert len(before - {pod["metadata"]["name"] for pod in pods}) == 1
        found = planned.effects.diagnostics.roles[D]
        assert (found.ready, found.starting, found.lost) == (4, 0, 0)
        assert replica_gpus(planned.deployment.settings, D) == 1
        await planned.connector.close()


async def test_with_room_in_the_budget_another_engine_starts_at_once():
    async with a_fleet() as fleet:
        planned = PlannedFleet(fleet, max_gpu_budget=8, min_endpoint=4)
        for _ in range(6):
            await planned.tick()
        fleet.selector.draining.add(102)
        planned.out_since[102] = fleet.cluster.time.now
        await planned.tick()
        assert fleet.cluster.replicas("decode") == 5
        assert planned.effects.diagnostics.roles[D].lost == 1
        await planned.connector.close()


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
async def test_kubectl_sees_that_the_pod_is_gone():
    async with a_fleet() as fleet:
        connector = planner_of(fleet)
        fleet.selector.draining.add(102)
        name = pod_names(fleet)[102]
        await connector.scale({}, (102,))
        words = f"--server={fleet.cluster.fake.url}", "get", "pods", "-o", "name"
        process = await asyncio.create_subprocess_exec(
            "kubectl", *words, stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(60):
            shown, _ = await process.communicate()
        names = shown.decode().split()
        assert len(names) == len(fleet.cluster.controller.pods("decode")) + 4
        assert f"pod/{name}" not in names
        await connector.close()
