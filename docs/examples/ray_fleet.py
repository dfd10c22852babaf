"""Run a small fleet on one machine: Ray, selectors, engines behind Ray Serve, and load.

    pip install '.[ray,demo]'
    python docs/examples/ray_fleet.py                   # the selectors choose
    python docs/examples/ray_fleet.py --router serve    # Serve chooses, for comparison

The engines are simulated: their caches are real (blocks, eviction, KV events), their work is time.
Everything else runs as with GPUs: put your engine into `Engine.generate`. Users hold conversations
whose turns repeat all earlier text. The output shows how much of the prompts was cached and how
long the first token took.
"""

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import ray
import zmq.asyncio
from ray import serve
from ray.serve.config import RequestRouterConfig

from select_service.ray import Report, deploy, register_replica, remove
from select_service.sim.demo.kv_publisher import KvPublisherSockets
from select_service.sim.engine.block_catalog import BlockCatalog
from select_service.sim.engine.kv_block_pool import KvBlockPool
from select_service.sim.engine.prefix_cache import PrefixCache

MODEL = "simulated"
BLOCK_SIZE = 16
CACHE_BLOCKS = 3000
PREFILL_TOKENS_PER_S = 20_000
TOKENS_PER_S = 100
TURN_TOKENS = 300
ANSWER_TOKENS = 64
SYSTEM_TOKENS = 800
ROUTER = RequestRouterConfig(
    request_router_class="select_service.ray.router:SelectServiceRouter",
    request_router_kwargs={"model_name": MODEL, "reservation_kwarg": "booked"},
)


class Answered(NamedTuple):
    """Result of one request."""

    token_ids: list[int]
    cached_tokens: int
    first_token_s: float


@serve.deployment(max_ongoing_requests=1000)
class Engine:
    """Simulated engine; each Serve replica is one."""

    async def __init__(self) -> None:
        pool, catalog = KvBlockPool(0, CACHE_BLOCKS), BlockCatalog(BLOCK_SIZE)
        self.cache = PrefixCache(pool, catalog, hash_seed=random.getrandbits(64))
        self.events = KvPublisherSockets(zmq.asyncio.Context(), dp_rank=0)
        self.replays = asyncio.create_task(self.events.serve_replay())
        self.prefills = asyncio.Lock()
        self.worker = register_replica(
            model_name=MODEL,
            block_size=BLOCK_SIZE,
            kv_events_endpoint=self.events.endpoint,
            replay_endpoint=self.events.replay_endpoint,
            total_kv_blocks=CACHE_BLOCKS,
        )

    def __del__(self) -> None:
        self.worker.close()

    async def generate(
        self, token_ids: list[int], n_tokens: int, booked: dict[str, Any] | None = None
    ) -> Answered:
        """Return a made-up answer of `n_tokens`; `booked` is the router's data for `Report`."""
        began, report = time.perf_counter(), Report(booked)
        answer = random.choices(range(50_000), k=n_tokens)
        pool = self.cache.pool
        chain = self.cache.number_blocks(np.array([*token_ids, *answer], np.uint32))
        full = len(token_ids) // BLOCK_SIZE
        async with self.prefills:
            while (cached_blocks := self.cache.admit_prompt(chain[:full])) is None:
                await asyncio.sleep(0.01)
            self.events.publish_batch(self.cache.take_events())
            cached = cached_blocks * BLOCK_SIZE
            await asyncio.sleep((len(token_ids) - cached) / PREFILL_TOKENS_PER_S)
        first_token_s = time.perf_counter() - began
        report.first_token()
        while full < len(chain):
            await asyncio.sleep(BLOCK_SIZE / TOKENS_PER_S)
            full = max(full, pool.take_blocks(chain, full, full + 1))
            report.tokens(BLOCK_SIZE)
        pool.release_blocks(chain, full)
        self.events.publish_batch(self.cache.take_events())
        return Answered(answer, cached, first_token_s)


async def conversation(handle: Any, user: int, turns: int) -> list[tuple[Answered, int]]:
    """Run the turns of one user; all users share the first instructions."""
    own = random.Random(user)
    said = random.Random(0).choices(range(50_000), k=SYSTEM_TOKENS)
    answers = []
    for _ in range(turns):
        said += own.choices(range(50_000), k=TURN_TOKENS)
        answered = await handle.generate.remote(token_ids=said, n_tokens=ANSWER_TOKENS)
        answers.append((answered, len(said)))
        said = said + answered.token_ids
        await asyncio.sleep(own.uniform(0, 0.5))
    return answers


async def load(handle: Any, users: int, turns: int) -> list[tuple[Answered, int]]:
    """Run all conversations concurrently."""
    done = await asyncio.gather(*(conversation(handle, user, turns) for user in range(users)))
    return [answer for answers in done for answer in answers]


def report(answers: Sequence[tuple[Answered, int]], seconds: float) -> None:
    """Print cached share and times to the first token."""
    cached = sum(answered.cached_tokens for answered, _ in answers)
    first = sorted(answered.first_token_s * 1e3 for answered, _ in answers)
    print(f"{len(answers)} requests in {seconds:.1f} s")
    print(f"cached: {cached / sum(n for _, n in answers):.1%} of all prompt tokens")
    worst = first[len(first) * 99 // 100]
    print(f"first token: median {statistics.median(first):.0f} ms, 99th percentile {worst:.0f} ms")


def main() -> None:
    """Start the fleet, load it, report, and stop it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--router", choices=["select-service", "serve"], default="select-service")
    parser.add_argument("--selectors", type=int, default=2)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--users", type=int, default=24)
    parser.add_argument("--turns", type=int, default=8)
    chosen = parser.parse_args()
    ray.init(
        num_cpus=64, include_dashboard=False, log_to_driver=False
    )  # simulated engines need no CPU of their own
    try:
        print("selectors:", *deploy(chosen.selectors, insecure=True))
        options = {} if chosen.router == "serve" else {"request_router_config": ROUTER}
        app = Engine.options(num_replicas=chosen.engines, **options).bind()
        handle = serve.run(app, route_prefix=None)
        began = time.perf_counter()
        answers = asyncio.run(load(handle, chosen.users, chosen.turns))
        report(answers, time.perf_counter() - began)
    finally:
        serve.shutdown()
        remove()
        ray.shutdown()


if __name__ == "__main__":
    main()
