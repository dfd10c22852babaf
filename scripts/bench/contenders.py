"""The two services of a paired run as processes: start, measure, talk, stop."""

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

SERVER_CPU, LOAD_CPU = 0, 1
START_S_MAX = 60.0
STOP_S_MAX = 10.0
ANSWER_S_MAX = 60.0
POLL_S = 0.002
TICKS = os.sysconf("SC_CLK_TCK")
ROOT = Path(__file__).resolve().parents[2]


class Contender(NamedTuple):
    """Something to measure: a name for the tables and the command without its port."""

    name: str
    command: tuple[str, ...]


def ours() -> Contender:
    return Contender("ours", (sys.executable, "-m", "select_service", "--host", "127.0.0.1"))


def reference(python: str) -> Contender:
    return Contender("reference", (python, "-m", "dynamo.select_service"))


class Running:
    """One process of a contender, on a port of its own and, unless told otherwise, on its CPU."""

    def __init__(self, contender: Contender, pinned: bool = True) -> None:
        self.name = contender.name
        self.port = _free_port()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self.started_at = time.perf_counter()
        self._process = subprocess.Popen(
            (*contender.command, "--port", str(self.port)),
            cwd=ROOT,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            preexec_fn=_pin_server if pinned else None,
        )
        self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S_MAX)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._connection.close()
        self._process.terminate()
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def wait_until_healthy(self) -> None:
        until = time.monotonic() + START_S_MAX
        while True:
            try:
                self.call("GET", "/health")
                return
            except OSError:
                self._connection.close()
            if self._process.poll() is not None or time.monotonic() > until:
                self._log.seek(0)
                raise RuntimeError(f"{self.name} does not start: {self._log.read()[-2000:]!r}")
            time.sleep(POLL_S)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The decoded answer of one request; anything but 2xx is an error."""
        raw = None if body is None else json.dumps(body)
        headers = {} if raw is None else {"content-type": "application/json"}
        self._connection.request(method, path, raw, headers)
        response = self._connection.getresponse()
        answer = response.read()
        if response.status // 100 != 2:
            raise RuntimeError(f"{self.name}: {method} {path}: {response.status} {answer!r}")
        return json.loads(answer)

    def register(self, endpoints: Sequence[str], block_size: int) -> None:
        """One worker per event endpoint, ids from 1 on; complete enough for both contenders."""
        for worker_id, endpoint in enumerate(endpoints, start=1):
            record = self.call(
                "POST",
                "/workers",
                {
                    "worker_id": worker_id,
                    "endpoint": f"http://worker-{worker_id}:8000",
                    "block_size": block_size,
                    "max_num_batched_tokens": 8192,
                    "kv_events_endpoint": endpoint,
                },
            )
            assert record["lifecycle"] == "schedulable", record

    def device_blocks(self, hashes: list[int]) -> dict[int, int]:
        """Matched GPU blocks by worker."""
        body = {"block_hashes": hashes, "sequence_hashes": hashes, "isl_tokens": len(hashes)}
        rows = self.call("POST", "/overlap_scores", body)["workers"]
        return {row["worker_id"]: row["device_blocks"] for row in rows}

    def cpu_s(self) -> float:
        """User and system time of the whole process so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def starved_s(self) -> float:
        """How long its main thread was ready to run so far, but had no CPU: what others took."""
        return int(Path(f"/proc/{self._process.pid}/schedstat").read_text().split()[1]) / 1e9

    def resident_mb(self) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024


def pin_load() -> None:
    """Keep this process, and what it starts, off the server's CPU."""
    os.sched_setaffinity(0, {LOAD_CPU})


def _pin_server() -> None:
    os.sched_setaffinity(0, {SERVER_CPU})


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
