"""Engines that serve metrics over real sockets, well or badly, and a fake owner of readings."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from indexer.sockets.dns_resolver import Resolver
from select_service.adapters.engine_metrics import EngineMetricsScraper
from select_service.adapters.http_get import HttpClient
from select_service.core.workers.engine_load import EngineTarget
from tests.builders.polling import PATIENCE_S

Speak = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Function that answers a request over a connection."""


class Owner:
    """Owner that requests the given targets and records readings and errors."""

    def __init__(self, *targets: EngineTarget) -> None:
        self.targets = list(targets)
        self.told: asyncio.Queue[tuple[EngineTarget, Any]] = asyncio.Queue()
        self.rounds = 0
        self.looked_up: list[int] = []

    def workers_to_read(self):
        self.rounds += 1
        return [target.worker_id for target in self.targets]

    def find_target(self, worker_id):
        self.looked_up.append(worker_id)
        return next((each for each in self.targets if each.worker_id == worker_id), None)

    def accept_readings(self, target, readings, now):
        self.told.put_nowait((target, dict(readings)))

    def record_failure(self, target, error, now):
        self.told.put_nowait((target, error))

    async def next_of(self, worker_id: int) -> Any:
        """Return the next readings, or the next error, of a worker."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                target, said = await self.told.get()
                if target.worker_id == worker_id:
                    return said


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def monitor(
    owner: Owner, interval_s: float = 0.02, timeout_s: float = PATIENCE_S
) -> AsyncIterator[EngineMetricsScraper]:
    http = HttpClient(Resolver())
    metrics = EngineMetricsScraper(owner, http, interval_s=interval_s, timeout_s=timeout_s)
    metrics.start()
    try:
        yield metrics
    finally:
        await metrics.stop()
        await http.close()


class Page:
    """An HTTP server with one changeable page, and a count of requests."""

    def __init__(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None):
        self.body, self.status, self.headers = body, status, headers
        self.requests: list[web.Request] = []
        self.connections: set[Any] = set()

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        self.connections.add(request.transport)
        return web.Response(body=self.body, status=self.status, headers=self.headers)


@contextlib.asynccontextmanager
async def serving(page: Page) -> AsyncIterator[str]:
    """Yield the URL of the page."""
    app = web.Application()
    app.router.add_get("/metrics", page.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def speaking(speak: Speak) -> AsyncIterator[str]:
    """Yield the URL of a server that reads a request and then answers by `speak`."""
    talks: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                await speak(reader, writer)
                await writer.drain()
            writer.close()
        except asyncio.CancelledError:
            writer.transport.abort()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics"
    finally:
        server.close()
        for task in talks:
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
        await asyncio.sleep(0)  # lets the transports close


def send_parts(*parts: bytes, hangs: bool = False) -> Speak:
    """Return a function that sends the parts, then closes; or hangs and keeps the connection."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
        if hangs:
            await asyncio.Event().wait()

    return speak


def send_repeatedly(head: bytes, part: bytes, pause_s: float = 0.0) -> Speak:
    """Return a function that sends `part` for ever."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return speak
