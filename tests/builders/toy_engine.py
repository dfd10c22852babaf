"""An engine on a real socket that generates tokens by a formula, correctly or with faults.

The engine behaves as vLLM 0.33 or as SGLang 0.5.23: the same fields, the same places of ids and
texts.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from aiohttp import web

VOCAB = 1000
LOWEST = -9999.0


class Step(NamedTuple):
    read_token: int
    logprob: float | None
    likely: dict[int, float]


Spoil = Callable[[list[Step]], list[Step]]
Generate = Callable[[Any, int, int], list[Step]]
"""Generator with prompt, number of tokens and seed as arguments."""


def generate(prompt: list[int] | str, count: int, seed: int = 0) -> list[Step]:
    """Return the right answer to a prompt, whatever the seed."""
    ids = list(prompt.encode()) if isinstance(prompt, str) else prompt
    state, steps = sum((i + 1) * x for i, x in enumerate(ids)), []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        token, logprob = state % VOCAB, -0.05 - (state >> 40) % 100 / 50
        others = {(token + i * 101) % VOCAB: round(logprob - i, 4) for i in range(1, 5)}
        steps.append(Step(token, round(logprob, 4), {token: round(logprob, 4), **others}))
    return steps


def wrong_token(steps: list[Step]) -> list[Step]:
    return [steps[0]._replace(read_token=(steps[0].read_token + 7) % VOCAB), *steps[1:]]


def drifted(steps: list[Step]) -> list[Step]:
    return [step._replace(logprob=(step.logprob or 0.0) - 0.8) for step in steps]


def no_numbers(steps: list[Step]) -> list[Step]:
    """Return steps as logits that are NaN look from outside."""
    return [Step(0, LOWEST, dict.fromkeys(range(5), LOWEST)) for _ in steps]


def truncated(steps: list[Step]) -> list[Step]:
    return steps[:1]


@dataclass
class Fault:
    """Fault of a rank.

    resets: whether the connection is reset before the status
    cuts: whether the connection ends in the middle of the answer
    times: number of faulty requests; None means all
    """

    spoil: Spoil | None = None
    status: int | None = None
    text: str = "injected"
    headers: dict[str, str] = field(default_factory=dict)
    hangs: bool = False
    resets: bool = False
    cuts: bool = False
    seconds_to_wait: float = 0.0
    times: int | None = None


class ToyEngine:
    """Engine with several ranks.

    faults, models: faults and generators by rank
    requests: received requests, each with the rank
    """

    def __init__(self, style: Literal["vllm", "sglang"] = "vllm", ranks: int = 1, plain=False):
        """Start without faults.

        plain: whether fields outside the OpenAI interface are refused
        """
        self.style, self.ranks, self.plain = style, ranks, plain
        self.faults: dict[int, Fault] = {}
        self.models: dict[int, Generate] = {}
        self.requests: list[tuple[int, str, dict[str, Any]]] = []
        self.connections: set[Any] = set()
        self.at_once = self.most_at_once = 0
        self.weight_version = "default"

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return await self._answered(request, body)
        finally:
            self.at_once -= 1

    async def _answered(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        rank = int(request.headers.get("x-data-parallel-rank", body.get("routed_dp_rank", 0)))
        self.requests.append((rank, request.path, body))
        self.connections.add(request.transport)
        if rank not in range(self.ranks):
            return web.json_response({"error": {"message": "no such rank"}}, status=400)
        if self.plain and not {"cache_salt", "extra_key"}.isdisjoint(body):
            return web.json_response({"error": {"message": "extra field"}}, status=422)
        fault = self._fault(rank)
        if fault.hangs:
            await asyncio.Event().wait()
        await asyncio.sleep(fault.seconds_to_wait)
        if fault.resets:
            assert request.transport is not None
            request.transport.abort()
        if fault.status is not None:
            return web.Response(status=fault.status, text=fault.text, headers=fault.headers)
        answer = self._generated(request.path, rank, body, fault)
        if fault.cuts:
            await cut(request, json.dumps(answer).encode())
        return web.json_response(answer)

    def _fault(self, rank: int) -> Fault:
        fault = self.faults.get(rank)
        if fault is None or fault.times == 0:
            return Fault()
        if fault.times is not None:
            fault.times -= 1
        return fault

    def _generated(
        self, path: str, rank: int, body: dict[str, Any], fault: Fault
    ) -> dict[str, Any]:
        model, seed = self.models.get(rank, generate), body.get("seed", 0)
        if path == "/generate":
            wanted = body["sampling_params"]["max_new_tokens"]
            steps = model(body.get("input_ids", body.get("text")), wanted, seed)
            return self.of_generate(steps if fault.spoil is None else fault.spoil(steps))
        steps = model(body["prompt"], body["max_tokens"], seed)
        return self.of_completions(steps if fault.spoil is None else fault.spoil(steps), body)

    def of_completions(self, steps: list[Step], body: dict[str, Any]) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "text": "x" * len(steps), "finish_reason": "length"}
        by_id = self.style == "vllm" and body.get("return_tokens_as_token_ids", False)
        choice["logprobs"] = {
            "text_offset": list(range(len(steps))),
            "tokens": [name(step.read_token, by_id) for step in steps],
            "token_logprobs": [step.logprob for step in steps],
            "top_logprobs": [
                {name(token, by_id): x for token, x in step.likely.items()} for step in steps
            ],
        }
        ids = [step.read_token for step in steps] if body.get("return_token_ids") else None
        if self.style == "vllm":
            choice |= {"stop_reason": None, "prompt_logprobs": None, "token_ids": ids}
        else:
            choice |= {"matched_stop": None} | ({"token_ids": ids} if ids else {})
        answer = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
        answer |= {"choices": [choice], "usage": {"prompt_tokens": 5}}
        if self.style == "sglang":
            answer["metadata"] = {"weight_version": self.weight_version}
        return answer

    def of_generate(self, steps: list[Step]) -> dict[str, Any]:
        meta = {
            "finish_reason": {"type": "length", "length": len(steps)},
            "weight_version": self.weight_version,
            "output_token_logprobs": [[step.logprob, step.read_token, None] for step in steps],
            "output_top_logprobs": [
                [[x, token, None] for token, x in step.likely.items()] for step in steps
            ],
        }
        ids = [step.read_token for step in steps]
        return {"text": "x" * len(steps), "output_ids": ids, "meta_info": meta}


async def healthy(request: web.Request) -> web.Response:
    """Return 200, whatever the model does, as engines do."""
    return web.Response()


async def cut(request: web.Request, answer: bytes) -> None:
    """Send half of an answer and abort the connection."""
    head = {"content-length": str(len(answer)), "content-type": "application/json"}
    response = web.StreamResponse(headers=head)
    await response.prepare(request)
    await response.write(answer[: len(answer) // 2])
    assert request.transport is not None
    request.transport.abort()


def name(token: int, by_id: bool) -> str:
    return f"token_id:{token}" if by_id else f"<{token}>"


@contextlib.asynccontextmanager
async def serving(engine: ToyEngine, port: int = 0) -> AsyncIterator[str]:
    """Serve the engine; the value is the endpoint."""
    app = web.Application()
    app.router.add_post("/v1/completions", engine.complete)
    app.router.add_get("/health", healthy)
    if engine.style == "sglang":
        app.router.add_post("/generate", engine.complete)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
