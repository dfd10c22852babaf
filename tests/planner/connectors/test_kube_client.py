"""Tests of the library's client over HTTPS to the fake: accounts, kubeconfigs, TLS."""

import asyncio
import contextlib
import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from select_service.net.kubernetes_session import KubernetesError
from select_service.planner.connectors.connector import ConnectorError, ConnectorStatus
from select_service.planner.connectors.kube import api_client as client_module
from select_service.planner.connectors.kube.api_client import KubernetesApiClient
from select_service.planner.connectors.kube.api_requests import MERGE_PATCH
from select_service.planner.connectors.kubernetes_connector import KubernetesConnector
from tests.builders.fake_kubernetes.kinds import DEPLOYMENT
from tests.builders.fake_kubernetes.server import FakeKubernetes, Fault, serving
from tests.builders.fake_kubernetes.tls import a_certificate
from tests.builders.polling import PATIENCE_S
from tests.planner.connectors.a_cluster import D, deployment
from tests.planner.connectors.decided import roles_with

needs_library = pytest.mark.skipif(
    importlib.util.find_spec("kubernetes_asyncio") is None,
    reason="the extra `kubernetes` (kubernetes-asyncio) is not installed",
)
DECODE = "/apis/apps/v1/namespaces/default/deployments/decode"


@contextlib.asynccontextmanager
async def account_client(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[FakeKubernetes, KubernetesApiClient, Path]]:
    """Yield a client with a pod's account in `folder`, and a fake that requires its token."""

    ca, tls = a_certificate(folder)
    (folder / "token").write_text("first")
    (folder / "namespace").write_text("inference\n")
    async with serving(FakeKubernetes(read_token="first"), tls) as fake:
        spec = {"metadata": {"name": "decode"}, "spec": {"replicas": 2}}
        fake.store.create(DEPLOYMENT, "default", spec)
        fake.controller.step(30)
        fake.controller.step(30)
        host, port = fake.url.removeprefix("https://").split(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        monkeypatch.setattr(client_module, "REQUEST_TIMEOUT_S", PATIENCE_S)
        client = KubernetesApiClient(account=folder)
        try:
            yield fake, client, ca
        finally:
            await client.close()


@needs_library
async def test_an_account_reads_and_scales(tmp_path, monkeypatch):
    async with account_client(tmp_path, monkeypatch) as (fake, client, _):
        assert await client.namespace() == "inference"
        connector = KubernetesConnector(client, [deployment(D, "decode")])
        await connector.validate()
        assert (await connector.read())[D].ready == 2
        assert roles_with(await connector.scale({D: 3}), ConnectorStatus.APPLIED) == (D,)
        assert fake.store.get(DEPLOYMENT, "default", "decode")["spec"]["replicas"] == 3


@needs_library
async def test_a_new_token_and_a_new_ca_are_read(tmp_path, monkeypatch):
    async with account_client(tmp_path, monkeypatch) as (fake, client, ca):
        await client.call("GET", DECODE)
        fake.read_token = "second"
        with pytest.raises(KubernetesError) as refused:
            await client.call("GET", DECODE)
        assert refused.value.status == 401
        (tmp_path / "token").write_text("second")
        await client.call("GET", DECODE)
        before = client._session._cluster
        ca.write_text(ca.read_text() + "\n")
        await client.call("GET", DECODE)
        assert client._session._cluster is not before


@needs_library
async def test_a_server_of_another_ca_is_not_trusted(tmp_path, monkeypatch):
    async with account_client(tmp_path, monkeypatch) as (fake, client, ca):
        other, _ = a_certificate(tmp_path / "other")
        ca.write_text(other.read_text())
        with pytest.raises(KubernetesError) as refused:
            await client.call("GET", DECODE)
        assert refused.value.status == 0
        assert fake.requests == []


@needs_library
@pytest.mark.parametrize("status", [403, 409, 429, 500, 0, None])
async def test_every_failure_has_its_status(tmp_path, monkeypatch, status):
    async with account_client(tmp_path, monkeypatch) as (fake, client, _):
        await client.call("GET", DECODE)
        if status is None:
            monkeypatch.setattr(client_module, "REQUEST_TIMEOUT_S", 0.3)
        fake.faults = [Fault("PATCH", "/scale", status)]
        patch = {"spec": {"replicas": 5}}
        with pytest.raises(KubernetesError) as refused:
            await client.call("PATCH", DECODE + "/scale", patch, MERGE_PATCH)
        assert refused.value.status == (status or 0)
        assert refused.value.is_transient == (status != 403)


@needs_library
async def test_a_kubeconfig_names_cluster_account_and_namespace(tmp_path, monkeypatch):
    async with account_client(tmp_path, monkeypatch) as (fake, _, ca):
        path = tmp_path / "config"
        path.write_text(kubeconfig(fake.url, ca, "first"))
        client = KubernetesApiClient(path)
        assert await client.namespace() == "models"
        assert b'"decode"' in await client.call("GET", DECODE)
        await client.close()


def kubeconfig(url: str, ca: Path, token: str) -> str:
    return f"""
apiVersion: v1
kind: Config
current-context: here
clusters: [{{name: fake, cluster: {{server: "{url}", certificate-authority: "{ca}"}}}}]
users: [{{name: planner, user: {{token: {token}}}}}]
contexts: [{{name: here, context: {{cluster: fake, user: planner, namespace: models}}}}]
"""


@needs_library
@pytest.mark.parametrize("content", [None, "", "{", "clusters: []"])
async def test_a_missing_cluster_is_a_one_line_error(tmp_path, content):
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    for client in (KubernetesApiClient(path), KubernetesApiClient(account=tmp_path)):
        with pytest.raises(ConnectorError, match="no cluster configured") as refused:
            await client.call("GET", DECODE)
        assert "\n" not in str(refused.value)
        with pytest.raises(ConnectorError, match="namespace is unknown"):
            await client.namespace()


def test_without_the_extra_it_is_named(monkeypatch, tmp_path):
    async def run() -> None:
        with pytest.raises(ConnectorError, match=r"pip install 'select-service\[kubernetes\]'"):
            await KubernetesApiClient(account=tmp_path).call("GET", DECODE)

    monkeypatch.setitem(__import__("sys").modules, "kubernetes_asyncio", None)
    asyncio.run(run())
