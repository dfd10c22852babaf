"""Tests of connections that a kernel serves until the transport takes over in time."""

import select
import socket
import time
from typing import Any

import pytest

from select_service.fastpath import ready_layout
from select_service.fastpath.fastpath_protocol import FastPathProtocol
from tests.builders.running import Client
from tests.builders.running import request as raw_request
from tests.http.conftest import PROMPT, Server

SELECT = raw_request("POST", "/select", PROMPT)
pytestmark = pytest.mark.parametrize("server", ["fast"], indirect=True)
WAIT_S_MAX = 10.0


def served(server: Server, client: Client) -> Any:
    """Return the connection of a client at the server."""
    port = client.socket.getsockname()[1]
    peers = {
        each._transport.get_extra_info("peername")[1]: each for each in list(server.connections)
    }
    return peers[port]


def wait_for(condition: Any) -> None:
    until = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def watched_client(server: Server) -> tuple[Client, Any]:
    """Return a client with a watched connection, and the connection."""
    client = server.client()
    client.send(SELECT)
    assert client.answer().status == 200
    connection = served(server, client)
    wait_for(lambda: connection._watched_fd > 0)
    return client, connection


def test_a_watched_connection_answers_again_and_again(server: Server) -> None:
    client, connection = watched_client(server)
    with client:
        connection._quiet_checks = 1
        for _ in range(3):
            client.send(SELECT)
            assert client.answer().status == 200
            assert connection._watched_fd > 0
        # The check for timeouts learns of answers that no Python code has seen.
        wait_for(lambda: connection._was_active() or connection._quiet_checks == 0)
        assert not connection._transport.is_reading()


def test_many_ready_connections_get_their_own_answers(server: Server) -> None:
    clients = [watched_client(server)[0] for _ in range(40)]
    for turn in range(3):
        for number, client in enumerate(clients):
            name = f"{turn}-{number}"
            body = {**PROMPT, "selection_id": name}
            client.send(raw_request("POST", "/select", body))
        for number, client in enumerate(clients):
            answer = client.answer()
            assert answer.status == 200
            assert answer.body["selection_id"] == f"{turn}-{number}"
    for client in clients:
        client.socket.close()


def test_parts_of_a_request_and_several_at_once_are_answered(server: Server) -> None:
    client, connection = watched_client(server)
    with client:
        for cut in (1, 20, len(SELECT) - 1):
            client.send(SELECT[:cut])
            wait_for(lambda: connection._watched_fd < 0)
            client.send(SELECT[cut:])
            assert client.answer().status == 200
            client.send(SELECT)
            assert client.answer().status == 200
        client.send(SELECT + SELECT + SELECT[:30])
        client.send(SELECT[30:])
        assert [client.answer().status for _ in range(3)] == [200] * 3


def test_requests_that_the_kernel_declines_go_to_the_ordinary_path(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, connection = watched_client(server)
    # The next usual request begins the watch again, not the check for timeouts.
    monkeypatch.setattr(FastPathProtocol, "check_timeouts", lambda _connection: None)
    with client:
        client.send(raw_request("GET", "/health"))
        assert client.answer().status == 200
        assert connection._watched_fd < 0
        client.send(SELECT)
        assert client.answer().status == 200
        wait_for(lambda: connection._watched_fd > 0)
        client.send(raw_request("POST", "/select", {"model_name": "m"}))
        assert client.answer().status in (400, 422)


def test_the_end_of_the_input_ends_the_connection(server: Server) -> None:
    client, connection = watched_client(server)
    client.socket.shutdown(socket.SHUT_WR)
    assert client.socket.recv(1) == b""
    client.socket.close()
    wait_for(lambda: connection not in server.connections)
    reset, connection = watched_client(server)
    reset.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    reset.socket.close()
    wait_for(lambda: connection not in server.connections)
    assert server.is_alive()


def test_a_client_that_reads_nothing_is_left_to_its_transport(server: Server) -> None:
    client, connection = watched_client(server)
    with client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        client.socket.setblocking(False)
        sent = 0
        while connection._watched_fd > 0:
            try:
                sent += client.socket.send(SELECT)
            except BlockingIOError:
                time.sleep(0.005)
        client.socket.setblocking(True)
        assert server.is_alive()


def wait_until_received(connections: list[Any]) -> None:
    for connection in connections:
        assert select.select([connection._watched_fd], [], [], WAIT_S_MAX)[0]


def test_a_turn_serves_requests_that_arrive_during_the_turn(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, connection = watched_client(server)
    other, other_connection = watched_client(server)
    ready, calls = connection.ready, []
    serve_ready, watched = ready._serve_ready, ready._watched

    def send_meanwhile(header: Any, state: Any, begins: bool) -> int:
        status: int = serve_ready(header, state, begins)
        if not calls:
            assert status == ready_layout.NEEDS_PYTHON
            other_connection._was_active()
            other.send(SELECT)
            wait_until_received([other_connection])
            # A slow machine must not end the turn.
            header[ready_layout.UNTIL_NS] += int(WAIT_S_MAX * 1e9)
        calls.append((begins, int(watched[other_connection._watched_fd])))
        return status

    with client, other:
        monkeypatch.setattr(ready, "_serve_ready", send_meanwhile)
        client.send(raw_request("GET", "/health"))
        assert other.answer().status == client.answer().status == 200
        assert calls[:2] == [
            (True, ready_layout.WATCHED_QUIET),
            (False, ready_layout.WATCHED_ACTIVE),
        ]


def test_work_in_python_counts_as_time_of_the_turn(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, connection = watched_client(server)
    other, other_connection = watched_client(server)
    ready, calls = connection.ready, []
    serve_ready, watched = ready._serve_ready, ready._watched

    def send_too_late(header: Any, state: Any, begins: bool) -> int:
        status: int = serve_ready(header, state, begins)
        if not calls:
            assert status == ready_layout.NEEDS_PYTHON
            other_connection._was_active()
            other.send(SELECT)
            wait_until_received([other_connection])
            header[ready_layout.UNTIL_NS] = time.monotonic_ns() - 1
        calls.append((begins, int(watched[other_connection._watched_fd])))
        return status

    with client, other:
        monkeypatch.setattr(ready, "_serve_ready", send_too_late)
        client.send(raw_request("GET", "/health"))
        assert other.answer().status == client.answer().status == 200
        assert calls[:3] == [
            (True, ready_layout.WATCHED_QUIET),
            (False, ready_layout.WATCHED_QUIET),
            (True, ready_layout.WATCHED_ACTIVE),
        ]


def test_a_turn_takes_a_bounded_number_of_events(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients, connections = zip(
        *(watched_client(server) for _ in range(ready_layout.EVENTS_MAX + 6)), strict=True
    )
    ready, n_active = connections[0].ready, []
    serve_ready, watched = ready._serve_ready, ready._watched

    def send_all_at_once(header: Any, state: Any, begins: bool) -> int:
        if not n_active:
            for connection in connections:
                connection._was_active()
            for client in clients[1:]:
                client.send(SELECT)
            wait_until_received(connections)
        status: int = serve_ready(header, state, begins)
        n_active.append(int((watched == ready_layout.WATCHED_ACTIVE).sum()))
        return status

    monkeypatch.setattr(ready, "_serve_ready", send_all_at_once)
    clients[0].send(SELECT)
    assert [client.answer().status for client in clients] == [200] * len(clients)
    # Fewer where the time of a turn is over first.
    assert 0 < n_active[0] <= ready_layout.EVENTS_MAX
    for client in clients:
        client.socket.close()


def test_a_bug_ends_only_its_connection(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    client, connection = watched_client(server)
    other, _ = watched_client(server)
    ready = connection.ready
    serve_ready, failed_at = ready._serve_ready, []

    def fail_once(header: Any, state: Any, begins: bool) -> int:
        status: int = serve_ready(header, state, begins)
        if not failed_at and header[ready_layout.SOCKET] == connection._watched_fd:
            failed_at.append(begins)
            raise AssertionError("a bug")
        return status

    with client, other:
        monkeypatch.setattr(ready, "_serve_ready", fail_once)
        client.send(SELECT)
        wait_for(lambda: connection not in server.connections)
        assert failed_at
        other.send(SELECT)
        assert other.answer().status == 200
        assert server.is_alive()
