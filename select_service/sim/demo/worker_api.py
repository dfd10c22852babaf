"""HTTP API of simulated workers, in the form of vLLM's, for tools that query an engine.

A prompt over HTTP passes through the cache of its rank at once, without any virtual time.
"""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import numpy as np
from aiohttp import web
from msgspec import Meta

from select_service.sim.demo.conversations import VOCABULARY
from select_service.sim.engine.block_catalog import Tokens
from select_service.sim.engine.prefix_cache import KvEvent, PrefixCache

HOST = "127.0.0.1"
BODY_BYTES_MAX = 8 << 20
TOKENS_MAX = 4096
"""Longest answer, in tokens."""
RANK_HEADER = "x-data-parallel-rank"
KvEventsConfig = dict[str, Any]


class _Completion(msgspec.Struct):
    """Fields of POST /v1/completions that are used."""

    prompt: list[Annotated[int, Meta(ge=0, lt=1 << 32)]] | str
    model: str = ""
    max_tokens: Annotated[int, Meta(ge=1, le=TOKENS_MAX)] = 16


class WorkerApi:
    """HTTP server of a worker and its ranks.  Close it once.

    caches: caches of the ranks
    emit: receives the KV events of a rank, by its number in the worker
    """

    def __init__(
        self,
        model_name: str,
        caches: list[PrefixCache],
        emit: Callable[[int, list[KvEvent]], None],
        kv_events: KvEventsConfig,
        batch_tokens: int,
    ) -> None:
        self._model_name = model_name
        self._caches = caches
        self._emit = emit
        self._kv_events = kv_events
        self._batch_tokens = batch_tokens
        self._answered = 0
        application = web.Application(client_max_size=BODY_BYTES_MAX)
        application.add_routes(
            [
                web.get("/health", self._get_health),
                web.get("/v1/models", self._get_models),
                web.get("/metrics", self._get_metrics),
                web.get("/server_info", self._get_server_info),
                # The only route that changes a cache.
                web.post("/v1/completions", self._post_completions),
            ]
        )
        # No access log: health checks would flood the terminal.
        self._runner = web.AppRunner(application, access_log=None)

    async def start_listening(self) -> str:
        """Listen on a free port and return the URL."""
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, 0).start()
        return f"http://{HOST}:{self._runner.addresses[0][1]}"

    async def close(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()

    async def _get_health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _get_models(self, request: web.Request) -> web.Response:
        card = {"id": self._model_name, "object": "model", "owned_by": "vllm"}
        return web.json_response({"object": "list", "data": [card]})

    async def _get_metrics(self, request: web.Request) -> web.Response:
        blocks = sum(cache.pool.places for cache in self._caches)
        labels = f'block_size="{self._caches[0].catalog.block_size}",num_gpu_blocks="{blocks}"'
        lines = ["# TYPE vllm:cache_config_info gauge"]
        lines += [
            f'vllm:cache_config_info{{{labels},engine="{n}"}} 1.0' for n in range(len(self._caches))
        ]
        return web.Response(text="\n".join([*lines, ""]))

    async def _get_server_info(self, request: web.Request) -> web.Response:
        config = {
            "cache_config": {"block_size": self._caches[0].catalog.block_size},
            "parallel_config": {"data_parallel_size": len(self._caches)},
            "scheduler_config": {"max_num_batched_tokens": self._batch_tokens},
            "kv_events_config": self._kv_events,
        }
        return web.json_response({"vllm_config": config})

    async def _post_completions(self, request: web.Request) -> web.Response:
        rank = request.headers.get(RANK_HEADER, "0")
        if not rank.isdecimal() or not 0 <= int(rank) < len(self._caches):
            return _error_response(
                400, f"{RANK_HEADER}: expected a rank of this worker, got {rank}"
            )
        try:
            asked = msgspec.json.decode(await request.read(), type=_Completion)
        except msgspec.MsgspecError as error:
            return _error_response(400, str(error))
        prompt = _token_array(asked.prompt)
        answer = _answer_tokens(prompt, asked.max_tokens)
        # A prompt without room would wait in a real engine; here the caller gets 503.
        if not len(prompt) or not self._pass_through_cache(int(rank), prompt, answer):
            return _error_response(
                503 if len(prompt) else 400, "the prompt is empty or does not fit into the cache"
            )
        self._answered += 1
        choice = {
            "index": 0,
            "text": " (simulated)",
            "token_ids": answer.tolist(),
            "finish_reason": "length",
            "stop_reason": None,
        }
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(answer)}
        name = f"cmpl-{self._answered}"
        return web.json_response(
            {
                "id": name,
                "object": "text_completion",
                "model": self._model_name,
                "choices": [choice],
                "usage": usage | {"total_tokens": len(prompt) + len(answer)},
            }
        )

    def _pass_through_cache(self, rank: int, prompt: Tokens, answer: Tokens) -> bool:
        """Pass a request through the cache of a rank; False means no room."""
        cache = self._caches[rank]
        if not cache.cache_tokens(np.concatenate([prompt, answer])):
            return False
        self._emit(rank, cache.take_events())
        return True


def _token_array(prompt: list[int] | str) -> Tokens:
    """Return the token ids; a text has a token for each of its bytes."""
    ids = list(prompt.encode()) if isinstance(prompt, str) else prompt
    return np.array(ids, np.uint32)


def _answer_tokens(prompt: Tokens, count: int) -> Tokens:
    """Return an answer that depends on the prompt alone."""
    first = int(prompt.sum(dtype=np.uint64)) % VOCABULARY
    return (np.arange(first, first + count) % VOCABULARY + 1).astype(np.uint32)


def _error_response(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "code": status}}, status=status)
