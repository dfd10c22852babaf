r"""Gateway that hides the loss of an engine from clients.

    cd docs/examples/surviving_gateway
    python gateway.py --selector http://selector:8092 --port 8080 --model qwen
    curl -N localhost:8080/v1/completions -H 'content-type: application/json' \
      -d '{"prompt": [1, 2, 3], "max_tokens": 200, "stream": true}'

For each request the gateway reserves a rank, streams from the engine (vLLM or SGLang, OpenAI's
completions with `return_token_ids`), reports the result, and forwards the stream. When the engine
dies, stalls, answers 5xx or is drained, the answer continues on another engine, even within a word,
and the client sees a single stream; `gateway_answer.py` does this. Start the service with
`--health-checks on`: otherwise broken streams continue elsewhere, but no stream moves in advance.

With `--pairs auto`, where that is cheaper, a prefill engine computes the prompt and a decode engine
the answer. If the prefill engine fails, the prefill leg moves to another engine; if the decode
engine fails, the answer continues with a new pair.

Clients also receive refusals of the service (503 with `retry-after` when the fleet is full),
refusals of the engine (4xx), and 502 after repeated engine failures. An error in a begun stream is
an event `{"error": ...}` without `[DONE]`. A disconnect frees the reservation at once.

Differences from an undisturbed answer: with a temperature above 0 the rest is sampled again (from
the right distribution); penalties count earlier output as prompt; a stop string across the border
is missed; `text_offset` restarts. Requests with a grammar or schema are not continued, and several
answers to a prompt are refused. The load alone decides where a text prompt runs, because only token
ids identify cached blocks.

Environment: SELECTOR_API_KEY is the key of the roles caller and metrics (without metrics an engine
has a minute for its first token), SSL_CERT_FILE the CA of https URLs. Needs aiohttp, starlette,
uvicorn and the extra `client`.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import uvicorn
from gateway_answer import Answer, TimeLimits, merge_choice
from gateway_engine import CONNECT_S_MAX
from gateway_patience import DEFAULT_LIMIT_S, FirstTokenLimits
from gateway_selector import GatewayError, Rank, Selector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

ANSWERS_MAX = 4096
"""Concurrent answers of the process."""
ANSWER_S_MAX = 3600.0
BODY_BYTES_MAX = 8 << 20
SHUTDOWN_S = 30
MAX_TOKENS = 16
"""Default of OpenAI's interface."""
ONE_ANSWER = {"n": 1, "best_of": 1, "echo": False, "suffix": None, "use_beam_search": False}


class Gateway:
    """State shared by all answers of this process."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._limits = TimeLimits(DEFAULT_LIMIT_S, options.stall_secs, options.move_secs)
        self._live_answers: dict[str, Answer] = {}
        self._n_answers = 0
        self._release_tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S_MAX)
        # A new connection per request: an engine that closes idle connections has not failed.
        to_engines = aiohttp.TCPConnector(limit=0, force_close=True)
        to_selector = aiohttp.TCPConnector(limit=0)
        key = os.environ.get("SELECTOR_API_KEY")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        async with (
            aiohttp.ClientSession(connector=to_engines, timeout=timeout) as self._engines,
            aiohttp.ClientSession(connector=to_selector, headers=headers) as http,
        ):
            self._selector = Selector(http, self._options.selector, self._options.pairs)
            first_token_s = self._options.first_token_secs
            self._first_token_limits = FirstTokenLimits(self._selector, first_token_s)
            follow_moves = self._selector.follow_moves(self._handle_move, self._handle_gap)
            follow_observations = self._first_token_limits.follow_observations()
            tasks = [asyncio.create_task(work) for work in (follow_moves, follow_observations)]
            yield
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, *self._release_tasks, return_exceptions=True)

    def _handle_move(self, event: Mapping[str, Any]) -> None:
        reservation_id, target = event["reservation_id"], event["to"]
        answer = self._live_answers.get(reservation_id)
        if answer is not None and target is not None:  # without a target, the request does not move
            answer.note_move(reservation_id, Rank.from_record(target), event["method"])

    def _handle_gap(self) -> None:
        for answer in list(self._live_answers.values()):
            answer.query_rank()

    async def create_completion(self, request: Request) -> "Response | AnswerResponse":
        """Answer POST /v1/completions."""
        try:
            if self._n_answers >= ANSWERS_MAX:
                raise GatewayError.from_message(503, f"limit of {ANSWERS_MAX} requests: retry", "1")
            payload = validate_body(await read_body(request), self._options.model)
        except GatewayError as error:
            return render_error(error)
        first_token_s = self._first_token_limits.get_limit_s(payload["model"])
        limits = self._limits._replace(first_token_s=first_token_s)
        answer = Answer(payload, self._selector, self._engines, limits, self._live_answers)
        self._n_answers += 1
        return AnswerResponse(self, answer, payload)

    def release_answer(self, answer: Answer) -> None:
        """End a complete, failed or abandoned answer."""
        self._n_answers -= 1
        task = asyncio.create_task(answer.end())
        self._release_tasks.add(task)
        task.add_done_callback(self._release_tasks.discard)


class AnswerResponse:
    """ASGI response that sends an answer to the client, whole or as a stream."""

    def __init__(self, gateway: Gateway, answer: Answer, payload: Mapping[str, Any]) -> None:
        self._gateway, self._answer, self._payload = gateway, answer, payload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send_answer(scope, receive, send))
        disconnect = asyncio.create_task(wait_for_disconnect(receive))
        tasks = (sending, disconnect)
        try:
            await asyncio.wait(tasks, timeout=ANSWER_S_MAX, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sending.cancel()
            disconnect.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._gateway.release_answer(self._answer)
        if not sending.cancelled():
            sending.result()

    async def _send_answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            first = await self._answer.next_chunk()
            whole = None if self._payload.get("stream") else await self._collect_answer(first)
        except GatewayError as error:
            await render_error(error)(scope, receive, send)
            return
        if whole is not None:
            await JSONResponse(whole)(scope, receive, send)
            return
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send_stream(first, send)

    async def _send_stream(self, chunk: Mapping[str, Any] | None, send: Send) -> None:
        last = b"[DONE]"
        try:
            while chunk is not None:
                await send(make_event(json.dumps(chunk).encode(), more=True))
                chunk = await self._answer.next_chunk()
        except GatewayError as error:
            last = error.render_event()
        await send(make_event(last, more=False))

    async def _collect_answer(self, chunk: dict[str, Any] | None) -> dict[str, Any]:
        """Return the whole answer for clients without streaming."""
        assert chunk is not None
        (whole,) = chunk["choices"]
        while (more := await self._answer.next_chunk()) is not None:
            for choice in more["choices"]:
                merge_choice(whole, choice)
        return chunk | {"choices": [whole], "usage": self._answer.count_usage()}


def make_event(data: bytes, more: bool) -> Message:
    return {"type": "http.response.body", "body": b"data: %s\n\n" % data, "more_body": more}


def render_error(error: GatewayError) -> Response:
    headers = {} if error.retry_after is None else {"retry-after": error.retry_after}
    return Response(error.content, error.status, headers, "application/json")


async def wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def read_body(request: Request) -> Any:
    """Return the request body. Raises GatewayError."""
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > BODY_BYTES_MAX:
            message = f"the body exceeds {BODY_BYTES_MAX} bytes: send a shorter prompt"
            raise GatewayError.from_message(413, message)
    try:
        return json.loads(content)
    except ValueError as error:
        raise GatewayError.from_message(400, f"the body is not JSON: {error}") from error


def validate_body(body: Any, model: str) -> dict[str, Any]:
    """Return a request that another engine could continue. Raises GatewayError."""
    if not isinstance(body, dict):
        raise GatewayError.from_message(400, "the body is not a JSON object")
    payload = {"model": model, "max_tokens": MAX_TOKENS, **body}
    prompt, max_tokens = payload.get("prompt"), payload["max_tokens"]
    is_ids = isinstance(prompt, list) and all(type(token) is int for token in prompt)
    if not prompt or not (is_ids or isinstance(prompt, str)):
        raise GatewayError.from_message(400, "prompt: send a text or a list of token ids")
    if type(max_tokens) is not int or max_tokens < 1:
        raise GatewayError.from_message(400, "max_tokens: send an integer above 0")
    for name, value in ONE_ANSWER.items():
        if payload.get(name, value) not in (value, None):
            message = f"{name} is not supported: send {json.dumps(value)} or omit the field"
            raise GatewayError.from_message(400, message)
    return payload


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_flag = parser.add_argument
    add_flag("--selector", required=True, help="URL of the selection service")
    add_flag("--host", default="127.0.0.1")
    add_flag("--port", type=int, default=8080, help="0: any; printed as the first line of output")
    add_flag("--model", default="default", help="model of requests without `model`")
    first_token = (
        "time limit of the first token (default: the larger of ten times the observed median and "
        "twice the 99th percentile, 2 to 600 s; 60 s without samples)"
    )
    add_flag("--first-token-secs", type=float, help=first_token)
    pairs = "prefill and decode on two engines: `auto`: where cheaper, `never`: always"
    add_flag("--pairs", choices=["off", "auto", "never"], default="off", help=pairs)
    # With the wait for a move and the new first token, clients wait less than 15 s.
    add_flag("--stall-secs", type=float, default=8.0, help="time limit between two tokens")
    move = "wait of a broken answer for a move by the service"
    add_flag("--move-secs", type=float, default=1.0, help=move)
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    gateway = Gateway(options)
    app = Starlette(
        routes=[
            Route("/v1/completions", gateway.create_completion, methods=["POST"]),
            Route("/health", lambda request: Response(), methods=["GET"]),
        ],
        lifespan=gateway.lifespan,
    )
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=SHUTDOWN_S)
    with socket.create_server((options.host, options.port), backlog=2048) as listener:
        print(listener.getsockname()[1], flush=True)
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
