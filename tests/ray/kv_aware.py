"""The parts of Ray Serve LLM around its KV-aware router, without an engine.

The router and the tracker are Ray's own, unchanged.
"""

import asyncio
import os
import random
from typing import Any

import numpy as np
import zmq.asyncio
from ray import serve
from ray.llm._internal.serve.routing_policies.kv_aware import kv_aware_router
from ray.llm._internal.serve.routing_policies.kv_aware.kv_token_tracker import (
    KVTokenTracker,
    set_kv_token_tracker,
)
from ray.serve.config import RequestRouterConfig

from select_service.sim.demo.kv_publisher import KvPublisherSockets
from select_service.sim.engine.block_catalog import BlockCatalog
from select_service.sim.engine.kv_block_pool import KvBlockPool
from select_service.sim.engine.prefix_cache import PrefixCache

BLOCK_SIZE = 16
HOOK = "select_service.ray.selection_service.install"


@serve.deployment(
    max_ongoing_requests=100,
    request_router_config=RequestRouterConfig(
        request_router_class=kv_aware_router.KVAwareRouter,
        request_routing_stats_period_s=0.5,
        request_routing_stats_timeout_s=5.0,
    ),
)
class LLMServer:
    """Replica that reports the statistics of Ray's replicas and caches the prompts of requests."""

    async def __init__(self) -> None:
        self.cache = PrefixCache(
            KvBlockPool(0, 1000), BlockCatalog(BLOCK_SIZE), hash_seed=random.getrandbits(64)
        )
        self.events = KvPublisherSockets(zmq.asyncio.Context(), dp_rank=0)
        self.replays = asyncio.create_task(self.events.serve_replay())

    def record_routing_stats(self) -> dict[str, Any]:
        return {
            "kv_event_metadata": {
                "endpoint": self.events.endpoint,
                "block_size": BLOCK_SIZE,
                "max_num_batched_tokens": 8192,
                "dp_rank": 0,
                "replay_endpoint": self.events.replay_endpoint,
            }
        }

    async def generate(self, request_token_ids: list[int], hold_s: float) -> int:
        assert self.cache.cache_tokens(np.array(request_token_ids, np.uint32))
        self.events.publish_batch(self.cache.take_events())
        await asyncio.sleep(hold_s)
        return os.getpid()


@serve.deployment(max_ongoing_requests=100)
class LLMRouter:
    """Ingress with a tracker in each replica; every replica notifies all trackers."""

    async def __init__(self, server: Any) -> None:
        self.tracker = KVTokenTracker(serve_deployment_id=server.deployment_id)
        set_kv_token_tracker(self.tracker)
        app_name = serve.get_replica_context().app_name
        self.tracker.start_reservation_broadcast(serve.get_deployment_handle("LLMRouter", app_name))
        self.all = serve.get_deployment_handle("LLMRouter", app_name)
        self.server = server
        self.server._init(_run_router_in_separate_loop=False)

    async def __call__(self, token_ids: list[int], hold_s: float, blocks: int) -> int:
        """Run a request; `_all` notifies the trackers as Ray's engine wrapper does."""
        request_id = serve.context._get_serve_request_context().request_id
        answer = self.server.generate.remote(request_token_ids=token_ids, hold_s=hold_s)
        await asyncio.sleep(hold_s / 2)
        await self._all(("on_prefill_complete", (request_id,)))
        if blocks:
            await self._all(("on_decode_progress", (request_id, blocks * BLOCK_SIZE)))
        pid = await answer
        await self._all(("on_request_completed", (request_id,)))
        return int(pid)

    async def _all(self, event: tuple[str, tuple[Any, ...]]) -> None:
        await self.all.broadcast("on_lifecycle_events", [event]).results_async(timeout_s=30.0)

    async def on_lifecycle_events(self, events: list[Any]) -> None:
        await self.tracker.on_lifecycle_events(events)

    async def on_reservations_created(self, reservations: list[Any]) -> None:
        await self.tracker.on_reservations_created(reservations)
