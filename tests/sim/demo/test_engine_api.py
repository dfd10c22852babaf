"""Tests of the HTTP endpoints of simulated workers, which resemble those of engines."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from select_service.sim.demo.worker_api import RANK_HEADER, WorkerApi
from select_service.sim.engine.block_catalog import BlockCatalog
from select_service.sim.engine.kv_block_pool import KvBlockPool
from select_service.sim.engine.prefix_cache import KvEvent, PrefixCache, VllmBlockStored

PROMPT = list(range(1, 11))
Emitted = list[tuple[int, list[KvEvent]]]


def with_worker(
    play: Callable[[httpx.AsyncClient, list[PrefixCache], Emitted], Awaitable[None]],
    blocks: int = 8,
) -> None:
    """Run a scene with a worker of two ranks and blocks of four tokens."""

    async def scene() -> None:
        catalog, emitted = BlockCatalog(4), Emitted()
        caches = [PrefixCache(KvBlockPool(0, blocks), catalog, seed) for seed in (0, 7)]
        api = WorkerApi("m", caches, lambda *args: emitted.append(args), {}, 512)
        url = await api.start_listening()
        try:
            async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
                await play(client, caches, emitted)
        finally:
            await api.close()

    asyncio.run(scene())


def test_a_prompt_goes_through_the_cache_of_the_rank_that_is_named() -> None:
    async def play(client: httpx.AsyncClient, caches: list[PrefixCache], emitted: Emitted) -> None:
        body = {"model": "m", "prompt": PROMPT, "max_tokens": 3}
        for _ in range(2):
            answer = await client.post("/v1/completions", json=body, headers={RANK_HEADER: "1"})
            assert answer.status_code == 200
            assert answer.json()["usage"]["total_tokens"] == 13
            assert len(answer.json()["choices"][0]["token_ids"]) == 3
        assert [len(cache.pool.cached_blocks()) for cache in caches] == [0, 3]
        assert [rank for rank, events in emitted if events] == [1]
        stored = [event for event in emitted[0][1] if isinstance(event, VllmBlockStored)]
        assert [token for event in stored for token in event.token_ids][:10] == PROMPT
        for cache in caches:
            cache.pool.check_invariants()

    with_worker(play)


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ({"prompt": []}, {}, 400),
        ({"prompt": [-1]}, {}, 400),
        ({"prompt": 7}, {}, 400),
        ({}, {}, 400),
        ({"prompt": PROMPT}, {RANK_HEADER: "2"}, 400),
        ({"prompt": PROMPT}, {RANK_HEADER: "x"}, 400),
        ({"prompt": PROMPT, "max_tokens": 0}, {}, 400),
        ({"prompt": PROMPT * 10}, {}, 503),
        ({"prompt": "a text"}, {}, 200),
    ],
)
def test_invalid_or_oversized_prompts_are_refused_without_effect(
    body: dict[str, Any], headers: dict[str, str], status: int
) -> None:
    async def play(client: httpx.AsyncClient, caches: list[PrefixCache], emitted: Emitted) -> None:
        answer = await client.post("/v1/completions", json=body, headers=headers)
        assert answer.status_code == status, answer.text
        assert bool(emitted) == (status == 200)
        assert status == 200 or answer.json()["error"]["message"]

    with_worker(play)


def test_facts_are_served_as_by_vllm() -> None:
    async def play(client: httpx.AsyncClient, caches: list[PrefixCache], emitted: Emitted) -> None:
        assert (await client.get("/health")).status_code == 200
        models = (await client.get("/v1/models")).json()
        assert [card["id"] for card in models["data"]] == ["m"]
        assert 'num_gpu_blocks="16",engine="1"} 1.0' in (await client.get("/metrics")).text
        told = (await client.get("/server_info?config_format=json")).json()["vllm_config"]
        assert told["parallel_config"] == {"data_parallel_size": 2}

    with_worker(play)
