"""Services of a paired run as processes: start, measure, call, stop."""

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
# Also started by file name, where the checkout is not on the path.
sys.path.insert(0, str(ROOT))

from scripts.processes.launched_process import ANSWER_S_MAX, LaunchedProcess, free_port, own_command  # noqa: E402

SERVER_CPU, LOAD_CPU = 0, 1
CPUCLOCK_SCHED = 2
IDLE_S_MAX = 30.0  # of a connection; servers close idle ones after 75 s
QUIET_REFERENCE = {"DYN_LOG": "warn"}
"""Log level of the reference, which by default logs a line for every selection."""


class ServiceUnderTest(NamedTuple):
    """Service to measure: name for the tables, command without the port, sources.

    tree: folder of the sources; None for the reference;  variables: environment variables
    id_field: field of /select_and_reserve with the id of a reservation
    """

    name: str
    command: tuple[str, ...]
    tree: Path | None
    variables: Mapping[str, str] = MappingProxyType({})
    id_field: str = "reservation_id"

    @property
    def is_ours(self) -> bool:
        return self.tree is not None

    def with_flags(self, *flags: str) -> "ServiceUnderTest":
        return self._replace(command=(*self.command, *flags))

    def with_variables(self, **variables: str) -> "ServiceUnderTest":
        return self._replace(variables={**self.variables, **variables})


def own_service(name: str = "ours", tree: Path = ROOT) -> ServiceUnderTest:
    """Return this service with the sources in `tree`."""
    return ServiceUnderTest(name, own_command("--host", "127.0.0.1"), tree)


def reference_service(python: str, name: str = "reference") -> ServiceUnderTest:
    return ServiceUnderTest(name, (python, "-m", "dynamo.select_service"), None, QUIET_REFERENCE)


@contextmanager
def unpack_commit(commit: str) -> Iterator[Path]:
    """Yield a folder with the sources at a commit."""
    with tempfile.TemporaryDirectory() as folder:
        command = ("git", "-C", ROOT, "archive", commit, "indexer", "select_service")
        packed = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        subprocess.run(("tar", "-x", "-C", folder), input=packed.stdout, check=True)
        yield Path(folder)


def process_cpu_s(pid: int) -> float:
    """Return user and system time of a process in seconds, including ended threads.

    The clock is that of clock_getcpuclockid(3), which counts nanoseconds of the scheduler instead
    of the ticks of /proc/PID/stat.
    """
    # The number of another process's CPU clock, as glibc's clock_getcpuclockid makes it.
    return time.clock_gettime(~pid << 3 | CPUCLOCK_SCHED)


class RunningService:
    """Process of a contender, on a port of its own and by default on the server's CPU."""

    def __init__(self, contender: ServiceUnderTest, pinned: bool = True) -> None:
        self.name = contender.name
        self.port = free_port()
        command = (*contender.command, "--port", str(self.port))
        # The tree comes first on the path, so that another commit is measured in this environment.
        environment = {**os.environ, "PYTHONPATH": str(contender.tree or ""), **contender.variables}
        cpu = SERVER_CPU if pinned else None
        self._launched = LaunchedProcess(
            command, environment, self.port, folder=contender.tree, cpu=cpu
        )
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

    def call_json(self, method: str, path: str, body: Any = None) -> Any:
        """Return the decoded answer of a request; any status but 2xx is an error."""
        raw = None if body is None else json.dumps(body)
        headers = {} if raw is None else {"content-type": "application/json"}
        # http.client opens a new connection after a close; an idle one may be closed by the server.
        if time.monotonic() - self._called_at > IDLE_S_MAX:
            self._connection.close()
        self._called_at = time.monotonic()
        self._connection.request(method, path, raw, headers)
        response = self._connection.getresponse()
        answer = response.read()
        if response.status // 100 != 2:
            raise RuntimeError(f"{self.name}: {method} {path}: {response.status} {answer!r}")
        return json.loads(answer)

    def register_workers(self, endpoints: Sequence[str], block_size: int) -> None:
        """Register one worker per event endpoint, with ids from 1."""
        for worker_id, endpoint in enumerate(endpoints, start=1):
            self.register_worker(worker_id, block_size, kv_events_endpoint=endpoint)

    def register_worker(self, worker_id: int, block_size: int, **fields: Any) -> None:
        """Register a worker with `fields`, complete enough for all contenders."""
        known = {
            "worker_id": worker_id,
            "endpoint": f"http://worker-{worker_id}:8000",
            "block_size": block_size,
            "max_num_batched_tokens": 8192,
        }
        record = self.call_json("POST", "/workers", {**known, **fields})
        assert record["lifecycle"] == "schedulable", record

    def device_blocks(self, hashes: list[int]) -> dict[int, int]:
        """Return the matched GPU blocks by worker."""
        body = {"block_hashes": hashes, "sequence_hashes": hashes, "isl_tokens": len(hashes)}
        rows = self.call_json("POST", "/overlap_scores", body)["workers"]
        return {row["worker_id"]: row["device_blocks"] for row in rows}

    def cpu_s(self) -> float:
        """Return user and system time of the whole process, in seconds."""
        return process_cpu_s(self.pid)

    def system_s(self) -> float:
        """Return the system time of the whole process, in seconds, by samples of some ms."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[12]) / os.sysconf("SC_CLK_TCK")

    def resident_mb(self) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024


def pin_load() -> None:
    """Keep this process and its children off the server's CPU."""
    os.sched_setaffinity(0, {LOAD_CPU})


@contextmanager
def using_both_cpus() -> Iterator[None]:
    """Let processes without a CPU of their own use the server's CPU and that of the load."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {SERVER_CPU, LOAD_CPU})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
