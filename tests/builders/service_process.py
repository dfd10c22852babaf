"""A plain HTTP client that changes nothing, and a real service process on a free port."""

import contextlib
import http.client
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.builders.launched_process import (
    ANSWER_S_MAX,
    LaunchedProcess,
    free_port,
    own_command,
    own_environment,
)
from tests.builders.polling import eventually
from tests.builders.running import run_command


class Answer(NamedTuple):
    """Answer of the service.

    body: decoded JSON, or text if the body is not JSON
    """

    status: int
    body: Any
    headers: Mapping[str, str]


class ServiceClient:
    """Client of a service on a port of the loopback interface, with one connection."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S_MAX)

    def close(self) -> None:
        self._connection.close()

    def get(self, path: str) -> Answer:
        return self.call("GET", path, None, {})

    def post(self, path: str, body: Any) -> Answer:
        raw = json.dumps(body).encode()
        return self.call("POST", path, raw, {"content-type": "application/json"})

    def call(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        """Send a request with an unchanged path; reconnect if the connection has ended."""
        try:
            return self._call(method, path, body, headers)
        except (http.client.HTTPException, ConnectionError):
            self._connection.close()
            return self._call(method, path, body, headers)

    def call_alone(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        """Send a request on a new connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S_MAX)
        with contextlib.closing(connection):
            return _exchange(connection, method, path, body, headers)

    def _call(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        return _exchange(self._connection, method, path, body, headers)

    def waiting_requests(self) -> int:
        """Return the number of requests that wait in the queues."""
        return sum(partition["pending_count"] for partition in self.get("/loads").body)

    def wait_until_read(self, port: int, seq: int) -> None:
        """Wait until the listener of 127.0.0.1:`port` has read the message `seq`."""
        eventually(lambda: self._event_status(port).get("last_sequence") == seq)

    def wait_until_certain(self, port: int, seq: int) -> None:
        """Wait until the listener has read `seq` and no batch may be missing any more.

        After a gap the listener counts the last batch before the doubt ends.
        """
        self.wait_until_read(port, seq)
        eventually(lambda: self._event_status(port).get("certainty") != "unknown")

    def _event_status(self, port: int) -> dict[str, Any]:
        for record in self.get("/workers").body:
            first = str(record["data_parallel_start_rank"] or 0)
            endpoints = record.get("kv_events_endpoints") or {first: record["kv_events_endpoint"]}
            for dp_rank, endpoint in endpoints.items():
                status = record.get("kv_events", {}).get(dp_rank)
                if status is not None and endpoint.endswith(f":{port}"):
                    return dict(status)
        return {}


class ServiceProcess(ServiceClient):
    """Process of `python -m select_service` with only the given environment variables."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__(free_port())
        place = ("--host", "127.0.0.1", "--port", str(self.port))
        command = own_command(*place, "--policy", "reference")
        self._launched = LaunchedProcess(command, own_environment(environment), self.port)

    def __enter__(self) -> Self:
        self._launched.wait_until_healthy()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._launched.end()


def run_to_end(
    environment: Mapping[str, str], flags: tuple[str, ...], folder: Path
) -> tuple[int, str]:
    """Return exit status and error output of a service that is expected not to start."""
    command = own_command("--host", "127.0.0.1", "--port", str(free_port()), *flags)
    status, _, errors = run_command(command, environment, folder)
    return status, errors


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
