"""Ray clusters on this machine, and requests to the selectors there."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import ray
from ray.cluster_utils import Cluster

from select_service.ray import find, remove
from select_service.ray.deployment_members import NAMESPACE
from tests.builders.launched_process import free_port
from tests.builders.polling import eventually

NODE = {"object_store_memory": 80 * 1024 * 1024, "include_dashboard": False}
FLAGS = ("--threads", "1")
PORTS_APART = 200


@contextmanager
def cluster(
    cpus: tuple[int, ...], runtime_env: Mapping[str, Any] | None = None
) -> Iterator[Cluster]:
    """Start nodes with these numbers of CPUs, which no test really uses; the first is the head."""
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus[0], **NODE})
    try:
        for n_cpus in cpus[1:]:
            nodes.add_node(num_cpus=n_cpus, **NODE)
        ray.init(address=nodes.address, log_to_driver=False, runtime_env=runtime_env)
        yield nodes
    finally:
        if ray.is_initialized():
            remove()
        ray.shutdown()
        nodes.shutdown()


def port() -> int:
    """Return the first port of a range that is probably free."""
    return min(free_port(), 32_000 - PORTS_APART)


def get(url: str, path: str) -> Any:
    """Return the answer, or None if there is none now, as of a selector that restarts."""
    try:
        return httpx.get(url + path, timeout=5.0).raise_for_status().json()
    except httpx.HTTPError:
        return None


def register(url: str, worker_id: int, **fields: Any) -> None:
    body = {"worker_id": worker_id, "model_name": "m", "endpoint": "http://e", "block_size": 16}
    httpx.post(url + "/workers", json={**body, **fields}).raise_for_status()


def reservations(url: str) -> int | None:
    page = get(url, "/reservations?limit=1")
    return None if page is None else page["total"]


def worker_ids(url: str) -> set[int]:
    return {w["worker_id"] for w in get(url, "/workers") or () if w["lifecycle"] != "unschedulable"}


def are_joined(urls: list[str]) -> bool:
    """Return whether every selector is connected to every other selector, and to no other peer."""
    for url in urls:
        peers = (get(url, "/replica_sync/status") or {}).get("peers", ())
        if sum(peer["connected"] for peer in peers) != len(urls) - 1 or len(peers) != len(urls) - 1:
            return False
    return True


def kill_selector(index: int) -> None:
    """Kill the process of an actor."""
    actor = ray.get_actor(f"select-service-{index}", namespace=NAMESPACE)
    ray.kill(actor, no_restart=False)


def service_pids(first_port: int) -> dict[int, int]:
    """Return the process of each service of this deployment by HTTP port."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            words = _command(folder)
            match = re.search(r"-m select_service .*? --port (\d+)", words)
            if match and first_port <= int(match[1]) < first_port + PORTS_APART:
                found[int(match[1])] = int(folder.name)
    return found


def _command(folder: Path) -> str:
    try:
        return (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def find_selectors(n: int) -> list[str]:
    """Return the URLs once `n` selectors answer."""

    def find_enough() -> list[str]:
        try:
            urls = find()
        except LookupError:
            return []
        return urls if len(urls) == n else []

    return eventually(find_enough)


def kill(pid: int) -> None:
    os.kill(pid, 9)
