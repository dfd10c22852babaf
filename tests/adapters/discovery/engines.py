"""Engines over real sockets that serve recorded answers about themselves."""

import contextlib

from aiohttp import web

from indexer.sockets.dns_resolver import Resolver
from select_service.adapters.http_get import HttpClient
from tests.builders.engine_answers import recorded


class AnsweringEngine:
    """Engine that serves given answers by path, and 503 while starting."""

    def __init__(self, answers):
        self.answers = {path.partition("?")[0]: body for path, body in answers.items()}
        self.starts = False
        self.asked = 0

    async def answer(self, request):
        self.asked += 1
        if self.starts:
            return web.Response(status=503)
        body = self.answers.get(request.path)
        return web.Response(status=404) if body is None else web.Response(body=body)


@contextlib.asynccontextmanager
async def engine(name="vllm-0.33.0-1", without=()):
    """Yield an engine and its URL."""
    told = AnsweringEngine(recorded(name, without))
    application = web.Application()
    application.router.add_get("/{path:.*}", told.answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield told, f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def http_client():
    client = HttpClient(Resolver())
    try:
        yield client
    finally:
        await client.close()
