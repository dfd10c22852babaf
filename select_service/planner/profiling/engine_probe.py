"""Client of an OpenAI-compatible engine that times the tokens of streamed completions.

The interface is `POST /v1/completions` with token ids as prompt, as vLLM and SGLang have it; what
else is known of the engine comes from `/v1/models`, `/metrics` (vLLM) and `/get_server_info`
(SGLang).
"""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct

from select_service.base.decode_errors import DECODE_ERRORS
from select_service.net.http_client.http_error import HttpError
from select_service.net.http_client.http_session import HttpRequest, HttpSession
from select_service.net.tls.current_tls import ClientTls
from select_service.planner.profiling.sweep import StreamTimes

FACT_BYTES_MAX: Final = 4 << 20
FACT_TIMEOUT_S: Final = 10.0
LINE_BYTES_MAX: Final = 1 << 20
"""Limit of an event of a stream."""
ANSWER_BYTES_MAX: Final = 64 << 20
CHUNKS_MAX: Final = 1 << 17
"""Limit of the chunks of an answer: more than answers have tokens."""
KV_TOKENS_MAX: Final = 1 << 40
"""Limit of the tokens of a KV cache."""
TOKEN_LOW, TOKEN_HIGH = 100, 500
"""Range of the ids in prompts, which every vocabulary has."""
_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{([^}\n]*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class ReportedLimits(NamedTuple):
    """Facts that an engine reports; None if it does not."""

    model: str | None
    max_length: int | None
    max_kv_tokens: int | None


class _Model(Struct):
    id: str
    max_model_len: int | None = None


class _Models(Struct):
    data: Annotated[list[_Model], Meta(max_length=1000)] = []


class _ServerInfo(Struct):
    max_total_num_tokens: int | None = None


class _Usage(Struct):
    completion_tokens: int | None = None


class _Choice(Struct):
    text: str = ""
    token_ids: list[int] | None = None


class _Chunk(Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class EngineProbe:
    """Client of an engine. Belongs to one event loop.

    model:        None means the first that the engine has
    token_file:   file with the engine's key
    requests_max: most simultaneous requests
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        token_file: Path | None = None,
        tls: ClientTls | None = None,
        *,
        requests_max: int = 1,
        timeout_s: float = 300.0,
    ) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")
        # Half of a session's connections are kept alive, which only GETs are.
        self._http = HttpSession(connections_max=2 * max(1, requests_max), tls=tls)
        self.model = model
        self._token_file = token_file
        self._timeout_s = timeout_s
        # Seeded, so that a second sweep of an engine has the same prompts.
        self._random = Random(1)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def read_facts(self) -> ReportedLimits:
        """Return what the engine reports. Raises HttpError if it cannot be reached."""
        models = msgspec.json.decode(await self._read("/v1/models"), type=_Models).data
        named = [each for each in models if self.model in (None, each.id)]
        if named and self.model is None:
            self.model = named[0].id
        return ReportedLimits(
            self.model, named[0].max_model_len if named else None, await self._read_kv_tokens()
        )

    async def _read_kv_tokens(self) -> int | None:
        """Return the tokens of the KV cache, or None."""
        try:
            labels = dict(_first_labels((await self._read("/metrics")).decode("utf-8", "replace")))
            found = int(labels["num_gpu_blocks"]) * int(labels["block_size"])
            # Nonsense counts as nothing: the caller then asks for the flag.
            return found if 0 < found <= KV_TOKENS_MAX else None
        except (HttpError, KeyError, ValueError):
            pass
        try:
            content = await self._read("/get_server_info")
            tokens = msgspec.json.decode(content, type=_ServerInfo).max_total_num_tokens
            return tokens if tokens and 0 < tokens <= KV_TOKENS_MAX else None
        except (HttpError, *DECODE_ERRORS):
            return None

    async def _read(self, path: str) -> bytes:
        """Return the body of a GET. Raises HttpError."""
        request = HttpRequest("GET", self._url + path, token_file=self._token_file)
        return await self._http.fetch_body(
            request, bytes_max=FACT_BYTES_MAX, timeout_s=FACT_TIMEOUT_S
        )

    async def time_answers(
        self, length: int, answer_tokens: int, requests: int
    ) -> list[StreamTimes]:
        """Return the times of simultaneous requests with different prompts. Raises HttpError."""
        prompts = [self._make_prompt(length) for _ in range(requests)]
        try:
            async with asyncio.TaskGroup() as group:
                running = [
                    group.create_task(self._time_answer(prompt, answer_tokens))
                    for prompt in prompts
                ]
        except* HttpError as errors:
            raise _first_error(errors) from None
        return [each.result() for each in running]

    def _make_prompt(self, length: int) -> list[int]:
        """Return a prompt that no cache knows."""
        return self._random.choices(range(TOKEN_LOW, TOKEN_HIGH), k=length)

    async def _time_answer(self, prompt: list[int], answer_tokens: int) -> StreamTimes:
        """Return the times of a request. Raises HttpError."""
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": answer_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        request = HttpRequest(
            "POST",
            f"{self._url}/v1/completions",
            {"content-type": "application/json"},
            msgspec.json.encode(body),
            self._token_file,
        )
        clock = asyncio.get_running_loop().time
        events, sent_s = _EventReader(), clock()
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._http.open_response(request) as answer,
            ):
                while piece := await answer.read_some():
                    events.add_piece(piece, clock())
        except TimeoutError:
            text = f"no complete answer within {self._timeout_s:g} s"
            raise HttpError("timeout", text) from None
        return events.to_times(sent_s)


class _EventReader:
    """Reader of the events of a stream, with the times of those that have tokens."""

    def __init__(self) -> None:
        self._rest = b""
        self._bytes = 0
        self._chunks_s: list[float] = []
        self._tokens: int | None = None

    def add_piece(self, piece: bytes, at_s: float) -> None:
        """Add a piece of the body. Raises HttpError."""
        self._bytes += len(piece)
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX or self._bytes > ANSWER_BYTES_MAX:
            raise HttpError("too_large", f"answer is larger than {ANSWER_BYTES_MAX} bytes")
        for line in lines:
            data = line.strip().removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data != b"[DONE]":
                self._add_event(data, at_s)

    def _add_event(self, data: bytes, at_s: float) -> None:
        """Add an event. Raises HttpError."""
        try:
            chunk = _decode_chunk(data)
        except DECODE_ERRORS as error:
            raise HttpError("unreadable", f"event of the stream: {error}") from None
        if chunk.error is not None:
            text = msgspec.json.encode(chunk.error)[:200].decode("utf-8", "replace")
            raise HttpError("unreadable", f"the engine ended the answer: {text}")
        tokens = None if chunk.usage is None else chunk.usage.completion_tokens
        if tokens:
            # The pace is seconds by tokens: a nonsensical number would make a nonsensical profile.
            if not 0 < tokens <= CHUNKS_MAX:
                text = f"usage of the stream: expected 1 to {CHUNKS_MAX} completion_tokens"
                raise HttpError("unreadable", text)
            self._tokens = tokens
        # Engines send a last choice without text, with the reason of the end.
        if any(each.text or each.token_ids for each in chunk.choices):
            if len(self._chunks_s) >= CHUNKS_MAX:
                raise HttpError("too_large", f"answer has more than {CHUNKS_MAX} chunks")
            self._chunks_s.append(at_s)

    def to_times(self, sent_s: float) -> StreamTimes:
        """Return the times. Raises HttpError without any token."""
        if not self._chunks_s:
            raise HttpError("unreadable", "the answer has no token: expected a stream of events")
        return StreamTimes(sent_s, tuple(self._chunks_s), self._tokens or len(self._chunks_s))


def _first_error(errors: BaseExceptionGroup[HttpError]) -> HttpError:
    """Return the first error of simultaneous requests."""
    first = errors.exceptions[0]
    return _first_error(first) if isinstance(first, BaseExceptionGroup) else first


def _first_labels(text: str) -> Iterator[tuple[str, str]]:
    """Yield the labels of vLLM's cache configuration."""
    found = _CACHE_CONFIG.search(text)
    if found is not None:
        yield from _LABEL.findall(found[1])
