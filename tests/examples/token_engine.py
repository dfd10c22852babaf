"""An engine as a separate process: each token is a formula over all tokens before.

So an answer that continues elsewhere, from its prompt and its first tokens, equals the undisturbed
answer. The engine streams as vLLM does, with a pause before each token and without a text where a
token ends within a character. The engine also answers canaries.

    POST /hold {"after": n}     streams stop after n tokens, and whole chats too, until POST /go
    POST /fail {"after": n, "by": kind}     streams end after n tokens, by kind: "abort" or
                                "error" as vLLM does, or "nothing"; {"status": s}: no stream begins
    GET /streams                number of running streams
    GET /transfers              numbers of prompts computed for other engines, and fetched from them

Prefill and decode are separate, as in vLLM's NixlConnector: a request with `do_remote_decode` gets
`kv_transfer_params` in the reply, and the state after the prompt is kept for the engine that gets
these parameters. That engine fetches the state and does not read the prompt. With `--no-prefill` an
engine refuses prompts without a state.
"""

import argparse
import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice
from typing import Any

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

VOCAB = 1000
PAUSE_S = 0.002


def generated(tokens: list[int]) -> Iterator[int]:
    """Yield the tokens that follow, without an end."""
    return generated_from(state_after(tokens))


def state_after(tokens: list[int]) -> int:
    """Return the state after a prompt, which is all that the engine needs of the prompt."""
    state = 1
    for token in tokens:
        state = _after(state, token)
    return state


def generated_from(state: int) -> Iterator[int]:
    while True:
        token = (state >> 20) % VOCAB
        yield token
        state = _after(state, token)


def _after(state: int, token: int) -> int:
    return (state * 6364136223846793005 + token + 1442695040888963407) % 2**64


def ids_of(prompt: list[int] | str) -> list[int]:
    return list(prompt.encode()) if isinstance(prompt, str) else prompt


def text_in(body: dict[str, Any]) -> str:
    """Return the text of a prompt or of messages."""
    messages = body.get("messages")
    return body["prompt"] if messages is None else "".join(each["content"] for each in messages)


def texts_of(tokens: Iterable[int]) -> Iterator[str]:
    """Yield the text of each token; some tokens only begin a character, so their text is empty."""
    begun = ""
    for token in tokens:
        text = f"{begun}<{token}>"
        begun = text if token % 3 == 0 else ""
        yield "" if begun else text


def text_of(tokens: Iterable[int]) -> str:
    """Return the text of all tokens, without an incomplete character at the end."""
    return "".join(texts_of(tokens))


class TokenEngine:
    """All streams of this process."""

    def __init__(self, port: int = 0, *, has_prefill: bool = True) -> None:
        """Start without streams.

        has_prefill: whether the engine computes prompts
        """
        self._port, self._has_prefill = port, has_prefill
        self._kept: dict[str, int] = {}
        """States after prompts, for other engines."""
        self._n_kept = self._n_fetched = 0
        self._hold_after: int | None = None
        self._fails: dict[str, Any] = {}
        self._goes = asyncio.Event()
        self._streams = 0

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        if body.get("stream") and "status" in self._fails:
            return JSONResponse({"error": {"message": "failing"}}, self._fails["status"])
        transfer = body.get("kv_transfer_params") or {}
        if transfer.get("do_remote_decode"):
            return await self._prefill(body)
        try:
            state = await self._state_of(body, transfer)
        except LookupError as error:
            return JSONResponse({"error": {"message": str(error)}}, 500)
        if body.get("stream"):
            return StreamingResponse(self._stream(body, state), media_type="text/event-stream")
        tokens = list(islice(generated(ids_of(body["prompt"])), body["max_tokens"]))
        choice = self._choice(body, tokens, text_of(tokens), "length")
        choice["logprobs"] = logprobs(tokens)
        usage = {"prompt_tokens": 1, "completion_tokens": len(tokens), "total_tokens": 1}
        return JSONResponse({**self._read_chunk(choice), "usage": usage})

    async def _prefill(self, body: dict[str, Any]) -> Response:
        """Compute a prompt for an engine that continues; answer as vLLM does."""
        if body["max_tokens"] != 1 or body.get("stream"):
            return JSONResponse({"error": {"message": "one token, in one piece"}}, 400)
        if self._hold_after is not None:
            await self._goes.wait()
        prompt = ids_of(body["prompt"])
        await asyncio.sleep(PAUSE_S)
        name = f"cmpl-{os.getpid()}-{self._n_kept}"
        self._n_kept += 1
        self._kept[name] = state_after(prompt)
        (token,) = islice(generated(prompt), 1)
        answer = self._read_chunk(self._choice(body, [token], text_of([token]), "length"))
        passed = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(1 + len(prompt) // 16))],
            "remote_engine_id": str(os.getpid()),
            "remote_request_id": name,
            "remote_host": "127.0.0.1",
            "remote_port": self._port,
            "tp_size": 1,
        }
        return JSONResponse({**answer, "kv_transfer_params": passed})

    async def _state_of(self, body: dict[str, Any], transfer: dict[str, Any]) -> int:
        """Return the state of a prompt. Raises LookupError if the state is not available."""
        if not transfer.get("do_remote_prefill"):
            if not self._has_prefill:
                raise LookupError("this engine computes no prompts: give kv_transfer_params")
            return state_after(ids_of(body["prompt"]))
        url = f"http://{transfer['remote_host']}:{transfer['remote_port']}"
        try:
            place = f"{url}/kept/{transfer['remote_request_id']}"
            async with aiohttp.ClientSession() as http, http.get(place) as answer:
                answer.raise_for_status()
                state: int = (await answer.json())["state"]
        except aiohttp.ClientError as error:
            raise LookupError(f"the blocks did not arrive: {error}") from error
        self._n_fetched += 1
        return state

    async def hand_over_state(self, request: Request) -> Response:
        """Return the state of a prompt, only once."""
        state = self._kept.pop(request.path_params["name"], None)
        return JSONResponse({"state": state}, 404 if state is None else 200)

    async def transfers(self, request: Request) -> Response:
        return JSONResponse({"computed": self._n_kept, "fetched": self._n_fetched})

    async def chat(self, request: Request) -> Response:
        """Answer a chat; the prompt is the content of all messages."""
        body = await request.json()
        told = {**body, "prompt": text_in(body), "return_token_ids": False}
        if body.get("stream"):
            return StreamingResponse(self._chat_stream(told), media_type="text/event-stream")
        if self._hold_after is not None:
            await self._goes.wait()
        tokens = list(islice(generated(ids_of(told["prompt"])), body["max_tokens"]))
        message = {"role": "assistant", "content": text_of(tokens)}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        usage = {"prompt_tokens": 1, "completion_tokens": len(tokens), "total_tokens": 1}
        return JSONResponse(
            {**self._read_chunk(choice), "object": "chat.completion", "usage": usage}
        )

    async def _chat_stream(self, body: dict[str, Any]) -> AsyncIterator[str]:
        async for event in self._stream(body):
            data = event.removeprefix("data: ").strip()
            if data == "[DONE]":
                yield event
                continue
            chunk = json.loads(data)
            for choice in chunk["choices"]:
                choice["delta"] = {"content": choice.pop("text")}
            yield f"data: {json.dumps({**chunk, 'object': 'chat.completion.chunk'})}\n\n"

    async def tokenize(self, request: Request) -> Response:
        ids = ids_of(text_in(await request.json()))
        return JSONResponse({"tokens": ids, "count": len(ids)})

    async def _stream(self, body: dict[str, Any], state: int | None = None) -> AsyncIterator[str]:
        self._streams += 1
        try:
            prompt, count = ids_of(body["prompt"]), body["max_tokens"]
            if state is None:
                state = state_after(prompt)
            tokens = list(islice(generated_from(state), count))
            for number, (token, text) in enumerate(zip(tokens, texts_of(tokens), strict=True)):
                if self._hold_after == number:
                    await self._goes.wait()
                if self._fails.get("after") == number:
                    yield self._last(body)
                    return
                await asyncio.sleep(PAUSE_S)
                reason = "length" if number == count - 1 else None
                choice = self._choice(body, [token], text, reason)
                if number == 0:
                    choice["prompt_token_ids"] = prompt
                yield f"data: {json.dumps(self._read_chunk(choice))}\n\n"
            yield "data: [DONE]\n\n"
        finally:
            self._streams -= 1

    def _last(self, body: dict[str, Any]) -> str:
        """Return the last chunk of a stream that fails."""
        if self._fails["by"] == "nothing":
            return "data: [DONE]\n\n"
        error = {"error": {"message": "EngineCore encountered an issue", "code": 500}}
        is_abort = self._fails["by"] == "abort"
        last = self._read_chunk(self._choice(body, [], "", "abort")) if is_abort else error
        return f"data: {json.dumps(last)}\n\n"

    def _choice(
        self, body: dict[str, Any], tokens: list[int], text: str, reason: str | None
    ) -> dict[str, Any]:
        ids = tokens if body.get("return_token_ids") else None
        return {"index": 0, "text": text, "finish_reason": reason, "token_ids": ids}

    def _read_chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        head = {"id": f"cmpl-{os.getpid()}", "object": "text_completion", "created": 1}
        return {**head, "model": "m", "choices": [choice]}

    async def hold(self, request: Request) -> Response:
        self._hold_after = (await request.json())["after"]
        self._goes.clear()
        return Response()

    async def run_course(self, request: Request) -> Response:
        self._hold_after = None
        self._goes.set()
        return Response()

    async def fail(self, request: Request) -> Response:
        self._fails = await request.json()
        return Response()

    async def streams(self, request: Request) -> Response:
        return JSONResponse(self._streams)

    async def health(self, request: Request) -> Response:
        return Response()


def logprobs(tokens: list[int]) -> dict[str, list[Any]]:
    names = [f"token_id:{token}" for token in tokens]
    return {
        "tokens": names,
        "token_logprobs": [-0.5] * len(tokens),
        "top_logprobs": [{name: -0.5} for name in names],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--no-prefill", action="store_true")
    given = parser.parse_args()
    port = given.port
    engine = TokenEngine(port, has_prefill=not given.no_prefill)
    routes = [
        Route("/v1/completions", engine.complete, methods=["POST"]),
        Route("/v1/chat/completions", engine.chat, methods=["POST"]),
        Route("/tokenize", engine.tokenize, methods=["POST"]),
        Route("/hold", engine.hold, methods=["POST"]),
        Route("/go", engine.run_course, methods=["POST"]),
        Route("/fail", engine.fail, methods=["POST"]),
        Route("/streams", engine.streams),
        Route("/transfers", engine.transfers),
        Route("/kept/{name}", engine.hand_over_state),
        Route("/health", engine.health),
    ]
    uvicorn.run(Starlette(routes=routes), host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
