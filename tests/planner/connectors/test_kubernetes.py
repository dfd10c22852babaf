"""Tests of scaling objects of a cluster, over HTTP to a fake API server in simulated time."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from select_service.planner.connectors.connector import (
    ConnectorError,
    ConnectorStatus,
    ConnectorUnavailable,
)
from select_service.planner.connectors.kube.scale_target import ScaleTarget
from select_service.planner.core.tick_input import EngineLimits, Role, RoleReplicas
from tests.builders.fake_kubernetes.kinds import (
    ADAPTER,
    DEPLOYMENT,
    ENGINE_POOL,
    GRAPH,
    LEADER_WORKER_SET,
    STATEFUL_SET,
    Kind,
)
from tests.builders.fake_kubernetes.server import Fault
from tests.planner.connectors.a_cluster import Cluster, D, P, a_cluster, deployment


def with_a_cluster(scene: Callable[[Cluster], Awaitable[None]]) -> None:
    async def run() -> None:
        async with a_cluster() as cluster:
            await scene(cluster)

    asyncio.run(run())


def statuses(decision: object) -> dict[Role, ConnectorStatus]:
    return {role: decided.status for role, decided in decision.roles.items()}


def settled_replicas(count: int) -> RoleReplicas:
    return RoleReplicas(ready=count, expected=count)


def test_replicas_start_one_after_the_other_and_are_seen_to() -> None:
    async def scene(cluster: Cluster) -> None:
        connector = cluster.connector()
        assert await connector.read() == {P: settled_replicas(4), D: settled_replicas(4)}
        assert statuses(await connector.scale({D: 6})) == {D: ConnectorStatus.APPLIED}
        assert (await connector.read())[D] == RoleReplicas(
            ready=4, expected=6, pending=2, in_progress=True
        )
        cluster.tick()
        starting = RoleReplicas(ready=4, expected=6, pending=2, in_progress=True, startup_only=True)
        assert (await connector.read())[D] == starting
        cluster.settle()
        assert (await connector.read())[D] == settled_replicas(6)
        assert await connector.wait(0)

    with_a_cluster(scene)


def gpus(count: int) -> dict[str, object]:
    limits = {"nvidia.com/gpu": str(count), "cpu": "8"}
    return {"spec": {"containers": [{"name": "engine", "resources": {"limits": limits}}]}}


@pytest.mark.parametrize(
    ("kind", "spec", "num_gpu"),
    [
        (DEPLOYMENT, {"template": gpus(2)}, 2),
        (STATEFUL_SET, {"template": gpus(4)}, 4),
        (LEADER_WORKER_SET, {"leaderWorkerTemplate": {"size": 3, "workerTemplate": gpus(8)}}, 24),
        (ADAPTER, {}, None),
        (ENGINE_POOL, {"template": gpus(1)}, 1),
    ],
)
def test_any_kind_with_a_scale_subresource(
    kind: Kind, spec: dict[str, object], num_gpu: int | None
) -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.add(kind, "engines", 2, spec)
        target = ScaleTarget(D, kind.kind, "engines", "default", kind.api_version)
        connector = cluster.connector(target)
        await connector.validate()
        limits = None if num_gpu is None else EngineLimits(num_gpu=num_gpu)
        assert await connector.read() == {D: RoleReplicas(ready=2, expected=2, limits=limits)}
        for count in (3, 1):
            assert statuses(await connector.scale({D: count})) == {D: ConnectorStatus.APPLIED}
            assert cluster.replicas("engines", kind) == count
            cluster.settle()
            assert (await connector.read())[D].ready == count

    with_a_cluster(scene)


def a_graph(cluster: Cluster) -> None:
    components = [
        {"name": "frontend", "replicas": 1},
        {"name": "decode", "replicas": 2, "podTemplate": gpus(2), "multinode": {"nodeCount": 2}},
    ]
    spec = {"components": components}
    cluster.store.create(GRAPH, "default", {"metadata": {"name": "graph"}, "spec": spec})
    cluster.settle()


def test_a_component_of_a_graph_is_found_by_its_name_even_when_it_moves() -> None:
    async def scene(cluster: Cluster) -> None:
        a_graph(cluster)
        target = ScaleTarget(D, "DynamoGraphDeployment", "graph", "default", None, "decode")
        connector = cluster.connector(target)
        limits = EngineLimits(num_gpu=4)
        assert await connector.read() == {D: RoleReplicas(ready=2, expected=2, limits=limits)}
        asked = cluster.api.call

        async def moved(method: str, *rest: object) -> bytes:
            if method == "PATCH":
                cluster.api.call = asked
                graph = cluster.store.get(GRAPH, "default", "graph")
                parts = [{"name": "planner", "replicas": 1}, *graph["spec"]["components"]]
                patch = {"spec": {"components": parts}}
                cluster.store.patch(GRAPH, "default", "graph", patch, "merge-patch")
            return await asked(method, *rest)

        cluster.api.call = moved
        assert statuses(await connector.scale({D: 5})) == {D: ConnectorStatus.APPLIED}
        parts = cluster.store.get(GRAPH, "default", "graph")["spec"]["components"]
        assert [(p["name"], p["replicas"]) for p in parts] == [
            ("planner", 1),
            ("frontend", 1),
            ("decode", 5),
        ]

    with_a_cluster(scene)


def test_a_component_that_is_not_there_is_a_fault_of_its_target() -> None:
    async def scene(cluster: Cluster) -> None:
        a_graph(cluster)
        target = ScaleTarget(P, "DynamoGraphDeployment", "graph", "default", None, "prefill")
        connector = cluster.connector(target, deployment(D, "decode"))
        assert await connector.read() == {D: settled_replicas(4)}
        assert (
            "component prefill does not exist; components: frontend, decode"
            in connector.faults()[P]
        )
        with pytest.raises(ConnectorError, match="component prefill does not exist"):
            await connector.validate()

    with_a_cluster(scene)


def test_a_conflict_is_looked_at_once_more() -> None:
    async def scene(cluster: Cluster) -> None:
        connector = cluster.connector()
        cluster.fake.faults = [Fault("PATCH", "decode/scale", 409)]
        assert statuses(await connector.scale({D: 5})) == {D: ConnectorStatus.APPLIED}
        cluster.fake.faults = [Fault("PATCH", "decode/scale", 409, times=2)]
        assert statuses(await connector.scale({D: 6})) == {D: ConnectorStatus.FAILED}
        assert cluster.replicas("decode") == 5
        assert statuses(await connector.scale({D: 6})) == {D: ConnectorStatus.APPLIED}

    with_a_cluster(scene)


def test_a_change_between_read_and_write_is_not_overwritten() -> None:
    async def scene(cluster: Cluster) -> None:
        connector = cluster.connector()
        asked = cluster.api.call

        async def beaten(method: str, *rest: object) -> bytes:
            if method == "PATCH":
                cluster.api.call = asked
                cluster.set_replicas("decode", 7)
            return await asked(method, *rest)

        cluster.api.call = beaten
        decision = await connector.scale({D: 5})
        assert decision.roles[D].detail == "the replicas were changed by another actor"
        assert cluster.replicas("decode") == 7
        assert (await connector.read())[D].expected == 7

    with_a_cluster(scene)


@pytest.mark.parametrize(
    ("status", "became"),
    [
        (403, ConnectorStatus.REFUSED),
        (404, ConnectorStatus.REFUSED),
        (429, ConnectorStatus.FAILED),
        (500, ConnectorStatus.FAILED),
    ],
)
def test_an_error_of_one_target_does_not_stop_the_other(
    status: int, became: ConnectorStatus
) -> None:
    async def scene(cluster: Cluster) -> None:
        connector = cluster.connector()
        cluster.fake.faults = [Fault("PATCH", "prefill/scale", status)]
        assert statuses(await connector.scale({P: 5, D: 5})) == {
            P: became,
            D: ConnectorStatus.APPLIED,
        }
        assert str(status) in connector.faults()[P]
        assert len([r for r in cluster.fake.writes() if "prefill" in r[1]]) == 1
        assert statuses(await connector.scale({P: 5, D: 5})) == {
            P: ConnectorStatus.APPLIED,
            D: ConnectorStatus.UNCHANGED,
        }

    with_a_cluster(scene)


@pytest.mark.parametrize("status", [403, 404, 429, 500, 0])
def test_an_unreadable_target_is_left_out_and_is_a_fault(status: int) -> None:
    async def scene(cluster: Cluster) -> None:
        connector = cluster.connector()
        cluster.fake.faults = [Fault("GET", "deployments/prefill", status, times=2)]
        assert await connector.read() == {D: settled_replicas(4)}
        assert connector.faults()[P].startswith("Deployment default/prefill: ")
        cluster.fake.faults = []
        assert await connector.read() == {P: settled_replicas(4), D: settled_replicas(4)}
        assert connector.faults() == {}

    with_a_cluster(scene)


def test_nothing_that_can_be_read_is_unknown_and_not_zero() -> None:
    async def scene(cluster: Cluster) -> None:
        connector = cluster.connector()
        cluster.fake.faults = [Fault("GET", "/apis/apps", 500, times=9)]
        with pytest.raises(ConnectorUnavailable, match="injected 500"):
            await connector.read()

    with_a_cluster(scene)


@pytest.mark.parametrize("status", [None, 0])
def test_a_write_without_an_answer_is_decided_anew_at_the_next_tick(status: int | None) -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.api.timeout_s = 0.3 if status is None else 30.0
        connector = cluster.connector()
        cluster.fake.faults = [Fault("PATCH", "decode/scale", status)]
        assert statuses(await connector.scale({D: 5})) == {D: ConnectorStatus.FAILED}
        cluster.api.timeout_s = 30.0
        assert statuses(await connector.scale({D: 5})) == {D: ConnectorStatus.APPLIED}

    with_a_cluster(scene)


@pytest.mark.parametrize("is_repeated", [True, False])
def test_a_rebalance_never_holds_more_than_the_budget(is_repeated: bool) -> None:
    async def scene(cluster: Cluster) -> None:
        connector = cluster.connector()
        wanted = {P: 1, D: 7}
        decision = await connector.scale(wanted)
        assert statuses(decision) == {P: ConnectorStatus.APPLIED, D: ConnectorStatus.WAITING}
        for _ in range(20):
            cluster.tick()
            await connector.wait(0)
            if is_repeated:
                await connector.scale(wanted)
        assert (cluster.replicas("prefill"), cluster.replicas("decode")) == (1, 7)
        assert cluster.controller.most_pods == 8

    with_a_cluster(scene)


def test_no_role_grows_while_the_other_cannot_shrink() -> None:
    async def scene(cluster: Cluster) -> None:
        connector = cluster.connector()
        await connector.read()
        for fault in (Fault("PATCH", "prefill/scale", 403), Fault("GET", "prefill", 403)):
            cluster.fake.faults = [fault]
            decision = await connector.scale({P: 1, D: 7})
            assert statuses(decision) == {P: ConnectorStatus.REFUSED, D: ConnectorStatus.FAILED}
            assert decision.roles[D].detail == "prefill could not be reduced"
            await connector.wait(0)
        assert (cluster.replicas("prefill"), cluster.replicas("decode")) == (4, 4)

    with_a_cluster(scene)


@pytest.mark.parametrize(
    ("status", "other"), [(500, ConnectorStatus.FAILED), (404, ConnectorStatus.APPLIED)]
)
def test_a_target_that_was_never_read_holds_others_only_while_that_may_pass(
    status: int, other: ConnectorStatus
) -> None:
    async def scene(cluster: Cluster) -> None:
        connector = cluster.connector()
        cluster.fake.faults = [Fault("GET", "prefill", status)]
        assert statuses(await connector.scale({P: 4, D: 5})) == {
            P: ConnectorStatus.REFUSED,
            D: other,
        }

    with_a_cluster(scene)


def test_pods_that_do_not_end_keep_their_gpus() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.controller.clinging = {"prefill"}
        connector = cluster.connector()
        await connector.scale({P: 1, D: 7})
        for _ in range(20):
            cluster.tick()
            assert not await connector.wait(0)
            decision = await connector.scale({P: 1, D: 7})
            assert statuses(decision) == {P: ConnectorStatus.UNCHANGED, D: ConnectorStatus.WAITING}
            assert (await connector.read())[P].in_progress
        cluster.controller.clinging = set()
        cluster.tick()
        assert await connector.wait(0)
        assert cluster.replicas("decode") == 7

    with_a_cluster(scene)


def test_a_pod_that_never_starts_is_seen_as_a_start_and_can_be_taken_back() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.controller.stuck = {"decode"}
        connector = cluster.connector()
        await connector.scale({D: 6})
        for _ in range(100):
            cluster.tick()
        seen = (await connector.read())[D]
        assert (seen.ready, seen.pending, seen.startup_only) == (4, 2, True)
        assert statuses(await connector.scale({D: 4})) == {D: ConnectorStatus.APPLIED}
        cluster.tick()
        cluster.tick(10)
        assert (await connector.read())[D] == settled_replicas(4)

    with_a_cluster(scene)


def test_a_cluster_that_has_not_seen_a_change_yet_is_in_progress() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.controller.paused = True
        connector = cluster.connector()
        cluster.set_replicas("decode", 3)
        seen = (await connector.read())[D]
        assert (seen.expected, seen.in_progress, seen.startup_only) == (3, True, False)

    with_a_cluster(scene)


def test_a_count_set_by_others_is_the_base_of_the_next_tick() -> None:
    async def scene(cluster: Cluster) -> None:
        connector = cluster.connector()
        await connector.scale({D: 5})
        cluster.set_replicas("decode", 9)
        cluster.settle()
        assert (await connector.read())[D] == settled_replicas(9)
        assert await connector.wait(0)
        assert cluster.replicas("decode") == 9
        assert statuses(await connector.scale({D: 6})) == {D: ConnectorStatus.APPLIED}

    with_a_cluster(scene)


def test_validating_and_reading_writes_nothing() -> None:
    async def scene(cluster: Cluster) -> None:
        connector = cluster.connector()
        await connector.validate()
        await connector.read()
        assert {method for method, _ in cluster.fake.requests} == {"GET"}

    with_a_cluster(scene)


def test_targets_that_cannot_be_read_stop_the_start_in_one_line() -> None:
    async def scene(cluster: Cluster) -> None:
        connector = cluster.connector(
            deployment(P, "prefil"), ScaleTarget(D, "Pool", "x", "default")
        )
        with pytest.raises(ConnectorError) as refused:
            await connector.validate()
        assert str(refused.value) == (
            'Deployment default/prefil: deployments "prefil" not found; '
            "Pool default/x: Pool: api_version is missing: give it in the target"
        )

    with_a_cluster(scene)


def test_nothing_is_watched_so_there_is_no_gap_to_miss() -> None:
    async def scene(cluster: Cluster) -> None:
        connector = cluster.connector()
        await connector.read()
        cluster.set_replicas("decode", 2)
        cluster.store.compact()
        cluster.settle()
        cluster.store.compact()
        assert (await connector.read())[D] == settled_replicas(2)

    with_a_cluster(scene)
