"""Engines that serve metrics over real sockets, well or badly, and one that owns their readings."""

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
"""For anything a test waits for; only a failing test waits so long."""


class Owner:
    """Wants the targets that it is given, and notes what it is told."""

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
        """The next readings, or the next error, of a worker."""
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
    """A well-behaved HTTP server with one page, which may change; counts who asks."""

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
    """The URL of the page."""
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
    """The URL of a server that reads a request and then says whatever `speak` says."""
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
        await asyncio.sleep(0)  # for the transports to close


def says(*parts: bytes, hangs: bool = False) -> Speak:
    """Says the parts, then closes; or hangs and keeps the connection."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
        if hangs:
            await asyncio.Event().wait()

    return speak


def repeats(head: bytes, part: bytes, pause_s: float = 0.0) -> Speak:
    """Says `part` for ever."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return speak
