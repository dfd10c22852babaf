"""Tests of addresses that two processes share."""

import socket
import sys

import pytest

from select_service.__main__ import main
from select_service.config.settings_loader import UnusableSetting
from select_service.server.listening_socket import (
    bind_listener,
    redirect_new_connections,
    start_listening,
)

CONNECTIONS = 64

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="addresses are shared on Linux")


def two_listeners() -> tuple[socket.socket, socket.socket]:
    old = bind_listener("127.0.0.1", 0, shared=True)
    start_listening(old)
    new = bind_listener("127.0.0.1", old.getsockname()[1], shared=True)
    start_listening(new)
    return old, new


def accepted(listener: socket.socket) -> int:
    listener.setblocking(False)
    n = 0
    while True:
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return n
        n += 1


def connect(listener: socket.socket) -> None:
    for _ in range(CONNECTIONS):
        socket.create_connection(listener.getsockname()).close()


def test_a_leaving_process_gets_no_new_connections() -> None:
    old, new = two_listeners()
    with old, new:
        connect(old)
        assert min(shares := (accepted(old), accepted(new))) > 0
        assert sum(shares) == CONNECTIONS
        redirect_new_connections(old)
        connect(old)
        assert (accepted(old), accepted(new)) == (0, CONNECTIONS)


def test_the_successor_can_leave_as_well() -> None:
    first, second = two_listeners()
    redirect_new_connections(first)
    first.close()
    third = bind_listener("127.0.0.1", second.getsockname()[1], shared=True)
    with second, third:
        start_listening(third)
        redirect_new_connections(second)
        connect(second)
        assert (accepted(second), accepted(third)) == (0, CONNECTIONS)


def test_a_process_without_a_successor_still_gets_connections() -> None:
    with bind_listener("127.0.0.1", 0, shared=True) as alone:
        start_listening(alone)
        redirect_new_connections(alone)
        connect(alone)
        assert accepted(alone) == CONNECTIONS


def test_an_address_is_shared_only_between_shared_listeners() -> None:
    with bind_listener("127.0.0.1", 0, shared=True) as first:
        start_listening(first)
        with pytest.raises(UnusableSetting, match="cannot listen on"):
            bind_listener("127.0.0.1", first.getsockname()[1])


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ("no such host", "`no such host` is not a name or address of this machine"),
        ("256.0.0.1", "is not a name or address of this machine"),
        ("203.0.113.7", "not an address of this machine: give one of its own"),
    ],
)
def test_an_unusable_address_is_reported_with_advice(host: str, told: str) -> None:
    with pytest.raises(UnusableSetting, match=f"{told}$") as error:
        bind_listener(host, 0)
    assert "Errno" not in str(error.value)


def test_a_port_in_use_ends_the_start_with_advice(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["--port", str(port)]) == 2
        told = f"cannot listen on 127.0.0.1:{port}: the port is in use: stop the other process, or"
        said = capsys.readouterr().err
        assert said.startswith(f"select-service: error: {told}")
        assert "--port 0" in said
        assert "--reuse-port = share the port with" in said
        assert main(["--port", str(port), "--reuse-port"]) == 2
        said = capsys.readouterr().err
        assert "--reuse-port works only if the first process was started with it" in said
        assert main(["--port", "0", "--replica-sync-port", str(port)]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"select-service: error: --replica-sync-port: {told}")
        assert "--reuse-port" not in said
