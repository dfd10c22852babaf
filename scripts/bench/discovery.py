#!/usr/bin/env python3
"""Measures how long workers that a source says take to be in the catalog, and an edit of one.

Of Kubernetes with an API server of our own in this process, or of a file, and a service as a
process of its own; KV events are off, so that no engine is needed.

    python scripts/bench/discovery.py --workers 1000
    python scripts/bench/discovery.py --source file
"""

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.edge.discovery.pod_documents import a_pod
from tests.planner.fake_kubernetes.kinds import POD
from tests.planner.fake_kubernetes.server import FakeKubernetes, serving
from tests.process.running import Running

POLL_S = 0.01
TEMPLATE = {"model_name": "m", "block_size": 16}


def ip_of(number: int) -> str:
    return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"


class OfKubernetes:
    """Pods of an API server in this process."""

    def __init__(self, folder: Path, fake: FakeKubernetes, n_workers: int) -> None:
        self.fake = fake
        for number in range(n_workers):
            fake.store.create(POD, "prod", a_pod(f"vllm-{number}", ip=ip_of(number)))
        kubeconfig = folder / "kubeconfig"
        context = {"cluster": "k", "user": "u", "namespace": "prod"}
        document = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": context}],
            "clusters": [{"name": "k", "cluster": {"server": fake.url}}],
            "users": [{"name": "u", "user": {}}],
        }
        kubeconfig.write_text(json.dumps(document))
        pods = {"labels": "app=vllm", "kubeconfig": str(kubeconfig)}
        source = {"kubernetes": pods, "worker": TEMPLATE, "ask": False}
        path = folder / "sources"
        path.write_text(json.dumps({"sources": [source]}))
        self.flags = ("--discovery-config", str(path))

    def edit(self, number: int, taint: str) -> None:
        annotation = json.dumps({**TEMPLATE, "taints": [taint]})
        pod = a_pod(
            f"vllm-{number}", ip=ip_of(number), annotations={"select-service/worker": annotation}
        )
        self.fake.store.update(POD, "prod", f"vllm-{number}", pod)


class OfFile:
    """A file of records."""

    def __init__(self, folder: Path, n_workers: int) -> None:
        self.path = folder / "workers"
        self.workers = [
            {**TEMPLATE, "worker_id": n, "endpoint": f"http://{ip_of(n)}:8000"}
            for n in range(n_workers)
        ]
        self._write()
        self.flags = ("--workers-file", str(self.path))

    def edit(self, number: int, taint: str) -> None:
        self.workers[number]["taints"] = [taint]
        self._write()

    def _write(self) -> None:
        self.path.write_text(json.dumps(self.workers))


async def until(is_so: Callable[[], bool]) -> float:
    """Seconds that it took."""
    begun = time.monotonic()
    while not await asyncio.to_thread(is_so):
        await asyncio.sleep(POLL_S)
    return time.monotonic() - begun


async def measure(source: OfKubernetes | OfFile, n_workers: int, n_edits: int) -> None:
    service = await asyncio.to_thread(lambda: Running(*source.flags, DYN_USE_KV_EVENTS="false"))
    healthy_at = time.monotonic()
    try:
        await until(lambda: owned(service) == n_workers)
        print(f"{n_workers} workers in sync {time.monotonic() - healthy_at:.2f} s after /health")
        numbers = [n * n_workers // n_edits for n in range(n_edits)]
        ids = await asyncio.to_thread(ids_of, service)
        taken = []
        for edit, number in enumerate(numbers):
            source.edit(number, f"edit-{edit}")
            path = f"/workers/{ids[f'http://{ip_of(number)}:8000']}"
            taken.append(await until(lambda: taints(service, path) == [f"edit-{edit}"]))  # noqa: B023
        print(f"an edit: median {statistics.median(taken):.3f} s, longest {max(taken):.3f} s")
        print(await asyncio.to_thread(steps, service))
    finally:
        await asyncio.to_thread(service.__exit__, None, None, None)


def owned(service: Running) -> int:
    (source,) = service.call("GET", "/discovery").body["sources"]
    return int(source["owned"])


def ids_of(service: Running) -> dict[str, int]:
    return {w["endpoint"]: w["worker_id"] for w in service.call("GET", "/workers").body}


def taints(service: Running, path: str) -> list[str]:
    found: list[str] = service.call("GET", path).body["taints"]
    return found


def steps(service: Running) -> str:
    text = service.call("GET", "/metrics").body.decode()
    name = 'select_service_task_{}{{task="discovery"}}'
    found = {
        what: float(re.findall(re.escape(name.format(what)) + r" (\S+)", text)[0])
        for what in ("longest_step_seconds", "overruns_total", "steps_total", "seconds_total")
    }
    return (
        f"steps: {found['steps_total']:.0f}, over 5 ms {found['overruns_total']:.0f}, longest "
        f"{found['longest_step_seconds'] * 1e3:.1f} ms, all {found['seconds_total'] * 1e3:.0f} ms"
    )


async def with_kubernetes(folder: Path, n_workers: int, n_edits: int) -> None:
    async with serving(FakeKubernetes()) as fake:
        await measure(OfKubernetes(folder, fake, n_workers), n_workers, n_edits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", choices=["kubernetes", "file"], default="kubernetes")
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--edits", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sizes = arguments.workers, arguments.edits
        if arguments.source == "kubernetes":
            asyncio.run(with_kubernetes(Path(folder), *sizes))
        else:
            asyncio.run(measure(OfFile(Path(folder), arguments.workers), *sizes))


if __name__ == "__main__":
    main()
