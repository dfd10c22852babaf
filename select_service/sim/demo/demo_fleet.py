"""Fleet of the demo: engines with sockets, registered with the service like real workers.

This module maps ranks to workers; `select_service.sim.engine` decides about the caches.
"""

import asyncio
import random
from functools import partial
from typing import Any, NamedTuple

import zmq.asyncio

from select_service.sim.demo.conversations import ConversationWorkload
from select_service.sim.demo.kv_publisher import KvPublisherSockets
from select_service.sim.demo.service_client import CallFailed, ServiceClient
from select_service.sim.demo.worker_api import KvEventsConfig, WorkerApi
from select_service.sim.engine.block_catalog import BlockCatalog
from select_service.sim.engine.gpu_hardware import A100_40, Fleet
from select_service.sim.engine.prefix_cache import KvEvent, PrefixCache
from select_service.sim.engine.replay_world import ReplayWorld
from select_service.sim.engine.scheduler_engine import SchedulerEngine

SUBSCRIBE_S_MAX = 15.0
CATCH_UP_S_MAX = 10.0
CATCH_UP_POLL_S = 0.05


class FleetShape(NamedTuple):
    """Number of workers and ranks, and cache size of a rank."""

    workers: int
    ranks_per_worker: int
    blocks_per_rank: int
    block_size: int
    seed: int

    @property
    def ranks(self) -> int:
        return self.workers * self.ranks_per_worker

    @property
    def hardware(self) -> Fleet:
        """Hardware of every rank."""
        rank = A100_40._replace(block_tokens=self.block_size, declared_blocks=self.blocks_per_rank)
        return (rank,) * self.ranks


class EventStreamTotals(NamedTuple):
    """Totals over the event streams of all ranks, from GET /workers."""

    caught_up: bool
    gaps: int
    replayed: int
    lost: int
    decode_errors: int


class DemoEngines(NamedTuple):
    """Engines of all ranks in order of the workers, and their caches."""

    hardware: Fleet
    engines: list[SchedulerEngine]
    caches: list[PrefixCache]

    def make_world(self, workload: ConversationWorkload) -> ReplayWorld:
        """Return a world in which these engines, now idle, execute a workload."""
        for cache in self.caches:
            cache.pool.grow_to(workload.catalog.size)
        return ReplayWorld(workload.replay_workload(), self.hardware, None, self.engines)


def fresh_engines(shape: FleetShape, catalog: BlockCatalog) -> DemoEngines:
    """Return engines with empty caches, each with its own block names."""
    rng = random.Random(shape.seed)
    engines = [SchedulerEngine(each, catalog.size) for each in shape.hardware]
    caches = [PrefixCache(each.pool, catalog, rng.getrandbits(64)) for each in engines]
    return DemoEngines(shape.hardware, engines, caches)


class DemoFleet:
    """Publishers of all ranks and the tasks that answer replay requests.  Close it once."""

    def __init__(self, shape: FleetShape, lose_fraction: float = 0.0) -> None:
        self.shape = shape
        rng = random.Random(shape.seed)

        def lose() -> bool:
            return rng.random() < lose_fraction

        self._context = zmq.asyncio.Context()
        self.publishers = [
            KvPublisherSockets(self._context, i % shape.ranks_per_worker, lose)
            for i in range(shape.ranks)
        ]
        self._replays = [asyncio.create_task(p.serve_replay()) for p in self.publishers]
        self._apis: list[WorkerApi] = []
        self._urls: list[str] = []

    def publish_events(self, rank_index: int, events: list[KvEvent]) -> None:
        """Publish the KV events of a rank."""
        self.publishers[rank_index].publish_batch(events)

    def rank_index(self, worker_id: int, dp_rank: int) -> int:
        """Return the index in `fresh_engines` of a rank."""
        assert 1 <= worker_id <= self.shape.workers
        assert 0 <= dp_rank < self.shape.ranks_per_worker
        # Worker ids start at 1, ranks at 0.
        return (worker_id - 1) * self.shape.ranks_per_worker + dp_rank

    def rank_names(self) -> list[str]:
        """Return display names in the order of `fresh_engines`."""
        shape = self.shape
        return [
            f"worker {worker_id}" + (f" rank {dp_rank}" if shape.ranks_per_worker > 1 else "")
            for worker_id in range(1, shape.workers + 1)
            for dp_rank in range(shape.ranks_per_worker)
        ]

    async def start_apis(self, model_name: str, caches: list[PrefixCache]) -> None:
        """Start the HTTP API of every worker.  caches: caches of all ranks"""
        ranks = self.shape.ranks_per_worker
        for first in range(0, self.shape.ranks, ranks):
            api = WorkerApi(
                model_name,
                caches[first : first + ranks],
                partial(self._emit_of_worker, first),
                self._kv_events_config(first),
                A100_40.batch_tokens,
            )
            self._apis.append(api)
            self._urls.append(await api.start_listening())

    def url_of(self, worker_id: int) -> str:
        """Return the URL of a worker."""
        return self._urls[worker_id - 1]

    def _emit_of_worker(self, first: int, dp_rank: int, events: list[KvEvent]) -> None:
        self.publish_events(first + dp_rank, events)

    def _kv_events_config(self, first: int) -> KvEventsConfig:
        """Return the KV events configuration as an engine reports it.

        Disabled for several ranks, because their ports are not consecutive.
        """
        if self.shape.ranks_per_worker > 1:
            return {"enable_kv_cache_events": False}
        publisher = self.publishers[first]
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": publisher.endpoint,
            "replay_endpoint": publisher.replay_endpoint,
        }

    def registration_body(self, worker_id: int) -> dict[str, Any]:
        """Return the body of POST /workers without the model. Call `start_apis` before."""
        dp_ranks = range(self.shape.ranks_per_worker)
        publishers = {r: self.publishers[self.rank_index(worker_id, r)] for r in dp_ranks}
        return {
            "worker_id": worker_id,
            "endpoint": self._urls[worker_id - 1],
            "block_size": self.shape.block_size,
            "data_parallel_size": self.shape.ranks_per_worker,
            "kv_events_endpoints": {str(r): p.endpoint for r, p in publishers.items()},
            "replay_endpoints": {str(r): p.replay_endpoint for r, p in publishers.items()},
            "total_kv_blocks": self.shape.blocks_per_rank * self.shape.ranks_per_worker,
            # Used only if the service queues; otherwise without effect.
            "max_num_batched_tokens": A100_40.batch_tokens,
        }

    async def register_workers(self, client: ServiceClient) -> None:
        """Register every worker and wait until the service subscribes to every rank.

        Raises CallFailed if a worker is not schedulable, or a rank has no subscriber in time.
        """
        for worker_id in range(1, self.shape.workers + 1):
            worker = await client.register_worker(self.registration_body(worker_id))
            if worker.lifecycle != "schedulable":
                reasons = ", ".join(worker.not_schedulable_reasons)
                raise CallFailed(f"worker {worker_id} is {worker.lifecycle}: {reasons}")
        heard = await asyncio.gather(
            *(publisher.wait_for_subscriber(SUBSCRIBE_S_MAX) for publisher in self.publishers)
        )
        if not all(heard):
            raise CallFailed(f"no subscriber on {heard.count(False)} ranks in {SUBSCRIBE_S_MAX} s")

    async def catch_up(self, client: ServiceClient) -> EventStreamTotals:
        """Wait at most CATCH_UP_S_MAX until the service has read all published events."""
        for publisher in self.publishers:
            # A gap at the very end of a stream would never become visible.
            publisher.expose_trailing_gap()
        totals = await self.event_totals(client)
        for _ in range(round(CATCH_UP_S_MAX / CATCH_UP_POLL_S)):
            if totals.caught_up:
                break
            await asyncio.sleep(CATCH_UP_POLL_S)
            totals = await self.event_totals(client)
        return totals

    async def event_totals(self, client: ServiceClient) -> EventStreamTotals:
        """Compare GET /workers with the published events."""
        seen = {
            self.rank_index(worker.worker_id, dp_rank): status
            for worker in await client.fetch_workers()
            for dp_rank, status in worker.kv_events.items()
        }
        return EventStreamTotals(
            caught_up=all(
                # A rank without events has no last sequence at the service.
                publisher.batches == 0
                or (i in seen and seen[i].last_sequence == publisher.batches - 1)
                for i, publisher in enumerate(self.publishers)
            ),
            gaps=sum(status.gaps for status in seen.values()),
            replayed=sum(status.replayed for status in seen.values()),
            lost=sum(status.lost for status in seen.values()),
            decode_errors=sum(status.decode_errors for status in seen.values()),
        )

    @property
    def batches(self) -> int:
        """Batches numbered so far, sent or not."""
        return sum(publisher.batches for publisher in self.publishers)

    @property
    def lost_batches(self) -> int:
        """Batches withheld on purpose; the replay has all of them."""
        return sum(publisher.lost_batches for publisher in self.publishers)

    async def close(self) -> None:
        """Stop answering and close all sockets."""
        for task in self._replays:
            task.cancel()
        await asyncio.gather(*self._replays, return_exceptions=True)
        for api in self._apis:
            await api.close()
        for publisher in self.publishers:
            publisher.close()
        # Last: terminating blocks until all sockets are closed.
        self._context.term()
