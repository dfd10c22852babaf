"""Engines on a separate event loop, which runs whatever the test does."""

import asyncio
import contextlib
import threading
from typing import Self

from tests.builders.polling import PATIENCE_S
from tests.builders.toy_engine import ToyEngine, serving


class ServedEngines:
    """Running engines; `crash` ends one of the engines."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._served: dict[str, contextlib.AsyncExitStack] = {}

    def serve(self, engine: ToyEngine, port: int = 0) -> str:
        """Start an engine and return the endpoint.

        port: 0 means a free port
        """
        serving_it = self._serve(engine, port)
        return asyncio.run_coroutine_threadsafe(serving_it, self._loop).result(PATIENCE_S)

    async def _serve(self, engine: ToyEngine, port: int) -> str:
        stack = contextlib.AsyncExitStack()
        endpoint = await stack.enter_async_context(serving(engine, port))
        self._served[endpoint] = stack
        return endpoint

    def crash(self, endpoint: str) -> None:
        """Close the port and all connections of an engine."""
        closing = self._served.pop(endpoint).aclose()
        asyncio.run_coroutine_threadsafe(closing, self._loop).result(PATIENCE_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for endpoint in list(self._served):
            self.crash(endpoint)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()
