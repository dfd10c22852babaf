"""Closed-loop HTTP load: `wrk` if installed, otherwise a small client.

The figure of a paired run is the server's CPU time per completed request, which hardly depends on
the loader. Latencies of the two loaders are not comparable.
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
    """Result of a load. Latencies in microseconds."""

    requests: int
    errors: int
    p50_us: float
    p99_us: float
    greatest_us: float


def load_select(port: int, bodies: list[bytes], connections: int, seconds: float) -> LoadResult:
    """Send POST /select with the bodies in turn, without pauses on each connection."""
    if shutil.which("wrk"):
        return BackgroundLoad(port, bodies, connections, round(seconds)).result()
    requests = itertools.cycle([post_request("/select", body) for body in bodies])
    return asyncio.run(_run_own_client(port, requests, connections, seconds))


def load_lives(
    port: int, bodies: list[bytes], connections: int, seconds: float, lives: "Lives"
) -> LoadResult:
    """Reserve, complete and free in turn, with the reservations of `lives`."""
    if shutil.which("wrk"):
        given = (lives.prefix, lives.id_field, str(lives.ahead))
        return BackgroundLoad(
            port, bodies, connections, round(seconds), "lives.lua", *given
        ).result()
    return asyncio.run(_run_own_client(port, lives.requests(bodies), connections, seconds))


class Lives(NamedTuple):
    """Reservations <prefix>1, <prefix>2 and so on.

    Initially 2 * `ahead` of them exist, the first half with a completed prefill. Every request
    therefore finds its reservation, on any connection.
    """

    prefix: str
    id_field: str
    ahead: int

    def reserve(self, body: bytes, number: int) -> bytes:
        # The body is cut before its last brace and gets the id as the last field.
        named = f',"{self.id_field}":"{self.prefix}{number}"}}'.encode()
        return post_request("/select_and_reserve", body[:-1] + named)

    def complete(self, number: int) -> bytes:
        return post_request(f"/reservations/{self.prefix}{number}/prefill_complete", b"")

    def free(self, number: int) -> bytes:
        return f"DELETE /reservations/{self.prefix}{number} {_VERSION_AND_HOST}\r\n".encode()

    def requests(self, bodies: list[bytes]) -> Iterator[bytes]:
        """Yield the requests of lives.lua."""
        for number, body in enumerate(itertools.cycle(bodies), start=1):
            yield self.reserve(body, number + 2 * self.ahead)
            yield self.complete(number + self.ahead)
            yield self.free(number)


_VERSION_AND_HOST = "HTTP/1.1\r\nhost: 127.0.0.1\r\n"


def post_request(path: str, body: bytes) -> bytes:
    """Return a request as bytes."""
    kind = "content-type: application/json\r\n" if body else ""
    head = f"POST {path} {_VERSION_AND_HOST}{kind}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class BackgroundLoad:
    """Load in the background during another measurement."""

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
        # wrk reads the file by its name.
        self._bodies.flush()
        command = ("wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(SCRIPTS / script))
        url = f"http://127.0.0.1:{port}"
        self._process = subprocess.Popen(
            (*command, url, "--", self._bodies.name, *arguments), stdout=subprocess.PIPE, text=True
        )

    def result(self) -> LoadResult:
        """Wait for the end and return the result."""
        output, _ = self._process.communicate()
        self._bodies.close()
        found = re.search(r"requests=(\d+) errors=(\d+) us=([\d.]+) ([\d.]+) ([\d.]+)", output)
        assert found, output
        requests, errors, *latencies = found.groups()
        return LoadResult(int(requests), int(errors), *map(float, latencies))


class _LoadConnection(asyncio.Protocol):
    """A connection that sends the next request after each complete answer."""

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


def _itself(client: _LoadConnection) -> _LoadConnection:
    return client


async def _run_own_client(
    port: int, requests: Iterator[bytes], connections: int, seconds: float
) -> LoadResult:
    loop, until = asyncio.get_running_loop(), time.perf_counter() + seconds
    clients = [_LoadConnection(requests, until) for _ in range(connections)]
    for client in clients:
        await loop.create_connection(partial(_itself, client), "127.0.0.1", port)
    await asyncio.gather(*(client.done for client in clients))
    latencies = sorted(latency for client in clients for latency in client.latencies)
    errors = sum(client.errors for client in clients)
    p50, p99 = (1e6 * latencies[int(len(latencies) * q)] for q in (0.5, 0.99))
    return LoadResult(len(latencies), errors, p50, p99, 1e6 * latencies[-1])
