"""One stream of completions from an engine, and its failures."""

import json
from collections.abc import Mapping
from typing import Any, Self

import aiohttp
from gateway_selector import NoAnswer, Rank

CONNECT_S_MAX = 3.0
EVENT_BYTES_MAX = 4 << 20
"""Bytes of one event; the first event repeats the ids of the whole prompt."""
ERROR_BYTES_MAX = 64 << 10
BUSY = {429, 503}


class EngineFailed(Exception):
    """Failure of an engine.

    is_fault: whether to report it; a busy engine is not sick
    """

    def __init__(self, why: str, is_fault: bool = True) -> None:
        super().__init__(why)
        self.is_fault = is_fault


class EngineStream:
    """Events of one `POST /v1/completions`."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.has_begun = False
        """Whether a token has arrived."""
        self._response = response
        self._rest = b""

    @classmethod
    async def open(cls, http: aiohttp.ClientSession, rank: Rank, body: Mapping[str, Any]) -> Self:
        """Send the request. Raises EngineFailed, or NoAnswer if the engine refuses the request."""
        headers = {"x-data-parallel-rank": str(rank.dp_rank)}
        url = f"{rank.endpoint.rstrip('/')}/v1/completions"
        try:
            response = await http.post(url, json=body, headers=headers)
            if response.status == 200:
                return cls(response)
            content = await response.content.read(ERROR_BYTES_MAX)
            response.close()
        except aiohttp.ClientError as error:
            raise EngineFailed(f"no connection: {error or type(error).__name__}") from error
        if response.status in BUSY or response.status >= 500:
            raise EngineFailed(f"status {response.status}", response.status not in BUSY)
        raise NoAnswer(response.status, content)

    async def next(self) -> dict[str, Any] | None:
        """Return the next chunk, or None at the end of the stream. Raises EngineFailed."""
        try:
            data = await self._data()
            if data == b"[DONE]":
                return None
            chunk: dict[str, Any] = json.loads(data)
        except aiohttp.ClientError as error:
            raise EngineFailed(f"the stream broke: {error or type(error).__name__}") from error
        except ValueError as error:
            raise EngineFailed("an event is no JSON") from error
        choices = chunk.get("choices")
        if not isinstance(choices, list):  # most likely an error
            raise EngineFailed(f"the engine says {data[:200].decode(errors='replace')}")
        if any(choice.get("finish_reason") == "abort" for choice in choices):
            raise EngineFailed("the engine gave the request up")
        return chunk

    async def _data(self) -> bytes:
        while True:
            line, end, rest = self._rest.partition(b"\n")
            if end:
                self._rest = rest
                if line.startswith(b"data:"):
                    return line.removeprefix(b"data:").strip()
                continue
            more = await self._response.content.readany()
            if not more or len(self._rest) > EVENT_BYTES_MAX:
                raise EngineFailed("the stream ended, or an event does not")
            self._rest += more

    def close(self) -> None:
        """Close the connection, which makes the engine stop computing."""
        self._response.close()
