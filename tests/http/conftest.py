"""A server for the tests of a file, on a separate thread and with a worker."""

import socket
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import uvloop

from select_service.api.application import ApiApplication
from select_service.fastpath.fast_path import FastPath
from select_service.fastpath.ready_connections import ReadyConnections
from select_service.fastpath.service_handler import ServiceHandler
from select_service.http.http_server import make_http_server
from tests.builders import worker_body
from tests.builders.conversation import Conversation
from tests.builders.in_process import Api
from tests.builders.running import Client
from tests.builders.running import request as raw_request
from tests.builders.usual import FixedAnswerer

PROMPT = {"model_name": "m", "token_ids": [1, 2, 3]}
END_S_MAX = 60.0


class Server(NamedTuple):
    """Running server.

    connections: protocol objects of all open connections
    known: answerer of the fast path
    """

    api: Api
    port: int
    connections: set[Any]
    known: FixedAnswerer

    def client(self) -> Client:
        return Client(self.port)

    def is_alive(self) -> bool:
        """Return whether a new client gets an answer to a selection."""
        with self.client() as client:
            client.send(raw_request("POST", "/select", PROMPT))
            return client.answer().status == 200

    def learn(self, asked: bytes) -> None:
        """Let the fast path answer this request as the ordinary path does now."""
        with self.client() as client:
            client.send(asked)
            client.socket.recv(1, socket.MSG_PEEK)
            self.known.answers[asked] = client.socket.recv(65536)


@pytest.fixture(scope="module", params=["ordinary", "lean", "fast"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    known = FixedAnswerer()
    with Api() as api, socket.socket() as listener:
        assert api.post("/workers", worker_body(1)).status == 201
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        is_lean = request.param == "lean"
        front = FastPath(known) if is_lean else None
        if request.param == "fast":
            handler = ServiceHandler(api.service.selector, api.service.metrics)
            front = FastPath(handler, None, ReadyConnections(handler))
        server = make_http_server(ApiApplication(api.service), front)
        thread = threading.Thread(target=uvloop.run, args=(server.serve([listener]),))
        thread.start()
        state = server.server_state
        result = Server(api, listener.getsockname()[1], state.connections, known)
        if is_lean:
            result.learn(raw_request("POST", "/select", PROMPT))
            result.learn(raw_request("GET", "/health"))
        yield result
        server.should_exit = True
        thread.join(END_S_MAX)
        assert not thread.is_alive()


@pytest.fixture(params=[False, True], ids=["ordinary", "lean"])
def _either_protocol(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run conversations with the ordinary protocol alone and with the fast path before it."""
    monkeypatch.setattr(Conversation, "is_lean", request.param)
