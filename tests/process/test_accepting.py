"""Tests of how soon the event loop accepts many clients that connect at once."""

import asyncio
import socket
from collections.abc import Iterator

import pytest
import uvloop

from select_service.http.http_server import LISTENER_DUPLICATES, duplicate_listener
from select_service.server.listening_socket import LISTEN_BACKLOG

pytestmark = pytest.mark.process

CLIENTS = 64
TURNS_MAX = 1000


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen(LISTEN_BACKLOG)
        yield bound


@pytest.fixture
def waiting_clients(listener: socket.socket) -> Iterator[int]:
    """Yield the number of connected clients that the server has not accepted yet."""
    clients = [socket.create_connection(listener.getsockname()) for _ in range(CLIENTS)]
    yield len(clients)
    for client in clients:
        client.close()


async def turns_until_all_are_in(listeners: list[socket.socket], clients: int) -> int:
    """Return how many turns of the event loop accept them all."""
    loop = asyncio.get_running_loop()
    accepted: list[asyncio.BaseTransport] = []

    class Guest(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.append(transport)

    servers = [await loop.create_server(Guest, sock=each) for each in listeners]
    turns = 0
    while len(accepted) < clients and turns < TURNS_MAX:
        await asyncio.sleep(0)
        turns += 1
    for transport in accepted:
        transport.abort()
    for server in servers:
        server.close()
    return turns


def test_clients_that_come_at_once_are_taken_in_within_a_few_turns(listener, waiting_clients):
    turns = uvloop.run(turns_until_all_are_in(duplicate_listener(listener), waiting_clients))
    assert turns <= 2 * CLIENTS // LISTENER_DUPLICATES + 2
