"""A connection of the protocol without a socket, on the loop of the test."""

import asyncio
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from select_service.fastpath.fast_path import FastPath
from select_service.http.bounded_protocol import KEEP_ALIVE_S, BoundedProtocol
from tests.builders.usual import EvenAnswerer
from tests.builders.wire import Wire


class Conversation:
    """Application that answers each request with the path and body, once `may_answer` is set.

    A request for `/early` is answered before the body is read.

    asked: path and body of every received request
    gone: paths of requests with a disconnected client
    protocol: protocol under test; with `is_lean` the fast path, which answers even numbers itself
    """

    is_lean = False

    def __init__(self, wire: Wire | None = None) -> None:
        self.asked: list[tuple[str, bytes]] = []
        self.refusals: list[int] = []
        self.failures: list[str] = []
        self.gone: list[str] = []
        self.scopes: list[dict[str, Any]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.handler = EvenAnswerer(self.may_answer.is_set, self.asked.append)
        self.wire = wire or Wire()
        config = uvicorn.Config(
            self,
            lifespan="off",
            ws="none",
            proxy_headers=False,
            access_log=False,
            log_config=None,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        config.load()
        self.state = ServerState()
        make: Any = FastPath(self.handler) if self.is_lean else BoundedProtocol
        self.protocol = make(config, self.state, {}, asyncio.get_running_loop())
        self.protocol.connection_made(self.wire)

    @property
    def ordinary(self) -> Any:
        """The BoundedProtocol of the connection."""
        return self.protocol._ordinary if self.is_lean else self.protocol

    def count_refused(self, status: int) -> None:
        self.refusals.append(status)

    def report_failure(self, callback: str) -> None:
        self.failures.append(callback)

    def start_shutdown(self) -> None:
        """Do nothing, because no task waits for a shutdown."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        body, more = b"", scope["path"] != "/early"
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone.append(scope["path"])
                return
            body += message["body"]
            more = message["more_body"]
        self.asked.append((scope["path"], body))
        if not self.may_answer.is_set():
            over = asyncio.ensure_future(receive())
            told = asyncio.ensure_future(self.may_answer.wait())
            await asyncio.wait((over, told), return_when=asyncio.FIRST_COMPLETED)
            told.cancel()
            if over.done():
                self.gone.append(scope["path"])
                return
            over.cancel()
        text = scope["path"].encode() + b" " + body
        head = [(b"content-length", b"%d" % len(text))]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": text})

    def send(self, *parts: bytes) -> None:
        for part in parts:
            self.protocol.data_received(part)

    async def settle(self) -> None:
        """Wait until everything that can happen has happened."""
        for _ in range(50):
            await asyncio.sleep(0)

    def answers(self) -> list[tuple[int, bytes]]:
        """Return (status, body) of the written answers."""
        found, rest = [], self.wire.written
        while rest:
            head, rest = rest.split(b"\r\n\r\n", 1)
            size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            found.append((int(head.split()[1]), rest[:size]))
            rest = rest[size:]
        return found
