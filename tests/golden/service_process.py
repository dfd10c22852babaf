"""A real service process on a port of its own, and a plain HTTP client that changes nothing."""

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

ROOT = Path(__file__).parents[2]
START_S_MAX = 240.0
"""Enough to compile every kernel on a busy machine."""
ANSWER_S_MAX = 30.0
SEEN_S_MAX = 20.0
STOP_S_MAX = 10.0


class Answer(NamedTuple):
    """`body` is decoded JSON, or the text when it is none."""

    status: int
    body: Any
    headers: Mapping[str, str]


class ServiceProcess:
    """`python -m select_service` with nothing but the given variables in its environment."""

    def __init__(
        self,
        environment: Mapping[str, str],
        flags: tuple[str, ...] = (),
        folder: Path | None = None,
    ) -> None:
        """folder: where it runs, for relative paths in its settings."""
        self.port = free_port()
        self._process = subprocess.Popen(
            _command("--host", "127.0.0.1", "--port", str(self.port), *flags),
            env=_environment(environment),
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S_MAX)

    def __enter__(self) -> Self:
        until = time.monotonic() + START_S_MAX
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise AssertionError("the service does not start")
            time.sleep(0.05)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()

    def _answers(self) -> bool:
        try:
            return self.get("/health").status == 200
        except OSError:
            return False

    def stop(self) -> None:
        self._connection.close()
        self._process.terminate()
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise

    def get(self, path: str) -> Answer:
        return self.call("GET", path, None, {})

    def post(self, path: str, body: Any) -> Answer:
        raw = json.dumps(body).encode()
        return self.call("POST", path, raw, {"content-type": "application/json"})

    def call(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        """One request; the path goes out as it is given.  A connection that ended is renewed."""
        try:
            return self._call(method, path, body, headers)
        except (http.client.HTTPException, ConnectionError):
            self._connection.close()
            return self._call(method, path, body, headers)

    def call_alone(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S_MAX)
        with contextlib.closing(connection):
            return _exchange(connection, method, path, body, headers)

    def _call(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        return _exchange(self._connection, method, path, body, headers)

    def waiting_requests(self) -> int:
        """How many requests wait in its queues."""
        return sum(partition["pending_count"] for partition in self.get("/loads").body)

    def wait_until_read(self, port: int, seq: int) -> None:
        """Until the listener of 127.0.0.1:`port` has taken in the message `seq`."""
        until = time.monotonic() + SEEN_S_MAX
        while self._last_sequence(port) != seq:
            assert time.monotonic() < until, f"message {seq} of port {port} was not read"
            time.sleep(0.005)

    def _last_sequence(self, port: int) -> int | None:
        for record in self.get("/workers").body:
            first = str(record["data_parallel_start_rank"] or 0)
            endpoints = record.get("kv_events_endpoints") or {first: record["kv_events_endpoint"]}
            for dp_rank, endpoint in endpoints.items():
                status = record.get("kv_events", {}).get(dp_rank)
                if status is not None and endpoint.endswith(f":{port}"):
                    return status["last_sequence"]
        return None


def run_to_end(
    environment: Mapping[str, str], flags: tuple[str, ...], folder: Path
) -> tuple[int, str]:
    """Exit status and error output of a service that is expected not to start."""
    done = subprocess.run(
        _command("--host", "127.0.0.1", "--port", str(free_port()), *flags),
        env=_environment(environment),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=START_S_MAX,
        check=False,
    )
    return done.returncode, done.stderr


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "select_service", *arguments]


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    inherited |= {name: v for name, v in os.environ.items() if name.startswith("NUMBA_")}
    return {**inherited, "PYTHONPATH": str(ROOT), **given}


def _exchange(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | None,
    headers: Mapping[str, str],
) -> Answer:
    connection.request(method, path, body, dict(headers))
    response = connection.getresponse()
    raw = response.read()
    try:
        decoded = json.loads(raw)
    except ValueError:
        decoded = raw.decode("utf-8", "replace")
    return Answer(response.status, decoded, dict(response.headers))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
