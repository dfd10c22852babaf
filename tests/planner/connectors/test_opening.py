"""Connectors as configurations name them."""

import asyncio
from pathlib import Path

import pytest

from select_service.planner import config
from select_service.planner.connectors.advisory_connector import AdvisoryConnector
from select_service.planner.connectors.connector import ConnectorError, ConnectorStatus
from select_service.planner.connectors.factory import (
    ConnectorEnvironment,
    find_virtual_connector,
    make_connector,
    make_identity,
)
from select_service.planner.core.tick_input import Role
from tests.planner.connectors.a_cluster import Cluster, D, PlainApi, Time
from tests.planner.connectors.a_selector import ASelector, running
from tests.planner.connectors.decided import roles_with
from tests.planner.fake_kubernetes.kinds import DEPLOYMENT, LEASE
from tests.planner.fake_kubernetes.server import FakeKubernetes, serving

P = Role.PREFILL


def a_deployment(connector: config.ConnectorConfig, **more: object) -> config.DeploymentConfig:
    return config.DeploymentConfig(name="chat", model_name="llama", connector=connector, **more)


def test_a_virtual_connector_with_selectors_drains(tmp_path: Path) -> None:
    async def run() -> None:
        selector = ASelector(booked={1: 0, 2: 1}, blocks={1: 4, 2: 9})
        async with running(selector):
            chosen = config.VirtualConnectorConfig(path=str(tmp_path / "decision.json"))
            deployment = a_deployment(chosen)
            switched = await make_connector(deployment, ConnectorEnvironment([selector.url]))
            virtual = find_virtual_connector(switched)
            assert virtual is not None
            await switched.scale({P: 1, D: 2})
            await virtual.acknowledge(0, {D: 2})
            await switched.scale({D: 1})
            assert virtual.decision.victims == (1,)
            await switched.close()

    asyncio.run(run())


def test_a_dry_run_reads_what_is_seen_or_else_what_was_decided() -> None:
    async def seen() -> dict[Role, int]:
        return {D: 7}

    async def run() -> None:
        deployment = a_deployment(config.DryRunConnectorConfig(), prefill_min_endpoint=2)
        switched = await make_connector(deployment, ConnectorEnvironment(), seen)
        await switched.scale({D: 9})
        assert {role: r.ready for role, r in (await switched.read()).items()} == {P: 0, D: 7}
        assert find_virtual_connector(switched) is None
        switched = await make_connector(
            a_deployment(config.DryRunConnectorConfig(), mode="agg"), ConnectorEnvironment()
        )
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
            where = "select_service.planner.connectors.factory.KubernetesApiClient"
            monkeypatch.setattr(where, lambda _kubeconfig: PlainApi(fake.url))
            target = config.KubernetesTargetConfig("Deployment", "decode")
            chosen = config.KubernetesConnectorConfig(decode=target, drain=False)
            switched = await make_connector(
                a_deployment(chosen, mode="agg"), ConnectorEnvironment()
            )
            await switched.validate()
            assert roles_with(await switched.scale({D: 3}), ConnectorStatus.APPLIED) == (D,)
            lease = cluster.store.get(LEASE, "default", "select-planner")
            assert lease["spec"]["holderIdentity"]
            await switched.switch_advisory(True)
            assert roles_with(await switched.scale({D: 1}), ConnectorStatus.ADVISORY) == (D,)
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
            where = "select_service.planner.connectors.factory.KubernetesApiClient"
            monkeypatch.setattr(where, lambda _kubeconfig: PlainApi(fake.url))
            here, spare = ConnectorEnvironment(), ConnectorEnvironment()

            async def connected(around: ConnectorEnvironment, name: str) -> AdvisoryConnector:
                target = config.KubernetesTargetConfig("Deployment", name)
                chosen = config.KubernetesConnectorConfig(decode=target, drain=False)
                return await make_connector(a_deployment(chosen, mode="agg"), around)

            one, two = await connected(here, "one"), await connected(here, "two")
            other = await connected(spare, "two")
            both = await asyncio.gather(one.scale({D: 3}), two.scale({D: 3}))
            assert [roles_with(each, ConnectorStatus.APPLIED) for each in both] == [(D,), (D,)]
            written = [asked for asked in fake.requests if "/leases" in asked[1]]
            assert [method for method, _ in written] == ["GET", "POST"]
            await one.close()
            assert roles_with(await other.scale({D: 1}), ConnectorStatus.NOT_LEADER) == (D,)
            assert roles_with(await two.scale({D: 4}), ConnectorStatus.APPLIED) == (D,)
            await two.close()
            assert roles_with(await other.scale({D: 1}), ConnectorStatus.APPLIED) == (D,)
            await other.close()

    asyncio.run(run())


def test_a_pod_without_an_account_must_name_the_namespace() -> None:
    async def run() -> None:
        chosen = config.KubernetesConnectorConfig(
            decode=config.KubernetesTargetConfig("Deployment", "decode")
        )
        with pytest.raises(ConnectorError, match="namespace is unknown"):
            await make_connector(a_deployment(chosen), ConnectorEnvironment())

    asyncio.run(run())


def test_no_two_planners_have_the_same_identity() -> None:
    assert make_identity() != make_identity()
