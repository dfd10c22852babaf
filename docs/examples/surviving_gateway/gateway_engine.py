"""Stream of completions from an engine, and errors of engines."""

import json
from collections.abc import Mapping
from typing import Any, Self

import aiohttp
from gateway_selector import GatewayError, Rank

CONNECT_S_MAX = 3.0
EVENT_BYTES_MAX = 4 << 20
"""Limit of an event in bytes; the first event repeats the ids of the whole prompt."""
ERROR_BYTES_MAX = 64 << 10
BUSY_STATUSES = {429, 503}


class EngineError(Exception):
    """Failure of an engine.

    is_fault: whether to report the failure; a busy engine is not at fault
    """

    def __init__(self, message: str, is_fault: bool = True) -> None:
        super().__init__(message)
        self.is_fault = is_fault


class EngineStream:
    """Event stream of a `POST /v1/completions`."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.has_begun = False
        """Whether a token has arrived."""
        self._response = response
        self._buffer = b""

    @classmethod
    async def open(cls, http: aiohttp.ClientSession, rank: Rank, body: Mapping[str, Any]) -> Self:
        """Send the request. Raises EngineError, or GatewayError for a refusal."""
        headers = {"x-data-parallel-rank": str(rank.dp_rank)}
        url = f"{rank.endpoint.rstrip('/')}/v1/completions"
        try:
            response = await http.post(url, json=body, headers=headers)
            if response.status == 200:
                return cls(response)
            content = await response.content.read(ERROR_BYTES_MAX)
            response.close()
        except aiohttp.ClientError as error:
            raise EngineError(f"no connection: {error or type(error).__name__}") from error
        if response.status in BUSY_STATUSES or response.status >= 500:
            raise EngineError(f"status {response.status}", response.status not in BUSY_STATUSES)
        raise GatewayError(response.status, content)

    async def next_chunk(self) -> dict[str, Any] | None:
        """Return the next chunk, or None at the end of the stream. Raises EngineError."""
        try:
            data = await self._read_data()
            if data == b"[DONE]":
                return None
            chunk: dict[str, Any] = json.loads(data)
        except aiohttp.ClientError as error:
            raise EngineError(f"the stream broke: {error or type(error).__name__}") from error
        except ValueError as error:
            raise EngineError("the engine sent an event that is not JSON") from error
        choices = chunk.get("choices")
        if not isinstance(choices, list):  # most likely an error
            raise EngineError(f"event without choices: {data[:200].decode(errors='replace')}")
        if any(choice.get("finish_reason") == "abort" for choice in choices):
            raise EngineError("the engine aborted the request")
        return chunk

    async def _read_data(self) -> bytes:
        while True:
            line, end, rest = self._buffer.partition(b"\n")
            if end:
                self._buffer = rest
                if line.startswith(b"data:"):
                    return line.removeprefix(b"data:").strip()
                continue
            more = await self._response.content.readany()
            if not more:
                raise EngineError("the stream ended before [DONE]")
            if len(self._buffer) > EVENT_BYTES_MAX:
                raise EngineError(f"an event exceeds {EVENT_BYTES_MAX} bytes")
            self._buffer += more

    def close(self) -> None:
        """Close the connection, which makes the engine stop computing."""
        self._response.close()
