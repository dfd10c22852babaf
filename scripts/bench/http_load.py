"""Closed-loop HTTP load: `wrk` when it is installed, otherwise a small client of our own.

The figure that counts in a paired run is the server's CPU time per completed request, which depends
little on who asks; latencies of the two loaders must not be compared with each other.
"""

import asyncio
import itertools
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httptools

SCRIPTS = Path(__file__).parent


class LoadResult(NamedTuple):
    """Latencies in microseconds."""

    requests: int
    errors: int
    p50_us: float
    p99_us: float
    greatest_us: float


def hammer(port: int, bodies: list[bytes], connections: int, seconds: float) -> LoadResult:
    """POST /select with the bodies in turn, each connection without pause."""
    if shutil.which("wrk"):
        return Wrk(port, bodies, connections, round(seconds)).result()
    requests = itertools.cycle([post("/select", body) for body in bodies])
    return asyncio.run(_own(port, requests, connections, seconds))


def hammer_lives(
    port: int, bodies: list[bytes], connections: int, seconds: float, lives: "Lives"
) -> LoadResult:
    """Reserve, complete and free in turn, where `lives` says."""
    if shutil.which("wrk"):
        given = (lives.prefix, lives.id_field, str(lives.ahead))
        return Wrk(port, bodies, connections, round(seconds), "lives.lua", *given).result()
    return asyncio.run(_own(port, lives.requests(bodies), connections, seconds))


class Lives(NamedTuple):
    """Reservations <prefix>1, <prefix>2 and so on.

    2 * `ahead` of them are held when a load begins, the first half of these with a prefill that is
    completed; so every request finds what it is about, on whichever connection it comes.
    """

    prefix: str
    id_field: str
    ahead: int

    def reserve(self, body: bytes, number: int) -> bytes:
        named = f',"{self.id_field}":"{self.prefix}{number}"}}'.encode()
        return post("/select_and_reserve", body[:-1] + named)

    def complete(self, number: int) -> bytes:
        return post(f"/reservations/{self.prefix}{number}/prefill_complete", b"")

    def free(self, number: int) -> bytes:
        return f"DELETE /reservations/{self.prefix}{number} {_VERSION_AND_HOST}\r\n".encode()

    def requests(self, bodies: list[bytes]) -> Iterator[bytes]:
        """What lives.lua sends."""
        for number, body in enumerate(itertools.cycle(bodies), start=1):
            yield self.reserve(body, number + 2 * self.ahead)
            yield self.complete(number + self.ahead)
            yield self.free(number)


_VERSION_AND_HOST = "HTTP/1.1\r\nhost: 127.0.0.1\r\n"


def post(path: str, body: bytes) -> bytes:
    """One request as bytes."""
    kind = "content-type: application/json\r\n" if body else ""
    head = f"POST {path} {_VERSION_AND_HOST}{kind}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Wrk:
    """A load in the background, for as long as something else is measured."""

    def __init__(
        self,
        port: int,
        bodies: list[bytes],
        connections: int,
        seconds: int,
        script: str = "select.lua",
        *arguments: str,
    ) -> None:
        self._bodies = tempfile.NamedTemporaryFile(suffix=".jsonl")  # noqa: SIM115
        self._bodies.write(b"\n".join(bodies) + b"\n")
        self._bodies.flush()
        command = ("wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(SCRIPTS / script))
        url = f"http://127.0.0.1:{port}"
        self._process = subprocess.Popen(
            (*command, url, "--", self._bodies.name, *arguments), stdout=subprocess.PIPE, text=True
        )

    def result(self) -> LoadResult:
        """Waits for the end."""
        output, _ = self._process.communicate()
        self._bodies.close()
        found = re.search(r"requests=(\d+) errors=(\d+) us=([\d.]+) ([\d.]+) ([\d.]+)", output)
        assert found, output
        requests, errors, *latencies = found.groups()
        return LoadResult(int(requests), int(errors), *map(float, latencies))


class _Client(asyncio.Protocol):
    """One connection: the next request goes out when the answer is complete."""

    def __init__(self, requests: Iterator[bytes], until: float) -> None:
        self._requests, self._until = requests, until
        self._parser = httptools.HttpResponseParser(self)
        self.latencies: list[float] = []
        self.errors = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        now = time.perf_counter()
        self.latencies.append(now - self._sent)
        self.errors += self._parser.get_status_code() // 100 != 2
        self._parser = httptools.HttpResponseParser(self)
        if now < self._until:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def _send(self) -> None:
        self._sent = time.perf_counter()
        self._transport.write(next(self._requests))


def _itself(client: _Client) -> _Client:
    return client


async def _own(
    port: int, requests: Iterator[bytes], connections: int, seconds: float
) -> LoadResult:
    loop, until = asyncio.get_running_loop(), time.perf_counter() + seconds
    clients = [_Client(requests, until) for _ in range(connections)]
    for client in clients:
        await loop.create_connection(partial(_itself, client), "127.0.0.1", port)
    await asyncio.gather(*(client.done for client in clients))
    latencies = sorted(latency for client in clients for latency in client.latencies)
    errors = sum(client.errors for client in clients)
    p50, p99 = (1e6 * latencies[int(len(latencies) * q)] for q in (0.5, 0.99))
    return LoadResult(len(latencies), errors, p50, p99, 1e6 * latencies[-1])
