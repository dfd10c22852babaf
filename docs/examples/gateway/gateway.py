r"""OpenAI-compatible gateway to start from; the selection service chooses the rank of each request.

    python docs/examples/gateway/gateway.py --selector http://selector:8092 --model qwen --port 8080
    curl localhost:8080/v1/chat/completions -H 'content-type: application/json' \\
      -d '{"model": "qwen", "messages": [{"role": "user", "content": "Hello"}], "stream": true}'

Each request is tokenized by an engine (`/tokenize` of vLLM), leased, sent to the engine and
streamed to the client. If an engine fails or is busy before the first byte, the gateway tries
another engine. Refusals of engines and service are forwarded. A stream that breaks later ends with
an event `{"error": ...}`; docs/examples/surviving_gateway continues such streams.
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
CHARS_PER_TOKEN = 4  # estimate without a tokenizer
BUSY_STATUSES = {429, 503}
FORWARDED_HEADERS = ("content-type", "retry-after")  # headers of engine refusals for the client
PATHS = ("/v1/completions", "/v1/chat/completions")
TOKENIZE_FIELDS = "model", "prompt", "messages", "tools", "add_special_tokens", "chat_template"
Fields = dict[str, Any]


class GatewayError(Exception):
    """Error with the response for the client."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status_code)
        self.response = response


def make_error(status: int, message: str, headers: dict[str, str] | None = None) -> GatewayError:
    error = {"message": message, "type": "gateway_error", "code": status}
    return GatewayError(JSONResponse({"error": error}, status, headers))


class EngineError(Exception):
    """Failure of an engine before the first byte; the gateway tries another engine.

    busy_response: response of a busy engine, which is not at fault; None means a fault
    """

    def __init__(self, message: str, busy_response: Response | None = None) -> None:
        super().__init__(message)
        self.busy_response = busy_response


class EngineResponse(NamedTuple):
    """Response of an engine; `first` is the event before `lines`, or a whole answer."""

    http_response: httpx.Response
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
        security: dict[str, Any] = {"api_key": key, "ssl_context": ssl.create_default_context()}
        async with (
            httpx.AsyncClient(timeout=timeout, limits=limits) as self._engines,
            AsyncSelector(self._selectors, model_name=self._model, **security) as self._selector,
        ):
            yield

    async def create_completion(self, request: Request) -> Response:
        """Answer POST /v1/completions and /v1/chat/completions."""
        try:
            body = {"model": self._model, **await read_body(request)}
            starting = self._start_answer(request.url.path, body)
            lease, response = await cancel_on_disconnect(request, starting)
        except GatewayError as error:
            return error.response
        if body.get("stream"):
            return LeasedStream(lease, response)
        lease.tokens(read_completion_tokens(response.first))
        lease.end()
        return Response(response.first, media_type="application/json")

    async def list_models(self, request: Request) -> Response:
        """Answer GET /v1/models."""
        return JSONResponse({"object": "list", "data": [{"id": self._model, "object": "model"}]})

    async def _build_prompt_fields(self, path: str, body: Fields) -> Fields:
        """Return the prompt as fields of a lease."""
        field = "prompt" if path == PATHS[0] else "messages"
        if not (prompt := body.get(field)):
            raise make_error(400, f"`{field}` is missing or empty: send the input of the model")
        if isinstance(prompt, list) and all(type(token) is int for token in prompt):
            return {"token_ids": prompt}
        if (token_ids := await self._tokenize_prompt(body)) is not None:
            return {"token_ids": token_ids}
        isl = max(1, len(json.dumps(prompt)) // CHARS_PER_TOKEN)
        return {"block_hashes": [], "sequence_hashes": [], "isl_tokens": isl}  # load alone decides

    async def _tokenize_prompt(self, body: Fields) -> list[int] | None:
        """Return the token ids from any engine, because all engines of a model tokenize equally."""
        endpoints = [worker.endpoint for worker in await self._list_schedulable_workers()]
        payload = {name: body[name] for name in TOKENIZE_FIELDS if name in body}
        if "messages" in body:
            payload["add_generation_prompt"] = True
        for endpoint in random.sample(endpoints, min(2, len(endpoints))):
            with contextlib.suppress(httpx.HTTPError, ValueError, KeyError, TypeError):
                url = f"{endpoint}/tokenize"
                response = await self._engines.post(url, json=payload, timeout=TOKENIZE_S_MAX)
                return list(response.raise_for_status().json()["tokens"])
        return None

    async def _list_schedulable_workers(self) -> list[Any]:
        """Return the schedulable workers; empty if no selector answers."""
        with contextlib.suppress(SelectorError):
            workers = await self._selector.workers(self._model)
            return [worker for worker in workers if worker.lifecycle == "schedulable"]
        return []

    async def _start_answer(self, path: str, body: Fields) -> tuple[AsyncLease, EngineResponse]:
        """Return the response of the first engine that answers. Raises GatewayError."""
        prompt = await self._build_prompt_fields(path, body)
        failed: list[int] = []
        last_error = EngineError("no engine was tried")
        for _ in range(ATTEMPTS_MAX):
            lease = await self._acquire_lease(prompt, failed, body)
            try:
                return lease, await self._send_request(lease, path, body)
            except EngineError as error:
                failed.append(lease.worker_id)
                lease.end(None) if error.busy_response else lease.failed(str(error))
                last_error = error
            except BaseException:
                lease.end(None)
                raise
        if last_error.busy_response:
            raise GatewayError(last_error.busy_response)
        raise make_error(502, f"{ATTEMPTS_MAX} engines failed, retry later: {last_error}")

    async def _acquire_lease(
        self, prompt: Fields, failed: Sequence[int], body: Fields
    ) -> AsyncLease:
        """Return a lease that avoids failed workers while others exist."""
        fields = dict(prompt)
        if isinstance(max_tokens := body.get("max_tokens"), int) and max_tokens > 0:
            fields["expected_output_tokens"] = max_tokens
        try:
            if failed:
                worker_ids = [each.worker_id for each in await self._list_schedulable_workers()]
                others = [worker_id for worker_id in worker_ids if worker_id not in failed]
                fields |= {"allowed_worker_ids": others} if others else {}
            return await self._selector.begin(**fields)
        except Refused as error:
            headers = {} if (s := error.retry_after_s) is None else {"retry-after": f"{s:.0f}"}
            raise make_error(error.status, error.text, headers) from error
        except Unavailable as error:
            raise make_error(503, str(error), {"retry-after": "1"}) from error

    async def _send_request(self, lease: AsyncLease, path: str, body: Fields) -> EngineResponse:
        """Send the request to the leased engine. Raises EngineError, GatewayError."""
        headers = {"x-data-parallel-rank": str(lease.dp_rank)}
        url = f"{lease.endpoint.rstrip('/')}{path}"
        request = self._engines.build_request("POST", url, json=body, headers=headers)
        try:
            response = await self._engines.send(request, stream=True)
            if response.status_code == 200 and body.get("stream"):
                lines = response.aiter_lines()
                return EngineResponse(response, await read_first_event(lines), lines)
            content = await response.aread()
        except httpx.HTTPError as error:
            raise EngineError(f"{type(error).__name__}: {error}") from error
        status = response.status_code
        if status == 200:
            return EngineResponse(response, content.decode(), response.aiter_lines())
        names = [name for name in FORWARDED_HEADERS if name in response.headers]
        refusal = Response(content, status, {name: response.headers[name] for name in names})
        if status in BUSY_STATUSES or status >= 500:
            raise EngineError(f"status {status}", refusal if status in BUSY_STATUSES else None)
        raise GatewayError(refusal)


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of the work, or cancel the work when the client disconnects."""
    # After the request body, `receive` can only return a disconnect.
    task, disconnect = asyncio.create_task(work), asyncio.create_task(request.receive())
    try:
        await asyncio.wait((task, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise GatewayError(Response(status_code=499))  # no client reads this response
    finally:
        task.cancel()
        disconnect.cancel()


class LeasedStream(StreamingResponse):
    """Streaming response that ends the lease, also if the client left before the first byte."""

    def __init__(self, lease: AsyncLease, response: EngineResponse) -> None:
        super().__init__(relay_events(lease, response), media_type="text/event-stream")
        self._lease, self._http_response = lease, response.http_response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._lease.end(None)  # no effect if the lease has ended
            await self._http_response.aclose()


async def read_first_event(lines: AsyncIterator[str]) -> str:
    async for line in lines:
        if line.startswith("data:"):
            return line
    raise EngineError("the stream ended before the first event")


async def relay_events(lease: AsyncLease, response: EngineResponse) -> AsyncIterator[bytes]:
    """Yield the events of the engine and end the lease."""
    line, is_done = response.first, False
    try:
        while not is_done:
            if line.startswith("data:"):
                is_done = line.endswith("[DONE]")
                lease.tokens(0 if is_done else count_event_tokens(line.removeprefix("data:")))
            yield line.encode() + b"\n"
            line = "" if is_done else await anext(response.lines)
        yield b"\n"
        lease.end()
    except (httpx.HTTPError, StopAsyncIteration) as error:
        lease.failed(type(error).__name__)
        is_end = isinstance(error, StopAsyncIteration)
        reason = "the stream ended before [DONE]" if is_end else str(error) or type(error).__name__
        payload = {"error": {"message": f"the engine failed: {reason}", "code": 502}}
        yield b"data: " + json.dumps(payload).encode() + b"\n\n"


def count_event_tokens(event: str) -> int:
    """Return the tokens of an event: the reported ids, or 1 for each choice with content."""
    with contextlib.suppress(ValueError, AttributeError, TypeError):
        choices = json.loads(event).get("choices") or []
        return sum(len(choice.get("token_ids") or ()) or has_content(choice) for choice in choices)
    return 0


def has_content(choice: Fields) -> bool:
    delta = choice.get("delta") or choice
    return any(delta.get(name) for name in ("text", "content", "reasoning_content", "tool_calls"))


def read_completion_tokens(answer: str) -> int:
    """Return the number of output tokens of a whole answer."""
    with contextlib.suppress(ValueError, AttributeError, TypeError):
        return int(json.loads(answer)["usage"]["completion_tokens"])
    return 0


async def read_body(request: Request) -> Fields:
    """Return the request body. Raises GatewayError."""
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > BODY_BYTES_MAX:
            raise make_error(413, f"the body exceeds {BODY_BYTES_MAX} bytes: send less input")
    with contextlib.suppress(ValueError):
        if isinstance(body := json.loads(content), dict):
            return body
    raise make_error(400, "the body is not a JSON object: send OpenAI's request fields as JSON")


def main() -> None:
    parser = argparse.ArgumentParser(description="OpenAI-compatible gateway")
    parser.add_argument("--selector", required=True, nargs="+", help="URLs of selectors")
    parser.add_argument("--model", default="default", help="model_name of the workers")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    options = parser.parse_args()
    gateway = Gateway(options)
    routes = [Route(path, gateway.create_completion, methods=["POST"]) for path in PATHS]
    routes.append(Route("/v1/models", gateway.list_models))
    routes.append(Route("/health", lambda request: Response()))
    app = Starlette(routes=routes, lifespan=gateway.lifespan)
    uvicorn.run(app, host=options.host, port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
