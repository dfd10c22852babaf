r"""OpenAI-compatible gateway to start from; the selection service chooses the rank of each request.

    python docs/examples/gateway/gateway.py --selector http://selector:8092 --model qwen --port 8080
    curl localhost:8080/v1/chat/completions -H 'content-type: application/json' \\
      -d '{"model": "qwen", "messages": [{"role": "user", "content": "Hello"}], "stream": true}'

Each request is tokenized by an engine (`/tokenize` of vLLM), leased, sent to the engine and
streamed to the client. An engine that fails or is busy before the first byte is replaced by another
one. Refusals of engines and service are passed on. A stream that breaks later ends with an event
`{"error": ...}`; docs/examples/surviving_gateway continues such streams.
Needs the extra `client`, starlette and uvicorn. Environment: SELECTOR_API_KEY is sent to the
selectors, SSL_CERT_FILE is the CA of https URLs.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import ssl
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, NamedTuple

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from select_service.client import AsyncSelector, Refused, SelectorError, Unavailable
from select_service.client.lease import AsyncLease

ATTEMPTS_MAX = 3
BODY_BYTES_MAX = 8 << 20
TOKENIZE_S_MAX = 5.0
CHARS_OF_A_TOKEN = 4  # estimate without a tokenizer
BUSY = {429, 503}
KEPT = ("content-type", "retry-after")  # headers of engine refusals that are passed on
PATHS = ("/v1/completions", "/v1/chat/completions")


class Answered(Exception):
    """Final response for the client instead of an engine's answer; its argument is a Response."""


def refusal(status: int, message: str, headers: dict[str, str] | None = None) -> Answered:
    error = {"message": message, "type": "gateway_error", "code": status}
    return Answered(JSONResponse({"error": error}, status, headers))


class Failed(Exception):
    """Engine that did not begin to answer; another one may be tried.

    told: response of a busy engine, which is not at fault
    """

    def __init__(self, why: str, told: Response | None = None) -> None:
        super().__init__(why)
        self.told = told


class Begun(NamedTuple):
    """Begun answer: `first` is the first event before `lines`, or a whole answer."""

    answer: httpx.Response
    first: str
    lines: AsyncIterator[str]


class Gateway:
    """State shared by all requests: HTTP client, selector, and options."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._model, self._selectors = options.model, options.selector

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        timeout, limits = httpx.Timeout(None, connect=3), httpx.Limits(max_keepalive_connections=0)
        key = os.environ.get("SELECTOR_API_KEY")
        shown: dict[str, Any] = {"api_key": key, "ssl_context": ssl.create_default_context()}
        async with (
            httpx.AsyncClient(timeout=timeout, limits=limits) as self._engines,
            AsyncSelector(self._selectors, model_name=self._model, **shown) as self._selector,
        ):
            yield

    async def complete(self, request: Request) -> Response:
        """Answer POST /v1/completions and /v1/chat/completions."""
        try:
            body = {"model": self._model, **await body_of(request)}
            lease, begun = await unless_left(request, self._begun(request.url.path, body))
        except Answered as answered:
            return answered.args[0]
        if body.get("stream"):
            return Passed(lease, begun)
        lease.tokens(tokens_of(begun.first))
        lease.end()
        return Response(begun.first, media_type="application/json")

    async def models(self, request: Request) -> Response:
        """Answer GET /v1/models."""
        return JSONResponse({"object": "list", "data": [{"id": self._model, "object": "model"}]})

    async def _prompt(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the prompt as fields of a lease."""
        given = body.get("prompt") if path == PATHS[0] else body.get("messages")
        if not given:
            raise refusal(400, "`prompt` is missing" if path == PATHS[0] else "no `messages`")
        if isinstance(given, list) and all(type(token) is int for token in given):
            return {"token_ids": given}
        if (ids := await self._told_by_engine(path, body)) is not None:
            return {"token_ids": ids}
        isl = max(1, len(json.dumps(given)) // CHARS_OF_A_TOKEN)
        return {"block_hashes": [], "sequence_hashes": [], "isl_tokens": isl}  # load alone decides

    async def _told_by_engine(self, path: str, body: dict[str, Any]) -> list[int] | None:
        """Return the token ids from any engine, because all engines of a model tokenize equally."""
        endpoints = [each.endpoint for each in await self._able()]
        names = ("model", "prompt", "messages", "tools", "add_special_tokens", "chat_template")
        question = {name: body[name] for name in names if name in body}
        if "messages" in body:
            question["add_generation_prompt"] = True
        for endpoint in random.sample(endpoints, min(2, len(endpoints))):
            with contextlib.suppress(httpx.HTTPError, ValueError, KeyError, TypeError):
                url = f"{endpoint}/tokenize"
                answer = await self._engines.post(url, json=question, timeout=TOKENIZE_S_MAX)
                return list(answer.raise_for_status().json()["tokens"])
        return None

    async def _able(self) -> list[Any]:
        """Return the schedulable workers; empty if no selector answers."""
        with contextlib.suppress(SelectorError):
            workers = await self._selector.workers(self._model)
            return [each for each in workers if each.lifecycle == "schedulable"]
        return []

    async def _begun(self, path: str, body: dict[str, Any]) -> tuple[AsyncLease, Begun]:
        """Return the begun answer of some engine. Raises Answered."""
        prompt = await self._prompt(path, body)
        failed: list[int] = []
        why = Failed("no engine was tried")
        for _ in range(ATTEMPTS_MAX):
            lease = await self._leased(prompt, failed, body)
            try:
                return lease, await self._sent(lease, path, body)
            except Failed as failure:
                failed.append(lease.worker_id)
                lease.end(None) if failure.told else lease.failed(str(failure))
                why = failure
            except BaseException:
                lease.end(None)
                raise
        if why.told:
            raise Answered(why.told)
        raise refusal(502, f"{ATTEMPTS_MAX} engines failed, at last: {why}")

    async def _leased(
        self, prompt: dict[str, Any], failed: Sequence[int], body: dict[str, Any]
    ) -> AsyncLease:
        """Return a lease that avoids failed workers while others exist."""
        fields = dict(prompt)
        if isinstance(most := body.get("max_tokens"), int) and most > 0:
            fields["expected_output_tokens"] = most
        try:
            if failed:
                able = [each.worker_id for each in await self._able()]
                others = [worker_id for worker_id in able if worker_id not in failed]
                fields |= {"allowed_worker_ids": others} if others else {}
            return await self._selector.begin(**fields)
        except Refused as error:
            headers = {} if (s := error.retry_after_s) is None else {"retry-after": f"{s:.0f}"}
            raise refusal(error.status, error.text, headers) from error
        except Unavailable as error:
            raise refusal(503, str(error), {"retry-after": "1"}) from error

    async def _sent(self, lease: AsyncLease, path: str, body: dict[str, Any]) -> Begun:
        """Send the request and return the begun answer. Raises Failed, Answered."""
        headers = {"x-data-parallel-rank": str(lease.dp_rank)}
        url = f"{lease.endpoint.rstrip('/')}{path}"
        request = self._engines.build_request("POST", url, json=body, headers=headers)
        try:
            answer = await self._engines.send(request, stream=True)
            if answer.status_code == 200 and body.get("stream"):
                lines = answer.aiter_lines()
                return Begun(answer, await first_event(lines), lines)
            said = await answer.aread()
        except httpx.HTTPError as error:
            raise Failed(f"{type(error).__name__}: {error}") from error
        if answer.status_code == 200:
            return Begun(answer, said.decode(), answer.aiter_lines())
        kept = {name: answer.headers[name] for name in KEPT if name in answer.headers}
        told = Response(said, answer.status_code, kept)
        if answer.status_code in BUSY or answer.status_code >= 500:
            is_busy = answer.status_code in BUSY
            raise Failed(f"status {answer.status_code}", told if is_busy else None)
        raise Answered(told)


async def unless_left(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of the work, or cancel it when the client disconnects.

    After the request body only a disconnect can arrive.
    """
    working, leaving = asyncio.create_task(work), asyncio.create_task(request.receive())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Answered(Response(status_code=499))  # no client reads this response
    finally:
        working.cancel()
        leaving.cancel()


class Passed(StreamingResponse):
    """Streaming response that ends its lease, also if the client left before the first byte."""

    def __init__(self, lease: AsyncLease, begun: Begun) -> None:
        super().__init__(passed_on(lease, begun), media_type="text/event-stream")
        self._begin_lease, self._answer = lease, begun.answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._begin_lease.end(None)  # no effect if the lease has ended
            await self._answer.aclose()


async def first_event(lines: AsyncIterator[str]) -> str:
    async for line in lines:
        if line.startswith("data:"):
            return line
    raise Failed("the stream ended before it began")


async def passed_on(lease: AsyncLease, begun: Begun) -> AsyncIterator[bytes]:
    """Yield the events of the engine and end the lease."""
    line, is_done = begun.first, False
    try:
        while not is_done:
            if line.startswith("data:"):
                is_done = line.endswith("[DONE]")
                lease.tokens(0 if is_done else tokens_in(line.removeprefix("data:")))
            yield line.encode() + b"\n"
            line = "" if is_done else await anext(begun.lines)
        yield b"\n"
        lease.end()
    except (httpx.HTTPError, StopAsyncIteration) as error:
        lease.failed(type(error).__name__)
        is_end = isinstance(error, StopAsyncIteration)
        reason = "its stream ended too early" if is_end else str(error) or type(error).__name__
        told = {"error": {"message": f"the engine failed: {reason}", "code": 502}}
        yield b"data: " + json.dumps(told).encode() + b"\n\n"


def tokens_in(event: str) -> int:
    """Return the tokens of an event: one per choice with content, or the reported number."""
    with contextlib.suppress(ValueError, AttributeError, TypeError):
        choices = json.loads(event).get("choices") or []
        return sum(len(ids) if (ids := each.get("token_ids")) else brings(each) for each in choices)
    return 0


def brings(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta") or choice
    return any(delta.get(name) for name in ("text", "content", "reasoning_content", "tool_calls"))


def tokens_of(answer: str) -> int:
    """Return the number of output tokens of a whole answer."""
    with contextlib.suppress(ValueError, AttributeError, TypeError):
        return int(json.loads(answer)["usage"]["completion_tokens"])
    return 0


async def body_of(request: Request) -> dict[str, Any]:
    """Return the request body. Raises Answered."""
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > BODY_BYTES_MAX:
            raise refusal(413, f"the body has more than {BODY_BYTES_MAX} bytes")
    with contextlib.suppress(ValueError):
        if isinstance(body := json.loads(content), dict):
            return body
    raise refusal(400, "the body is no JSON object")


def main() -> None:
    parser = argparse.ArgumentParser(description="A gateway: see the top of its file.")
    parser.add_argument("--selector", required=True, nargs="+", help="URLs of selectors")
    parser.add_argument("--model", default="default", help="model_name of the workers")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    gateway = Gateway(given := parser.parse_args())
    routes = [Route(path, gateway.complete, methods=["POST"]) for path in PATHS]
    routes += [Route("/v1/models", gateway.models), Route("/health", lambda request: Response())]
    app = Starlette(routes=routes, lifespan=gateway.lifespan)
    uvicorn.run(app, host=given.host, port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
