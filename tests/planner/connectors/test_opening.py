"""Tests of connectors that configurations name."""

import asyncio
from pathlib import Path

import pytest

from select_service.planner import config
from select_service.planner.connectors.connector import (
    ConnectorError,
    ConnectorStatus,
    PlatformConnector,
)
from select_service.planner.connectors.dry_run_connector import DryRunConnector
from select_service.planner.connectors.factory import (
    ConnectorEnvironment,
    make_connector,
    make_identity,
)
from select_service.planner.connectors.virtual_connector import VirtualConnector
from select_service.planner.core.tick_input import Role
from tests.builders.fake_kubernetes.kinds import DEPLOYMENT, LEASE
from tests.builders.fake_kubernetes.server import FakeKubernetes, serving
from tests.planner.connectors.a_cluster import Cluster, D, PlainApi, Time
from tests.planner.connectors.a_selector import ASelector, running
from tests.planner.connectors.decided import roles_with

P = Role.PREFILL


def a_deployment(connector: config.ConnectorConfig, **more: object) -> config.DeploymentConfig:
    return config.DeploymentConfig(name="chat", model_name="llama", connector=connector, **more)


async def test_a_virtual_connector_with_selectors_drains(tmp_path: Path) -> None:
    selector = ASelector(booked={1: 0, 2: 1}, blocks={1: 4, 2: 9})
    async with running(selector):
        chosen = config.VirtualConnectorConfig(path=str(tmp_path / "decision.json"))
        deployment = a_deployment(chosen)
        virtual = await make_connector(deployment, ConnectorEnvironment([selector.url]))
        assert isinstance(virtual, VirtualConnector)
        await virtual.scale({P: 1, D: 2})
        await virtual.acknowledge(0, {D: 2})
        await virtual.scale({D: 1})
        assert virtual.decision.victims == (1,)
        await virtual.close()


async def test_a_dry_run_reads_observed_or_else_decided_counts() -> None:
    async def serving_workers() -> dict[Role, int]:
        return {D: 7}

    deployment = a_deployment(config.DryRunConnectorConfig(), prefill_min_endpoint=2)
    connector = await make_connector(deployment, ConnectorEnvironment(), serving_workers)
    await connector.scale({D: 9})
    assert {role: r.ready for role, r in (await connector.read()).items()} == {P: 0, D: 7}
    assert isinstance(connector, DryRunConnector)
    connector = await make_connector(
        a_deployment(config.DryRunConnectorConfig(), mode="agg"), ConnectorEnvironment()
    )
    assert {role: r.ready for role, r in (await connector.read()).items()} == {D: 1}
    await connector.scale({D: 3})
    assert {role: r.ready for role, r in (await connector.read()).items()} == {D: 3}


async def test_a_paused_connector_keeps_its_lease_from_spares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(FakeKubernetes()) as fake:
        cluster = Cluster(fake, PlainApi(fake.url), Time())
        cluster.add(DEPLOYMENT, "decode", 2)
        where = "select_service.planner.connectors.factory.KubernetesApiClient"
        monkeypatch.setattr(where, lambda _kubeconfig: PlainApi(fake.url))
        target = config.KubernetesTargetConfig("Deployment", "decode")
        chosen = config.KubernetesConnectorConfig(decode=target, drain=False)
        connector = await make_connector(a_deployment(chosen, mode="agg"), ConnectorEnvironment())
        await connector.validate()
        assert roles_with(await connector.scale({D: 3}), ConnectorStatus.APPLIED) == (D,)
        lease = cluster.store.get(LEASE, "default", "select-planner")
        assert lease["spec"]["holderIdentity"]
        await connector.pause()
        lease = cluster.store.get(LEASE, "default", "select-planner")
        assert lease["spec"]["holderIdentity"]
        assert (await connector.read())[D].expected == 3
        await connector.close()
        lease = cluster.store.get(LEASE, "default", "select-planner")
        assert lease["spec"]["holderIdentity"] == ""


async def test_deployments_that_name_one_lease_are_led_together_until_the_last_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(FakeKubernetes()) as fake:
        cluster = Cluster(fake, PlainApi(fake.url), Time())
        for name in ("one", "two"):
            cluster.add(DEPLOYMENT, name, 2)
        where = "select_service.planner.connectors.factory.KubernetesApiClient"
        monkeypatch.setattr(where, lambda _kubeconfig: PlainApi(fake.url))
        here, spare = ConnectorEnvironment(), ConnectorEnvironment()

        async def connected(around: ConnectorEnvironment, name: str) -> PlatformConnector:
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


async def test_a_pod_without_an_account_must_name_the_namespace() -> None:
    chosen = config.KubernetesConnectorConfig(
        decode=config.KubernetesTargetConfig("Deployment", "decode")
    )
    with pytest.raises(ConnectorError, match="namespace is unknown"):
        await make_connector(a_deployment(chosen), ConnectorEnvironment())


def test_no_two_planners_have_the_same_identity() -> None:
    assert make_identity() != make_identity()
