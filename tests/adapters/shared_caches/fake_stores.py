"""Stores behind real sockets: Mooncake's master and LMCache's controller."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web


def sglang_key(tokens, prior=None):
    """Return the name of a page, as in SGLang's `get_hash_str`."""
    hasher = hashlib.sha256()
    if prior:
        hasher.update(bytes.fromhex(prior))
    for token in tokens:
        for number in token if isinstance(token, tuple) else (token,):
            hasher.update(number.to_bytes(4, byteorder="little", signed=False))
    return hasher.hexdigest()


def sglang_pages(tokens, size):
    """Return the names of the whole pages of a prompt."""
    names = []
    for at in range(0, len(tokens) // size * size, size):
        names.append(sglang_key(tokens[at : at + size], names[-1] if names else None))
    return names


class FakeMaster:
    """Mooncake's master: a set of keys, answered after `delay_s` while `answers` is set."""

    def __init__(self, *keys: str) -> None:
        self.keys = set(keys)
        self.requests: list[list[str]] = []
        self.delay_s = 0.0
        self.status = 200
        self.answers = asyncio.Event()
        self.answers.set()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/batch_query_keys", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.Response:
        # As the master: the text behind `keys=` is split at plain commas, then nothing is decoded.
        asked = request.rel_url.raw_query_string.removeprefix("keys=").split(",")
        self.requests.append(asked)
        await asyncio.sleep(self.delay_s)
        await self.answers.wait()
        if self.status != 200:
            answer = {"success": False, "error": "service plane is not active"}
            return web.json_response(answer, status=self.status)
        found: dict[str, Any] = {}
        for key in asked:
            buffer = {"size_": 4096, "buffer_address_": 1, "transport_endpoint_": "10.0.0.1:12345"}
            held = {"ok": True, "values": [buffer]}
            found[key] = held if key in self.keys else {"ok": False, "error": "OBJECT_NOT_FOUND"}
        return web.json_response({"success": True, "data": found})


class FakeController:
    """LMCache's controller: engines by chunk; the first engine to store a chunk is listed."""

    def __init__(self, chunk: int = 8) -> None:
        self.chunk = chunk
        self.holders: dict[str, tuple[str, str]] = {}
        self.requests: list[list[int]] = []
        self.delay_s = 0.0

    def store(self, tokens, engine, storage="LocalCPUBackend", first=0):
        """Let an engine hold the chunks of a prompt from the number `first` on."""
        for number, end in enumerate(range(self.chunk, len(tokens) + 1, self.chunk)):
            if number >= first:
                self.holders.setdefault(sglang_key(tokens[:end]), (engine, storage))

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_post("/lookup", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.Response:
        tokens = (await request.json())["tokens"]
        self.requests.append(tokens)
        await asyncio.sleep(self.delay_s)
        layout: dict[str, tuple[str, int]] = {}
        for end in range(self.chunk, len(tokens) + 1, self.chunk):
            holder = self.holders.get(sglang_key(tokens[:end]))
            if holder is None:
                break
            layout[holder[0]] = (holder[1], end)
        return web.json_response({"event_id": "lookup-1", "layout_info": layout})


@contextlib.asynccontextmanager
async def serving(store: FakeMaster | FakeController) -> AsyncIterator[str]:
    """Yield the URL of the store."""
    runner = web.AppRunner(store.app(), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
