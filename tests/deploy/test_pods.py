"""Tests of two pods of the chart, started here: the pods serve, require keys and share load."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders.certificates import authority
from tests.builders.keys import bearer, entry, keys_file, secret
from tests.builders.launched_process import (
    STOP_S_MAX,
    LaunchedProcess,
    free_port,
    own_command,
    own_environment,
)
from tests.builders.polling import eventually
from tests.builders.running import Reached, request
from tests.deploy.chart import NAMESPACE, arguments, container

pytestmark = pytest.mark.process

PODS = 2
"""Number of started pods, of three; the missing pod does not prevent service."""
WORKER = {"worker_id": 1, "model_name": "m", "endpoint": "http://127.0.0.1:9", "block_size": 16}


class Pod(Reached):
    """Pod with a port in place of each of the two addresses."""

    def __init__(self, number: int) -> None:
        super().__init__(free_port())
        self.name, self.sync_port = f"select-service-{number}", free_port()

    @property
    def host(self) -> str:
        return f"{self.name}.select-service-replicas.{NAMESPACE}.svc.cluster.local"

    def started(
        self, others: list["Pod"], folder: Path, secrets: Path, values: str = "minimal"
    ) -> LaunchedProcess:
        """Start the command of the pod.

        folder, secrets: places of the pod's volumes
        """
        given = arguments(values, self.name)
        words = [self.here(word, others, folder, secrets) for word in given]
        variables = {
            "DYN_USE_KV_EVENTS": "false",
            "SELECT_SERVICE_NO_ASSUMED_INDEX": "true",
            "SELECT_SERVICE_CONNECT_TO_LOOPBACK": "true",
        }
        environment = own_environment(variables)
        return LaunchedProcess(own_command(*words), environment, self.port)

    def here(self, word: str, others: list["Pod"], folder: Path, secrets: Path) -> str:
        for pod in [self, *others]:
            word = word.replace(f"{pod.host}:8092", f"127.0.0.1:{pod.port}")
            word = word.replace(f"{pod.host}:9092", f"127.0.0.1:{pod.sync_port}")
        word = word.replace("--host=0.0.0.0", "--host=127.0.0.1")
        word = word.replace("--port=8092", f"--port={self.port}")
        word = word.replace("sync-port=9092", f"sync-port={self.sync_port}")
        word = word.replace("/var/lib/select-service", str(folder))
        for mount in ("/etc/select-service/keys", "/etc/select-service/tls"):
            word = word.replace(mount, str(secrets))
        return word

    def probed(self, probe: str) -> int:
        return self.call("GET", container("minimal")[probe]["httpGet"]["path"]).status


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[list[Pod]]:
    entries = (entry(role, role) for role in ("caller", "operator", "replica", "metrics"))
    keys_file(tmp_path, *entries)
    (tmp_path / "peer.key").write_text(secret("replica"))
    found = [Pod(number) for number in range(PODS)]
    with contextlib.ExitStack() as stack:
        for pod in found:
            folder = tmp_path / pod.name
            folder.mkdir()
            others = [other for other in found if other is not pod]
            launched = stack.enter_context(pod.started(others, folder, tmp_path))
            stack.callback(launched.process.send_signal, signal.SIGINT)  # without draining
            launched.wait_until_healthy(container("minimal")["startupProbe"]["httpGet"]["path"])
        yield found


def peers(pod: Pod) -> list[dict[str, object]]:
    answer = pod.call("GET", "/replica_sync/status", authorization=bearer("replica"))
    assert answer.status == 200
    found: list[dict[str, object]] = answer.body["peers"]
    return found


def test_two_pods_serve_and_share_their_bookings(pods: list[Pod], tmp_path: Path) -> None:
    for pod in pods:
        assert pod.probed("livenessProbe") == 200
        assert pod.call("GET", "/workers").status == 401
        # Pods are not ready without workers, or before the state of the peers is known.
        assert pod.probed("readinessProbe") == 503
        assert pod.call("POST", "/workers", WORKER, authorization=bearer("operator")).status == 201
    for pod in pods:
        eventually(lambda pod=pod: pod.probed("readinessProbe") == 200)
        assert not any(peer["self"] for peer in peers(pod))
        assert len(peers(pod)) == 2
        eventually(lambda pod=pod: sum(bool(peer["connected"]) for peer in peers(pod)) == 1)
    booking = {"model_name": "m", "reservation_id": "r", "token_ids": list(range(64))}
    booked = pods[0].call("POST", "/select_and_reserve", booking, authorization=bearer("caller"))
    assert booked.status == 200
    eventually(
        lambda: (
            pods[1].call("GET", "/reservations/r", authorization=bearer("operator")).status == 200
        )
    )
    assert pods[1].call("GET", "/metrics", authorization=bearer("metrics")).status == 200
    for pod in pods:
        assert "/workers" in (tmp_path / pod.name / "audit.jsonl").read_text()


def test_where_clients_need_a_certificate_the_probes_show_one(tmp_path: Path) -> None:
    issued = authority().issue()
    keys_file(tmp_path, entry("operator", "operator"), entry("replica", "replica"))
    (tmp_path / "peer.key").write_text(secret("replica"))
    for name, path in (
        ("tls.crt", issued.certificate),
        ("tls.key", issued.key),
        ("ca.crt", authority().file),
        ("clients.crt", authority().file),
    ):
        (tmp_path / name).write_bytes(path.read_bytes())
    pod = Pod(0)
    probe = container("certificates")["startupProbe"]["exec"]["command"]
    command = [
        pod.here(word, [], tmp_path, tmp_path).replace("8092", str(pod.port)) for word in probe
    ]
    command[0] = sys.executable

    def probe_status(path: str) -> int:
        return subprocess.run([*command[:-1], path], capture_output=True, check=False).returncode

    with pod.started([], tmp_path, tmp_path, "certificates") as launched:
        eventually(lambda: probe_status(probe[-1]) == 0)
        assert probe_status("/ready") == 1
        with pod.client() as plain:
            plain.send(request("GET", "/health"))
            assert plain.ended()
        launched.process.send_signal(signal.SIGINT)
        launched.process.wait(STOP_S_MAX)
    assert probe_status(probe[-1]) == 1
