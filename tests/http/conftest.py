"""A server for the tests of a file, on a thread of its own and with one worker."""

import socket
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import uvloop

from select_service.api.application import Application
from select_service.http.server import server_of
from tests.api.in_process import Api
from tests.builders import worker_body
from tests.process.running import Client, request

PROMPT = {"model_name": "m", "token_ids": [1, 2, 3]}
END_S_MAX = 60.0


class Server(NamedTuple):
    """`connections`: the protocol objects of all that are open."""

    api: Api
    port: int
    connections: set[Any]

    def client(self) -> Client:
        return Client(self.port)

    def is_alive(self) -> bool:
        """Does a new client get what it asks for?"""
        with self.client() as client:
            client.send(request("POST", "/select", PROMPT))
            return client.answer().status == 200


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Api() as api, socket.socket() as listener:
        assert api.post("/workers", worker_body(1)).status == 201
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = server_of(Application(api.service))
        thread = threading.Thread(target=uvloop.run, args=(server.serve([listener]),))
        thread.start()
        yield Server(api, listener.getsockname()[1], server.server_state.connections)
        server.should_exit = True
        thread.join(END_S_MAX)
        assert not thread.is_alive()
