"""Closed-loop HTTP load: `wrk` when it is installed, otherwise a small client of our own.

The figure that counts in a paired run is the server's CPU time per completed request, which depends
little on who asks; latencies of the two loaders must not be compared with each other.
"""

import asyncio
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import httptools

WRK_SCRIPT = Path(__file__).with_name("select.lua")


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
        return _wrk(port, bodies, connections, seconds)
    return asyncio.run(_own(port, bodies, connections, seconds))


class Wrk:
    """A load in the background, for as long as something else is measured."""

    def __init__(self, port: int, bodies: list[bytes], connections: int, seconds: float) -> None:
        self._bodies = tempfile.NamedTemporaryFile(suffix=".jsonl")  # noqa: SIM115
        self._bodies.write(b"\n".join(bodies) + b"\n")
        self._bodies.flush()
        command = ("wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(WRK_SCRIPT))
        url = f"http://127.0.0.1:{port}"
        self._process = subprocess.Popen(
            (*command, url, "--", self._bodies.name), stdout=subprocess.PIPE, text=True
        )

    def result(self) -> LoadResult:
        """Waits for the end."""
        output, _ = self._process.communicate()
        self._bodies.close()
        found = re.search(r"requests=(\d+) errors=(\d+) us=([\d.]+) ([\d.]+) ([\d.]+)", output)
        assert found, output
        requests, errors, *latencies = found.groups()
        return LoadResult(int(requests), int(errors), *map(float, latencies))


def _wrk(port: int, bodies: list[bytes], connections: int, seconds: float) -> LoadResult:
    return Wrk(port, bodies, connections, round(seconds)).result()


class _Client(asyncio.Protocol):
    """One connection: the next request goes out when the answer is complete."""

    def __init__(self, requests: list[bytes], place: int, until: float) -> None:
        self._requests, self._place, self._until = requests, place, until
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
        self.errors += self._parser.get_status_code() != 200
        self._parser = httptools.HttpResponseParser(self)
        if now < self._until:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def _send(self) -> None:
        self._place += 1
        self._sent = time.perf_counter()
        self._transport.write(self._requests[self._place % len(self._requests)])


async def _own(port: int, bodies: list[bytes], connections: int, seconds: float) -> LoadResult:
    head = "POST /select HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    requests = [f"{head}content-length: {len(b)}\r\n\r\n".encode() + b for b in bodies]
    loop, until = asyncio.get_running_loop(), time.perf_counter() + seconds
    clients = [_Client(requests, place, until) for place in range(connections)]
    for client in clients:
        await loop.create_connection(lambda c=client: c, "127.0.0.1", port)
    await asyncio.gather(*(client.done for client in clients))
    latencies = sorted(latency for client in clients for latency in client.latencies)
    errors = sum(client.errors for client in clients)
    p50, p99 = (1e6 * latencies[int(len(latencies) * q)] for q in (0.5, 0.99))
    return LoadResult(len(latencies), errors, p50, p99, 1e6 * latencies[-1])
