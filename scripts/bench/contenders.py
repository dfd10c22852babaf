"""The services of a paired run as processes: start, measure, talk, stop."""

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple, Self

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.process.launched import ANSWER_S_MAX, Launched, free_port, own_command  # noqa: E402

SERVER_CPU, LOAD_CPU = 0, 1
CPUCLOCK_SCHED = 2
IDLE_S_MAX = 30.0  # of a connection; servers close idle ones after 75 s
QUIET_REFERENCE = {"DYN_LOG": "warn"}
"""Left alone, the reference logs a line for every selection, and this service does not."""


class Contender(NamedTuple):
    """Something to measure: a name for the tables, the command without its port, its sources.

    tree: where its sources are, None with the reference;  variables: of its environment;
    id_field: how /select_and_reserve calls the id of a reservation.
    """

    name: str
    command: tuple[str, ...]
    tree: Path | None
    variables: Mapping[str, str] = MappingProxyType({})
    id_field: str = "reservation_id"

    @property
    def is_ours(self) -> bool:
        return self.tree is not None

    def with_flags(self, *flags: str) -> "Contender":
        return self._replace(command=(*self.command, *flags))

    def with_variables(self, **variables: str) -> "Contender":
        return self._replace(variables={**self.variables, **variables})


def ours(name: str = "ours", tree: Path = ROOT) -> Contender:
    """The service whose sources are in `tree`."""
    return Contender(name, own_command("--host", "127.0.0.1"), tree)


def reference(python: str, name: str = "reference") -> Contender:
    return Contender(name, (python, "-m", "dynamo.select_service"), None, QUIET_REFERENCE)


@contextmanager
def unpacked(commit: str) -> Iterator[Path]:
    """The sources as they were at a commit."""
    with tempfile.TemporaryDirectory() as folder:
        command = ("git", "-C", ROOT, "archive", commit, "indexer", "select_service")
        packed = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        subprocess.run(("tar", "-x", "-C", folder), input=packed.stdout, check=True)
        yield Path(folder)


def process_cpu_s(pid: int) -> float:
    """User and system time of a process so far, threads that have ended included.

    Its own clock, as clock_getcpuclockid(3) names it: what the scheduler notes of each thread, to
    the nanosecond, and not the ticks of /proc/PID/stat.
    """
    return time.clock_gettime(~pid << 3 | CPUCLOCK_SCHED)


class Running:
    """One process of a contender, on a port of its own and, unless told otherwise, on its CPU."""

    def __init__(self, contender: Contender, pinned: bool = True) -> None:
        self.name = contender.name
        self.port = free_port()
        command = (*contender.command, "--port", str(self.port))
        environment = {**os.environ, "PYTHONPATH": str(contender.tree or ""), **contender.variables}
        cpu = SERVER_CPU if pinned else None
        self._launched = Launched(command, environment, self.port, folder=contender.tree, cpu=cpu)
        self.started_at = self._launched.started_at
        self.pid = self._launched.process.pid
        self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S_MAX)
        self._called_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        self._connection.close()
        self._launched.end()

    def wait_until_healthy(self) -> None:
        self._launched.wait_until_healthy()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The decoded answer of one request; anything but 2xx is an error."""
        raw = None if body is None else json.dumps(body)
        headers = {} if raw is None else {"content-type": "application/json"}
        if time.monotonic() - self._called_at > IDLE_S_MAX:
            self._connection.close()
        self._called_at = time.monotonic()
        self._connection.request(method, path, raw, headers)
        response = self._connection.getresponse()
        answer = response.read()
        if response.status // 100 != 2:
            raise RuntimeError(f"{self.name}: {method} {path}: {response.status} {answer!r}")
        return json.loads(answer)

    def register(self, endpoints: Sequence[str], block_size: int) -> None:
        """One worker per event endpoint, ids from 1 on."""
        for worker_id, endpoint in enumerate(endpoints, start=1):
            self.register_worker(worker_id, block_size, kv_events_endpoint=endpoint)

    def register_worker(self, worker_id: int, block_size: int, **fields: Any) -> None:
        """With `fields`, complete enough for all contenders."""
        known = {
            "worker_id": worker_id,
            "endpoint": f"http://worker-{worker_id}:8000",
            "block_size": block_size,
            "max_num_batched_tokens": 8192,
        }
        record = self.call("POST", "/workers", {**known, **fields})
        assert record["lifecycle"] == "schedulable", record

    def device_blocks(self, hashes: list[int]) -> dict[int, int]:
        """Matched GPU blocks by worker."""
        body = {"block_hashes": hashes, "sequence_hashes": hashes, "isl_tokens": len(hashes)}
        rows = self.call("POST", "/overlap_scores", body)["workers"]
        return {row["worker_id"]: row["device_blocks"] for row in rows}

    def cpu_s(self) -> float:
        """User and system time of the whole process so far."""
        return process_cpu_s(self.pid)

    def starved_s(self) -> float:
        """How long its main thread was ready to run so far, but had no CPU: what others took."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[1]) / 1e9

    def resident_mb(self) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024


def pin_load() -> None:
    """Keep this process, and what it starts, off the server's CPU."""
    os.sched_setaffinity(0, {LOAD_CPU})


@contextmanager
def both_cpus() -> Iterator[None]:
    """What is started meanwhile without a CPU of its own has the server's and that of the load."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {SERVER_CPU, LOAD_CPU})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
