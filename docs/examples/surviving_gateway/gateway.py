r"""Gateway whose clients do not notice the loss of an engine.

    cd docs/examples/surviving_gateway
    python gateway.py --selector http://selector:8092 --port 8080 --model qwen
    curl -N localhost:8080/v1/completions -H 'content-type: application/json' \
      -d '{"prompt": [1, 2, 3], "max_tokens": 200, "stream": true}'

For each request it books a rank, streams from its engine (vLLM or SGLang, OpenAI's completions with
`return_token_ids`), reports the result, and passes the stream on. When the engine dies, stalls,
answers 5xx or is drained, the answer continues on another one, even within a word, and the client
sees one stream; `gateway_answer.py` does this. Start the service with `--health-checks on`: without
it broken streams continue elsewhere, but nothing moves before it breaks.

With `--pairs auto` one engine computes the prompt and another one the answer, where that is
cheaper. If the first one fails, its leg moves to another engine; if the second one fails, the
answer continues with a new pair.

Clients also get refusals of the service (503 with `retry-after` when the fleet is full), refusals
of the engine (4xx), and 502 after repeated engine failures. An error in a begun stream is an event
`{"error": ...}` without `[DONE]`. A client that leaves frees its reservation at once.

Differences from an undisturbed answer: with a temperature above 0 the rest is drawn anew (from the
right distribution); penalties count earlier output as prompt; a stop string across the border is
missed; `text_offset` restarts. Requests with a grammar or schema are not continued, and several
answers to one prompt are refused. A text prompt is placed by load alone, because only token ids
identify cached blocks.

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
from gateway_answer import Answer, Patience, add
from gateway_engine import CONNECT_S_MAX
from gateway_patience import UNKNOWN_S, FirstTokens
from gateway_selector import NoAnswer, Rank, Selector
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
        self._patience = Patience(UNKNOWN_S, options.stall_secs, options.move_secs)
        self._live: dict[str, Answer] = {}
        self._n_answers = 0
        self._ending: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S_MAX)
        # A new connection per request: an engine that closes idle connections has not failed.
        to_engines = aiohttp.TCPConnector(limit=0, force_close=True)
        to_selector = aiohttp.TCPConnector(limit=0)
        key = os.environ.get("SELECTOR_API_KEY")
        shown = {"authorization": f"Bearer {key}"} if key else {}
        async with (
            aiohttp.ClientSession(connector=to_engines, timeout=timeout) as self._engines,
            aiohttp.ClientSession(connector=to_selector, headers=shown) as http,
        ):
            self._selector = Selector(http, self._options.selector, self._options.pairs)
            self._first_tokens = FirstTokens(self._selector, self._options.first_token_secs)
            following = [
                asyncio.create_task(self._selector.follow(self._moved, self._record_error)),
                asyncio.create_task(self._first_tokens.follow()),
            ]
            yield
            for task in following:
                task.cancel()
            await asyncio.gather(*following, *self._ending, return_exceptions=True)

    def _moved(self, event: Mapping[str, Any]) -> None:
        answer = self._live.get(event["reservation_id"])
        if (
            answer is not None and event["to"] is not None
        ):  # without a target the request stays at its rank
            answer.moved(event["reservation_id"], Rank.of(event["to"]), event["method"])

    def _record_error(self) -> None:
        for answer in list(self._live.values()):
            answer.ask_where()

    async def complete(self, request: Request) -> "Response | Served":
        """Answer POST /v1/completions."""
        try:
            if self._n_answers >= ANSWERS_MAX:
                raise NoAnswer.because(503, f"{ANSWERS_MAX} requests at once", "1")
            wanted = checked(await body_of(request), self._options.model)
        except NoAnswer as refusal:
            return refused(refusal)
        patience = self._patience._replace(
            first_token_s=self._first_tokens.seconds(wanted["model"])
        )
        answer = Answer(wanted, self._selector, self._engines, patience, self._live)
        self._n_answers += 1
        return Served(self, answer, wanted)

    def ends(self, answer: Answer) -> None:
        """End the answer, whatever its result."""
        self._n_answers -= 1
        task = asyncio.create_task(answer.end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


class Served:
    """Answer on its way to the client."""

    def __init__(self, gateway: Gateway, answer: Answer, request: Mapping[str, Any]) -> None:
        self._gateway, self._answer, self._request = gateway, answer, request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serving = asyncio.create_task(self._serve(scope, receive, send))
        leaving = asyncio.create_task(until_left(receive))
        try:
            await asyncio.wait(
                (serving, leaving), timeout=ANSWER_S_MAX, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            serving.cancel()
            leaving.cancel()
            await asyncio.gather(serving, leaving, return_exceptions=True)
            self._gateway.ends(self._answer)
        if not serving.cancelled():
            serving.result()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            first = await self._answer.next()
            whole = None if self._request.get("stream") else await self._whole(first)
        except NoAnswer as refusal:
            await refused(refusal)(scope, receive, send)
            return
        if whole is not None:
            await JSONResponse(whole)(scope, receive, send)
            return
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._stream(first, send)

    async def _stream(self, chunk: Mapping[str, Any] | None, send: Send) -> None:
        last = b"[DONE]"
        try:
            while chunk is not None:
                await send(event(json.dumps(chunk).encode(), more=True))
                chunk = await self._answer.next()
        except NoAnswer as refusal:
            last = refusal.as_event()
        await send(event(last, more=False))

    async def _whole(self, chunk: dict[str, Any] | None) -> dict[str, Any]:
        """Return the whole answer for clients without streaming."""
        assert chunk is not None
        (whole,) = chunk["choices"]
        while (more := await self._answer.next()) is not None:
            for choice in more["choices"]:
                add(whole, choice)
        return chunk | {"choices": [whole], "usage": self._answer.usage()}


def event(data: bytes, more: bool) -> Message:
    return {"type": "http.response.body", "body": b"data: %s\n\n" % data, "more_body": more}


def refused(refusal: NoAnswer) -> Response:
    headers = {} if refusal.retry_after is None else {"retry-after": refusal.retry_after}
    return Response(refusal.content, refusal.status, headers, "application/json")


async def until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def body_of(request: Request) -> Any:
    """Return the request body. Raises NoAnswer."""
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > BODY_BYTES_MAX:
            raise NoAnswer.because(413, f"the body has more than {BODY_BYTES_MAX} bytes")
    try:
        return json.loads(content)
    except ValueError as error:
        raise NoAnswer.because(400, f"the body is no JSON: {error}") from error


def checked(body: Any, model: str) -> dict[str, Any]:
    """Return a request that another engine could continue. Raises NoAnswer."""
    if not isinstance(body, dict):
        raise NoAnswer.because(400, "the body is no object")
    wanted = {"model": model, "max_tokens": MAX_TOKENS, **body}
    prompt, most = wanted.get("prompt"), wanted["max_tokens"]
    is_ids = isinstance(prompt, list) and all(type(token) is int for token in prompt)
    if not prompt or not (is_ids or isinstance(prompt, str)):
        raise NoAnswer.because(400, "prompt: a text or a list of token ids, one of them")
    if type(most) is not int or most < 1:
        raise NoAnswer.because(400, "max_tokens: a number above 0")
    for name, value in ONE_ANSWER.items():
        if wanted.get(name, value) not in (value, None):
            raise NoAnswer.because(400, f"{name}: only {json.dumps(value)} here")
    return wanted


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_flag = parser.add_argument
    add_flag("--selector", required=True, help="URL of the selection service")
    add_flag("--host", default="127.0.0.1")
    add_flag("--port", type=int, default=8080, help="0: any; the first line of output says which")
    add_flag("--model", default="default", help="for requests that name none")
    first = (
        "how long an engine may take for its first token (default: ten times the median that the "
        "service knows, more where some take longer; 2 to 600 s, and 60 s until it knows any)"
    )
    add_flag("--first-token-secs", type=float, help=first)
    pairs = "prefill and decode on two engines: `auto` where that is cheaper, or `never` on one"
    add_flag("--pairs", choices=["off", "auto", "never"], default="off", help=pairs)
    # With the wait for a move and the new first token, clients wait less than 15 s.
    add_flag("--stall-secs", type=float, default=8.0, help="between two tokens")
    move = "how long a broken answer waits for the service to move it"
    add_flag("--move-secs", type=float, default=1.0, help=move)
    return parser.parse_args()


def main() -> None:
    given = options()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    gateway = Gateway(given)
    app = Starlette(
        routes=[
            Route("/v1/completions", gateway.complete, methods=["POST"]),
            Route("/health", lambda request: Response(), methods=["GET"]),
        ],
        lifespan=gateway.lifespan,
    )
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=SHUTDOWN_S)
    with socket.create_server((given.host, given.port), backlog=2048) as listener:
        print(listener.getsockname()[1], flush=True)
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
