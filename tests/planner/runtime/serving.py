"""HTTP server for a test, on a free port of this machine."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

Answer = Callable[[web.Request], web.Response]


@asynccontextmanager
async def served(answer: Answer) -> AsyncIterator[str]:
    """Yield the URL of an HTTP server that answers all requests with `answer`."""

    async def handle(request: web.Request) -> web.Response:
        return answer(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
