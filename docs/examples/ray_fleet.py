"""Run a small fleet on one machine: Ray, selectors, engines behind Ray Serve, and load.

    pip install '.[ray,demo]'
    python docs/examples/ray_fleet.py                   # the selectors choose
    python docs/examples/ray_fleet.py --router serve    # Serve chooses, for comparison

The engines are simulated: the caches are real (blocks, eviction, KV events), computation is a
pause. Everything else runs as with GPUs: put your engine into `Engine.generate`. In a conversation,
each prompt repeats all earlier text. The output shows the cached share of the prompts and the time
to the first token.
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


class Completion(NamedTuple):
    """Result of a request."""

    token_ids: list[int]
    cached_tokens: int
    first_token_s: float


@serve.deployment(max_ongoing_requests=1000)
class Engine:
    """Simulated engine of a Serve replica."""

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
    ) -> Completion:
        """Return `n_tokens` random tokens; `booked` is the router's data for `Report`."""
        started_at, report = time.perf_counter(), Report(booked)
        output = random.choices(range(50_000), k=n_tokens)
        pool = self.cache.pool
        chain = self.cache.number_blocks(np.array([*token_ids, *output], np.uint32))
        full = len(token_ids) // BLOCK_SIZE
        async with self.prefills:
            while (cached_blocks := self.cache.admit_prompt(chain[:full])) is None:
                await asyncio.sleep(0.01)
            self.events.publish_batch(self.cache.take_events())
            cached = cached_blocks * BLOCK_SIZE
            await asyncio.sleep((len(token_ids) - cached) / PREFILL_TOKENS_PER_S)
        first_token_s = time.perf_counter() - started_at
        report.first_token()
        while full < len(chain):
            await asyncio.sleep(BLOCK_SIZE / TOKENS_PER_S)
            full = max(full, pool.take_blocks(chain, full, full + 1))
            report.tokens(BLOCK_SIZE)
        pool.release_blocks(chain, full)
        self.events.publish_batch(self.cache.take_events())
        return Completion(output, cached, first_token_s)


async def run_conversation(handle: Any, user: int, turns: int) -> list[tuple[Completion, int]]:
    """Run the turns of a user; all users share the first instructions."""
    rng = random.Random(user)
    prompt = random.Random(0).choices(range(50_000), k=SYSTEM_TOKENS)
    completions = []
    for _ in range(turns):
        prompt += rng.choices(range(50_000), k=TURN_TOKENS)
        completion = await handle.generate.remote(token_ids=prompt, n_tokens=ANSWER_TOKENS)
        completions.append((completion, len(prompt)))
        prompt = prompt + completion.token_ids
        await asyncio.sleep(rng.uniform(0, 0.5))
    return completions


async def run_load(handle: Any, users: int, turns: int) -> list[tuple[Completion, int]]:
    """Run all conversations concurrently."""
    runs = await asyncio.gather(*(run_conversation(handle, user, turns) for user in range(users)))
    return [completion for completions in runs for completion in completions]


def print_summary(completions: Sequence[tuple[Completion, int]], seconds: float) -> None:
    """Print the cached share and the times to the first token."""
    cached = sum(completion.cached_tokens for completion, _ in completions)
    ttft_ms = sorted(completion.first_token_s * 1e3 for completion, _ in completions)
    print(f"{len(completions)} requests in {seconds:.1f} s")
    print(f"cached: {cached / sum(n for _, n in completions):.1%} of all prompt tokens")
    median, p99 = statistics.median(ttft_ms), ttft_ms[len(ttft_ms) * 99 // 100]
    print(f"first token: median {median:.0f} ms, 99th percentile {p99:.0f} ms")


def main() -> None:
    """Start the fleet, run the load, print a summary, and stop the fleet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--router", choices=["select-service", "serve"], default="select-service")
    parser.add_argument("--selectors", type=int, default=2)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--users", type=int, default=24)
    parser.add_argument("--turns", type=int, default=8)
    args = parser.parse_args()
    # Simulated engines need no CPU.
    ray.init(num_cpus=64, include_dashboard=False, log_to_driver=False)
    try:
        print("selectors:", *deploy(args.selectors, insecure=True))
        options = {} if args.router == "serve" else {"request_router_config": ROUTER}
        app = Engine.options(num_replicas=args.engines, **options).bind()
        handle = serve.run(app, route_prefix=None)
        started_at = time.perf_counter()
        completions = asyncio.run(run_load(handle, args.users, args.turns))
        print_summary(completions, time.perf_counter() - started_at)
    finally:
        serve.shutdown()
        remove()
        ray.shutdown()


if __name__ == "__main__":
    main()
