"""Connectors as configurations name them."""

import asyncio
from pathlib import Path

import pytest

from select_service.planner import config
from select_service.planner.connectors.advisory import Switched
from select_service.planner.connectors.base import ConnectorError, Status
from select_service.planner.connectors.opening import Surroundings, identity, opened, virtual_of
from select_service.planner.core.inputs import Role
from tests.planner.connectors.a_cluster import Cluster, D, PlainApi, Time
from tests.planner.connectors.a_selector import ASelector, running
from tests.planner.fake_kubernetes.kinds import DEPLOYMENT, LEASE
from tests.planner.fake_kubernetes.server import FakeKubernetes, serving

P = Role.PREFILL


def a_deployment(connector: config.Connector, **more: object) -> config.DeploymentConfig:
    return config.DeploymentConfig(name="chat", model_name="llama", connector=connector, **more)


def test_a_virtual_connector_with_selectors_drains(tmp_path: Path) -> None:
    async def run() -> None:
        selector = ASelector(booked={1: 0, 2: 1}, blocks={1: 4, 2: 9})
        async with running(selector):
            chosen = config.VirtualConnector(path=str(tmp_path / "decision.json"))
            deployment = a_deployment(chosen)
            switched = await opened(deployment, Surroundings([selector.url]))
            virtual = virtual_of(switched)
            assert virtual is not None
            await switched.scale({P: 1, D: 2})
            await virtual.complete(0, {D: 2})
            await switched.scale({D: 1})
            assert virtual.decision.victims == (1,)
            await switched.close()

    asyncio.run(run())


def test_a_dry_run_reads_what_is_seen_or_else_what_was_decided() -> None:
    async def seen() -> dict[Role, int]:
        return {D: 7}

    async def run() -> None:
        deployment = a_deployment(config.DryRunConnector(), prefill_min_endpoint=2)
        switched = await opened(deployment, Surroundings(), seen)
        await switched.scale({D: 9})
        assert {role: r.ready for role, r in (await switched.read()).items()} == {P: 0, D: 7}
        assert virtual_of(switched) is None
        switched = await opened(a_deployment(config.DryRunConnector(), mode="agg"), Surroundings())
        assert {role: r.ready for role, r in (await switched.read()).items()} == {D: 1}
        await switched.scale({D: 3})
        assert {role: r.ready for role, r in (await switched.read()).items()} == {D: 3}

    asyncio.run(run())


def test_a_deployment_that_becomes_advisory_keeps_its_lease_from_spares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        async with serving(FakeKubernetes()) as fake:
            cluster = Cluster(fake, PlainApi(fake.url), Time())
            cluster.add(DEPLOYMENT, "decode", 2)
            where = "select_service.planner.connectors.opening.KubeClient"
            monkeypatch.setattr(where, lambda _kubeconfig: PlainApi(fake.url))
            target = config.KubernetesTarget("Deployment", "decode")
            chosen = config.KubernetesConnector(decode=target, drain=False)
            switched = await opened(a_deployment(chosen, mode="agg"), Surroundings())
            await switched.validate()
            assert (await switched.scale({D: 3})).with_status(Status.APPLIED) == (D,)
            lease = cluster.store.get(LEASE, "default", "select-planner")
            assert lease["spec"]["holderIdentity"]
            await switched.switch(True)
            assert (await switched.scale({D: 1})).with_status(Status.ADVISORY) == (D,)
            lease = cluster.store.get(LEASE, "default", "select-planner")
            assert lease["spec"]["holderIdentity"]
            assert (await switched.read())[D].expected == 3
            await switched.close()
            lease = cluster.store.get(LEASE, "default", "select-planner")
            assert lease["spec"]["holderIdentity"] == ""

    asyncio.run(run())


def test_deployments_that_name_one_lease_are_led_together_until_the_last_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        async with serving(FakeKubernetes()) as fake:
            cluster = Cluster(fake, PlainApi(fake.url), Time())
            for name in ("one", "two"):
                cluster.add(DEPLOYMENT, name, 2)
            where = "select_service.planner.connectors.opening.KubeClient"
            monkeypatch.setattr(where, lambda _kubeconfig: PlainApi(fake.url))
            here, spare = Surroundings(), Surroundings()

            async def connected(around: Surroundings, name: str) -> Switched:
                target = config.KubernetesTarget("Deployment", name)
                chosen = config.KubernetesConnector(decode=target, drain=False)
                return await opened(a_deployment(chosen, mode="agg"), around)

            one, two = await connected(here, "one"), await connected(here, "two")
            other = await connected(spare, "two")
            both = await asyncio.gather(one.scale({D: 3}), two.scale({D: 3}))
            assert [each.with_status(Status.APPLIED) for each in both] == [(D,), (D,)]
            written = [asked for asked in fake.requests if "/leases" in asked[1]]
            assert [method for method, _ in written] == ["GET", "POST"]
            await one.close()
            assert (await other.scale({D: 1})).with_status(Status.NOT_LEADER) == (D,)
            assert (await two.scale({D: 4})).with_status(Status.APPLIED) == (D,)
            await two.close()
            assert (await other.scale({D: 1})).with_status(Status.APPLIED) == (D,)
            await other.close()

    asyncio.run(run())


def test_a_pod_without_an_account_must_name_the_namespace() -> None:
    async def run() -> None:
        chosen = config.KubernetesConnector(decode=config.KubernetesTarget("Deployment", "decode"))
        with pytest.raises(ConnectorError, match="set the namespace"):
            await opened(a_deployment(chosen), Surroundings())

    asyncio.run(run())


def test_no_two_planners_have_the_same_identity() -> None:
    assert identity() != identity()
