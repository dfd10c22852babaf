"""Tests of how long a real service keeps an idle connection, on every path."""

import contextlib
import time

import pytest

from select_service.http.bounded_protocol import WATCH_EVERY_S
from tests.builders.running import Running, request

pytestmark = pytest.mark.process

PATHS = ((), ("--no-fast-path",))
SHORT_S = 1


def test_an_idle_connection_is_kept_for_the_configured_time() -> None:
    with contextlib.ExitStack() as stack:
        services = [
            stack.enter_context(Running("--keep-alive-secs", str(SHORT_S), *path)) for path in PATHS
        ]
        patient = stack.enter_context(Running())
        clients = [stack.enter_context(each.client()) for each in (*services, patient)]
        for client in clients:
            client.send(request("GET", "/health"))
            assert client.answer().status == 200
        for client in clients[:-1]:
            assert client.ended()
        time.sleep(WATCH_EVERY_S)
        clients[-1].send(request("GET", "/health"))
        assert clients[-1].answer().status == 200
        config = patient.call("GET", "/config").body["settings"]
        assert config["keep_alive_s"]["value"] == 3900


@pytest.mark.parametrize("path", PATHS)
def test_the_system_looks_for_clients_that_have_vanished(path: tuple[str, ...]) -> None:
    """Check in the kernel's table that the connection has a keep-alive timer."""
    with Running(*path) as service, service.client() as client:
        client.send(request("GET", "/health"))
        assert client.answer().status == 200
        port = client.socket.getsockname()[1]
        with open("/proc/net/tcp", encoding="ascii") as table:
            rows = [line.split() for line in table]
        ours = [row for row in rows if row[1].endswith(f":{service.port:04X}")]
        (row,) = [row for row in ours if row[2].endswith(f":{port:04X}")]
        assert row[5].split(":")[0] == "02"  # 02: the keep-alive timer
