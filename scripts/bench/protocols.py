#!/usr/bin/env python3
"""What a connection costs: CPU of the server per request whose answer is always the same.

    python scripts/bench/protocols.py [--repeats N] [--connections N ...]

    bare      a protocol of three lines on uvloop: what the event loop and the kernel take
    lean      select_service.fast.protocol before an answerer that does nothing
    asyncio   the same on the event loop of the standard library
    ordinary  select_service.http.protocol before an ASGI application that reads and answers

The server is kept on one CPU, the client on another; cells alternate, tables give minimum and
median.  Needs Linux.
"""

import argparse
import asyncio
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.bench.contenders import pin_load
from scripts.bench.http_load import hammer
from select_service.fast.protocol import Lean
from select_service.http.head import Headers
from select_service.http.server import Front, server_of
from tests.process.running import request

KINDS = ("bare", "lean", "asyncio", "ordinary")
SECONDS = 2.0
SERVER_CPU = 0
BODY = b'{"status":"ok"}'
ANSWER = (
    b"HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(BODY), BODY)
)
PROMPT = b'{"model_name":"m","token_ids":[1,2,3,4,5,6,7,8]}'


class Fixed:
    """Whatever is asked, this is the answer."""

    end = 0
    is_select = False

    def say(self, headers: Headers) -> None:
        """The date stands still."""

    def answer(self, data: bytes, at: int, file: int = -1) -> bytes:
        self.end = len(data)
        return ANSWER


class Bare(asyncio.Protocol):
    """Nothing but what answers."""

    def connection_made(self, transport: Any) -> None:
        self.write = transport.write

    def data_received(self, data: bytes) -> None:
        self.write(ANSWER)


class Application:
    """Reads a body and answers."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": BODY})

    def refused(self, status: int) -> None:
        """Not counted."""

    def failed(self, callback: str) -> None:
        """A bug: seen by what hammers."""

    def draining(self) -> None:
        """Nobody is told."""

    def ending(self) -> None:
        """Nobody waits."""


async def serve(kind: str, listener: socket.socket) -> None:
    if kind == "bare":
        bare = await asyncio.get_running_loop().create_server(Bare, sock=listener)
        await bare.serve_forever()
    front: Front | None = None if kind == "ordinary" else Lean(Fixed())
    await server_of(Application(), front).serve([listener])


@contextmanager
def served(kind: str) -> Iterator[tuple[int, int]]:
    """Process id and port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        number = listener.fileno()
        command = (sys.executable, __file__, "--serve", kind, str(number))
        process = subprocess.Popen(command, pass_fds=(number,))
        port = listener.getsockname()[1]
    try:
        yield process.pid, port
    finally:
        process.kill()
        process.wait()


def wait_for(port: int) -> None:
    """Until it answers."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(request("POST", "/select", PROMPT))
        assert client.recv(4096)


def cpu_us(pid: int) -> float:
    """CPU of its main thread so far."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e3


def cost(pid: int, port: int, connections: int) -> float:
    """Microseconds of CPU per request."""
    before = cpu_us(pid)
    result = hammer(port, [PROMPT], connections, SECONDS)
    assert not result.errors
    return (cpu_us(pid) - before) / result.requests


def measured(connections: int, repeats: int) -> None:
    costs: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(repeats):
        for kind in KINDS:
            with served(kind) as (pid, port):
                wait_for(port)
                costs[kind].append(cost(pid, port, connections))
    cells = [f"{min(each):.1f} ({statistics.median(each):.1f})" for each in costs.values()]
    print(f"| {connections} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--serve", nargs=2, metavar=("KIND", "DESCRIPTOR"), help="for itself")
    given = parser.parse_args()
    if given.serve:
        kind, number = given.serve
        os.sched_setaffinity(0, {SERVER_CPU})
        run = asyncio.run if kind == "asyncio" else uvloop.run
        run(serve(kind, socket.socket(fileno=int(number))))
        return
    pin_load()
    print(f"µs of CPU per request, least (median) of {given.repeats}; {time.strftime('%F')}\n")
    print(f"| connections | {' | '.join(KINDS)} |\n|{'---|' * (len(KINDS) + 1)}")
    for connections in given.connections:
        measured(connections, given.repeats)


if __name__ == "__main__":
    main()
