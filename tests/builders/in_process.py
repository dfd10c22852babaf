"""The whole application in this process: real core, real ingest, no port."""

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, NamedTuple, Self, TypeVar

import httpx

from select_service.api.application import ApiApplication
from select_service.config.settings_loader import parse_config
from select_service.server.build import build_service
from select_service.server.startup_settings import validate_settings

T = TypeVar("T")

PATIENCE_S = 30.0

LEVELLED = ("select_service", "indexer", "uvicorn")
"""Loggers with a level that a client can change."""


class Answer(NamedTuple):
    """Answer of the application.

    body: decoded JSON if the content type is JSON, else text
    """

    status: int
    body: Any
    headers: httpx.Headers


class Api:
    """Service without KV events, unless the environment enables these events.

    The levels of loggers, which belong to the process, are restored at the end.
    """

    def __init__(self, *flags: str, **environment: str) -> None:
        config = parse_config(
            ["--threads", "1", "--allowed-hosts", "*", *flags],
            {
                "DYN_USE_KV_EVENTS": "false",
                "SELECT_SERVICE_NO_ASSUMED_INDEX": "true",
                **environment,
            },
        )
        parts = build_service(validate_settings(config, "1.2.3"))
        self._optional, self.discovery = parts.optional, parts.optional.discovery
        self.service, self.follower, self._http = parts.service, parts.follower, parts.http
        self._levels = {name: logging.getLogger(name).level for name in LEVELLED}
        transport = httpx.ASGITransport(ApiApplication(self.service), raise_app_exceptions=True)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://service")
        self._runner = asyncio.Runner()
        self.wait_for(self._start())

    async def _start(self) -> None:
        self.follower.start()
        if self.discovery is not None:
            self.discovery.start(self._http)

    def follow_sources(self, done: Callable[[], bool]) -> None:
        """Run the sources until `done`, so that the sources' workers are registered."""
        assert self.discovery is not None
        (task,) = self.discovery.periodic_tasks()
        until = monotonic() + PATIENCE_S

        async def follow() -> None:
            await asyncio.sleep(0.005)
            while task.step(monotonic()):
                await asyncio.sleep(0)

        while not done():
            assert monotonic() < until
            self.wait_for(follow())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, at: Any) -> None:
        if self.discovery is not None:
            self._runner.run(self.discovery.stop())
        self._runner.run(self.follower.stop())
        self._runner.run(self._http.close())
        if self._optional.audit is not None:
            self._runner.run(self._optional.audit.close_log())
        self._runner.run(self._client.aclose())
        self._runner.close()
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)
        self.service.ingest.close()
        if self._optional.replicas is not None:
            self._optional.replicas.close()
        if error is None:
            self.service.selector.check_invariants()

    def get(self, path: str) -> Answer:
        return self.call("GET", path)

    def delete_worker(self, path: str) -> Answer:
        return self.call("DELETE", path)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return self.call("POST", path, body, **headers)

    def patch(self, path: str, body: Any) -> Answer:
        return self.call("PATCH", path, body)

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Send a request; `body` goes out as JSON, or unchanged if given as bytes."""
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {} if body is None else {"content-type": "application/json"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        return self.run(self._client.request(method, path, content=content, headers=given))

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop of the service."""
        return self._runner.run(work)

    def run(self, request: Coroutine[Any, Any, httpx.Response]) -> Answer:
        response = self.wait_for(request)
        is_json = response.headers.get("content-type") == "application/json"
        body = json.loads(response.content) if is_json and response.content else response.text
        return Answer(response.status_code, body, response.headers)
