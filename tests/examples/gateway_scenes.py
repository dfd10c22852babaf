"""Engines, the gateway and reading clients, for tests of the gateway's example."""

import asyncio
import itertools
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import islice
from typing import Any

import aiohttp

from tests.builders import worker_body
from tests.builders.launched_process import (
    ROOT,
    LaunchedProcess,
    free_port,
    own_command,
    own_environment,
)
from tests.builders.polling import PATIENCE_S
from tests.builders.running import Reached
from tests.examples.token_engine import generated, ids_of, text_of

EXAMPLES = ROOT / "docs" / "examples"
PATH = EXAMPLES / "surviving_gateway" / "gateway.py"
TOKENS = 40
"""Number of tokens of an answer."""

_worker_ids = itertools.count(1)


class Engine(LaunchedProcess):
    """Process of an engine, registered as a worker."""

    def __init__(self, service: Reached, *flags: str, **fields: Any) -> None:
        port = free_port()
        given = ("--port", str(port), *flags)
        command = own_command(*given, module="tests.examples.token_engine")
        super().__init__(command, own_environment({}), port)
        self.wait_until_healthy()
        self.worker_id = next(_worker_ids)
        self._service = service
        self._body = worker_body(self.worker_id, endpoint=self.url, **fields)
        self.register()

    def register(self) -> None:
        assert self._service.call("POST", "/workers", self._body).status == 201

    def leave(self) -> None:
        self._service.call("DELETE", f"/workers/{self.worker_id}")

    def recover(self) -> None:
        """End all holds and failures of the engine."""
        for verb in ("go", "fail"):
            assert Reached(self.port).call("POST", f"/{verb}", {}).status == 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def end(self) -> None:
        if not self.has_ended:
            self.process.send_signal(signal.SIGCONT)
        super().end()
        self.leave()


class Gateway(LaunchedProcess):
    def __init__(self, service: Reached, *flags: str) -> None:
        port = free_port()
        place = ("--selector", f"http://127.0.0.1:{service.port}", "--port", str(port))
        command = (sys.executable, str(PATH), *place, "--model", "m", *flags)
        super().__init__(command, own_environment({}), port)
        self.wait_until_healthy()
        assert self.read_log().splitlines()[0] == str(port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/completions"


@contextmanager
def two_engines(service: Reached, **fields: Any) -> Iterator[tuple[Engine, Engine]]:
    with Engine(service, **fields) as first, Engine(service, **fields) as second:
        yield first, second


class Reader:
    """Client with the text read so far."""

    def __init__(self, prompt: list[int] | str) -> None:
        self.prompt = prompt
        self.tokens: list[int] = []
        self.text = ""
        self.reasons: list[str] = []
        self.ids: set[str] = set()
        self.is_done = False

    async def read(self, http: aiohttp.ClientSession, gateway: Gateway) -> None:
        body = {"prompt": self.prompt, "max_tokens": TOKENS, "stream": True}
        body |= {"return_token_ids": True, "temperature": 0}
        async with http.post(gateway.url, json=body) as answer:
            assert answer.status == 200, await answer.text()
            async for line in answer.content:
                if line.strip():
                    self._take(line.removeprefix(b"data: ").strip())

    def _take(self, data: bytes) -> None:
        assert not self.is_done
        if data == b"[DONE]":
            self.is_done = True
            return
        chunk = json.loads(data)
        assert "error" not in chunk, chunk
        (choice,) = chunk["choices"]
        self.ids.add(chunk["id"])
        self.text += choice["text"]
        self.tokens += choice["token_ids"]
        if choice["finish_reason"] is not None:
            self.reasons.append(choice["finish_reason"])

    def check(self) -> None:
        """Check that the answer is the undisturbed answer."""
        right = list(islice(generated(ids_of(self.prompt)), TOKENS))
        assert self.tokens == right
        assert self.text == text_of(right)
        assert (self.is_done, self.reasons, len(self.ids)) == (True, ["length"], 1)


class Scene:
    """Scene of a test while clients read."""

    def __init__(self, service: Reached, http: aiohttp.ClientSession) -> None:
        self.service, self.http = service, http

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request to the service."""
        url = f"http://127.0.0.1:{self.service.port}{path}"
        async with self.http.request(method, url, json=body) as answer:
            assert answer.status < 300, await answer.text()
            return await answer.json()

    async def control(self, engine: Engine, verb: str, **words: Any) -> None:
        async with self.http.post(f"{engine.url}/{verb}", json=words) as answer:
            assert answer.status == 200

    async def until(self, question: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not await question():
                await asyncio.sleep(0.01)

    async def booked(self, engine: Engine | None = None) -> int:
        where = "" if engine is None else f"&worker_id={engine.worker_id}"
        page = await self.ask("GET", f"/reservations?limit=1000{where}")
        return len(page["reservations"])

    async def streams(self, engine: Engine) -> int:
        async with self.http.get(f"{engine.url}/streams") as answer:
            n: int = await answer.json()
            return n

    async def until_freed(self) -> None:
        async def is_free() -> bool:
            return await self.booked() == 0

        await self.until(is_free)


@asynccontextmanager
async def scene_of(service: Reached) -> AsyncIterator[Scene]:
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        yield Scene(service, http)
