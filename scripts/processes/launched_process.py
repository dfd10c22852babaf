"""Launcher of a selection service as a process, for tests, golden runs and benchmarks.

A process is ready after an answer to GET /health, independent of its log. The log is a file, so
that writes never wait for a reader; a failed test shows the log (tests/conftest.py). Every started
process is ended: by its `with` block, else at the end of this process.
"""

import atexit
import contextlib
import http.client
import itertools
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
START_S_MAX = 280.0
"""Time limit of a start, in seconds: enough to compile all kernels, less than a test's limit."""
ANSWER_S_MAX = 60.0
STOP_S_MAX = 60.0
POLL_S = 0.005
SHOWN_CHARS_MAX = 20_000
PORTS = range(12_000, 32_000)
"""Ports below the range of outgoing connections, so that none of them takes one meanwhile."""

_next_ports = itertools.cycle(PORTS)
# A random start, so that parallel test processes rarely try the same ports.
for _ in range(random.SystemRandom().randrange(len(PORTS))):
    next(_next_ports)


def free_port() -> int:
    """Return a free loopback port; no port is returned twice in one round."""
    for port in itertools.islice(_next_ports, len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def own_command(*flags: str, module: str = "select_service") -> tuple[str, ...]:
    """Return the command of this checkout."""
    return (sys.executable, "-m", module, *flags)


def own_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return `given` and the variables that Python needs, without settings of the caller's service.

    A crash writes the stacks of all threads to the log. Draining is off by default.
    """
    needed = {"PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1", "SELECT_SERVICE_DRAIN_SECS": "0"}
    return {**plain_environment(), **needed, **given}


def plain_environment() -> dict[str, str]:
    # The kernel cache of the caller is used, else every start compiles.
    kept = {name: value for name, value in os.environ.items() if name.startswith("NUMBA_")}
    return kept | {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}


class LaunchedProcess:
    """A process and its log, from start to end."""

    def __init__(
        self,
        command: Sequence[str | Path],
        environment: Mapping[str, str],
        port: int,
        *,
        folder: Path | None = None,
        cpu: int | None = None,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        """port: HTTP port of the command;  folder: working directory;  cpu: the only CPU of the
        process
        trust: CA of an https service; None means http
        """
        self.port, self._trust = port, trust
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self.started_at = time.perf_counter()
        self.process = subprocess.Popen(
            command, env=dict(environment), cwd=folder, stdout=self._log, stderr=subprocess.STDOUT
        )
        if cpu is not None:  # before a second thread exists, which would keep the current CPUs
            os.sched_setaffinity(self.process.pid, {cpu})
        _known.append(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.end()

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def wait_until_healthy(self, path: str = "/health") -> None:
        """Wait for health.  Raises AssertionError with the log after an end or START_S_MAX."""
        until = time.monotonic() + START_S_MAX
        while not self._is_healthy(path):
            if self.has_ended or time.monotonic() > until:
                self.end()
                raise AssertionError(f"the service does not start:\n{self.log_tail()}")
            time.sleep(POLL_S)

    def stop_with_signal(self, number: int = signal.SIGTERM) -> tuple[int, float]:
        """Send a signal; returns the exit status and the seconds until then."""
        begin = time.monotonic()
        self.process.send_signal(number)
        return self.process.wait(STOP_S_MAX), time.monotonic() - begin

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Terminate the process if running.  Raises TimeoutExpired after a forced kill."""
        if not self.has_ended:
            self.process.terminate()
        try:
            self.process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def read_log(self) -> str:
        """Return the complete output and error output so far."""
        size = os.fstat(self._log.fileno()).st_size
        # pread leaves the position alone, which the child shares and writes at.
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def log_tail(self) -> str:
        return self.read_log()[-SHOWN_CHARS_MAX:]

    def log_lines(self) -> list[dict[str, Any]]:
        """Return the complete lines of a JSON log; any other line becomes the message of a row."""
        # The part behind the last newline may be half written.
        return [_log_line(text) for text in self.read_log().split("\n")[:-1]]

    def _is_healthy(self, path: str) -> bool:
        place: dict[str, Any] = {"host": "127.0.0.1", "port": self.port, "timeout": ANSWER_S_MAX}
        connection = (
            http.client.HTTPConnection(**place)
            if self._trust is None
            else http.client.HTTPSConnection(**place, context=self._trust)
        )
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def _log_line(text: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        line = json.loads(text)
        if isinstance(line, dict):
            return line
    return {"message": text, "level": "none"}


_known: list[LaunchedProcess] = []
"""Running processes, and those that ended since `forget_ended`."""


def known_logs() -> Iterator[tuple[str, str]]:
    """Yield (title, end of the log) of every process that runs or has just ended."""
    for each in _known:
        status = "running" if each.process.returncode is None else each.process.returncode
        yield f"log of process {each.process.pid} ({status})", each.log_tail()


def forget_ended() -> None:
    """Forget ended processes before the next test."""
    _known[:] = [each for each in _known if not each.has_ended]


@atexit.register
def _kill_all() -> None:
    for each in _known:
        if not each.has_ended:
            each.kill()
