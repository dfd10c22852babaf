"""Starts a selection service as a process of its own: for tests, golden runs and benchmarks alike.

A process is ready when it answers GET /health, whatever it has logged until then.  What it logs is
kept in a file, so that it never waits for a reader; a test that fails shows it (tests/conftest.py).
Every process that was started is ended: by its `with` block, else when this process ends.
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
"""Enough to compile every kernel on a busy machine, and less than a test may take."""
ANSWER_S_MAX = 60.0
STOP_S_MAX = 60.0
POLL_S = 0.005
SHOWN_CHARS_MAX = 20_000
PORTS = range(12_000, 32_000)
"""Below what the system hands out by itself, so that no outgoing connection takes one meanwhile."""

_next_ports = itertools.cycle(PORTS)
for _ in range(random.SystemRandom().randrange(len(PORTS))):
    next(_next_ports)


def free_port() -> int:
    """A port of the loopback interface that nobody uses; no port is given twice in one round."""
    for port in itertools.islice(_next_ports, len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def own_command(*flags: str, module: str = "select_service") -> tuple[str, ...]:
    """The command of this checkout."""
    return (sys.executable, "-m", module, *flags)


def own_environment(given: Mapping[str, str]) -> dict[str, str]:
    """`given` and what Python needs; none of the caller's own settings of the service.

    A process that crashes leaves the stacks of its threads in its log, and none waits for its
    clients to leave, unless that is what a test is about.
    """
    needed = {"PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1", "SELECT_SERVICE_DRAIN_SECS": "0"}
    return {**plain_environment(), **needed, **given}


def plain_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name.startswith("NUMBA_")}
    return kept | {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}


class Launched:
    """One process and its log, from its start to its end."""

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
        """port: where the command serves HTTP; folder: where it runs; cpu: the only one it uses;
        trust: it is https that it serves
        """
        self.port, self._trust = port, trust
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self.started_at = time.perf_counter()
        self.process = subprocess.Popen(
            command, env=dict(environment), cwd=folder, stdout=self._log, stderr=subprocess.STDOUT
        )
        if cpu is not None:  # before it has a second thread, which would keep the CPUs of now
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
        """Raises AssertionError with the log when it ends instead, or takes START_S_MAX."""
        until = time.monotonic() + START_S_MAX
        while not self._is_healthy(path):
            if self.has_ended or time.monotonic() > until:
                self.end()
                raise AssertionError(f"the service does not start:\n{self.log_tail()}")
            time.sleep(POLL_S)

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, float]:
        """Send a signal.  Exit status and the seconds until then."""
        begin = time.monotonic()
        self.process.send_signal(number)
        return self.process.wait(STOP_S_MAX), time.monotonic() - begin

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Ask it to end if it runs.  Raises TimeoutExpired, after killing it, when it does not."""
        if not self.has_ended:
            self.process.terminate()
        try:
            self.process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def log(self) -> str:
        """Everything written so far, output and error output."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def log_tail(self) -> str:
        return self.log()[-SHOWN_CHARS_MAX:]

    def log_lines(self) -> list[dict[str, Any]]:
        """The complete lines so far of a log in JSON; any other line is the message of a row."""
        return [_log_line(text) for text in self.log().split("\n")[:-1]]

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


_known: list[Launched] = []
"""All that run, and those that have ended since `forget_ended`."""


def known_logs() -> Iterator[tuple[str, str]]:
    """(title, end of the log) of every process that runs or has just ended."""
    for each in _known:
        status = "running" if each.process.returncode is None else each.process.returncode
        yield f"log of process {each.process.pid} ({status})", each.log_tail()


def forget_ended() -> None:
    """What ended before is of no interest to the next test."""
    _known[:] = [each for each in _known if not each.has_ended]


@atexit.register
def _kill_all() -> None:
    for each in _known:
        if not each.has_ended:
            each.kill()
