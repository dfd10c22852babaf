"""Tests of the fake with kubectl, an independent client.

Connectors may rely on behaviour of the fake that works for kubectl.

"""

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.builders.fake_kubernetes.kinds import DEPLOYMENT, LEASE
from tests.builders.fake_kubernetes.server import FakeKubernetes, serving
from tests.builders.fake_kubernetes.tls import a_certificate
from tests.planner.connectors.test_kube_client import kubeconfig

KUBECTL = shutil.which("kubectl")
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed (kubernetes-client)"),
]

Kubectl = Callable[..., Awaitable[tuple[int, str]]]


@contextlib.asynccontextmanager
async def cluster_kubectl(folder: Path) -> AsyncIterator[tuple[FakeKubernetes, Kubectl]]:
    ca, tls = a_certificate(folder)
    async with serving(FakeKubernetes(read_token="secret"), tls) as fake:
        for name, replicas in (("prefill", 1), ("decode", 2)):
            spec = {"metadata": {"name": name}, "spec": {"replicas": replicas}}
            fake.store.create(DEPLOYMENT, "models", spec)
        fake.controller.step(30)
        fake.controller.step(30)
        config = folder / "config"
        config.write_text(kubeconfig(fake.url, ca, "secret"))
        environment = os.environ | {"KUBECONFIG": str(config), "HOME": str(folder)}

        async def kubectl(*words: str) -> tuple[int, str]:
            process = await asyncio.create_subprocess_exec(
                KUBECTL or "kubectl",
                *words,
                env=environment,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            async with asyncio.timeout(60):
                said, _ = await process.communicate()
            return process.returncode or 0, said.decode()

        yield fake, kubectl


def replicas(fake: FakeKubernetes, name: str) -> int:
    return int(fake.store.get(DEPLOYMENT, "models", name)["spec"]["replicas"])


async def test_kubectl_reads_lists_scales_and_patches(tmp_path: Path) -> None:
    async with cluster_kubectl(tmp_path) as (fake, kubectl):
        status, said = await kubectl("get", "deployment", "decode", "-o", "json")
        assert (status, json.loads(said)["status"]["readyReplicas"]) == (0, 2)
        status, said = await kubectl("get", "deploy,pods", "-o", "name")
        assert status == 0, said
        assert said.split() == [
            "deployment.apps/decode", "deployment.apps/prefill",
            "pod/decode-0", "pod/decode-1", "pod/prefill-2",
        ]  # fmt: skip
        for words in (("--replicas=5",), ("--current-replicas=5", "--replicas=3")):
            status, said = await kubectl("scale", "deployment/decode", *words)
            assert status == 0, said
        assert replicas(fake, "decode") == 3
        status, said = await kubectl(
            "scale", "deployment/decode", "--current-replicas=7", "--replicas=1"
        )
        assert status != 0
        for form, patch in (
            ("merge", '{"spec": {"replicas": 4}}'),
            ("json", '[{"op": "replace", "path": "/spec/replicas", "value": 6}]'),
        ):
            status, said = await kubectl("patch", "deploy", "decode", f"--type={form}", "-p", patch)
            assert status == 0, said
        assert replicas(fake, "decode") == 6


async def test_kubectl_waits_for_a_rollout_and_reads_leases(tmp_path: Path) -> None:
    async with cluster_kubectl(tmp_path) as (fake, kubectl):
        lease = {"metadata": {"name": "planner"}, "spec": {"holderIdentity": "one"}}
        fake.store.create(LEASE, "models", lease)
        where = "jsonpath={.spec.holderIdentity}"
        assert await kubectl("get", "lease", "planner", "-o", where) == (0, "one")
        await kubectl("scale", "deployment/decode", "--replicas=4")
        waiting = asyncio.create_task(
            kubectl("rollout", "status", "deployment/decode", "--timeout=50s")
        )
        while not any("deployments" in path for _, path in fake.requests[-1:]):
            await asyncio.sleep(0.02)
        while not waiting.done():
            fake.controller.step(10)
            await asyncio.sleep(0.05)
        status, said = await waiting
        assert status == 0, said


async def test_without_the_token_it_is_refused(tmp_path: Path) -> None:
    async with cluster_kubectl(tmp_path) as (fake, kubectl):
        fake.read_token = "another"
        status, said = await kubectl("get", "pods")
        assert status != 0
        assert "logged in" in said or "Unauthorized" in said
