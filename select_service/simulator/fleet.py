"""The embedded fleet: engines with sockets, registered with the service as real workers would be.

Knows which rank is which worker's; what its caches do is `world`'s and `engine`'s business.
"""

import asyncio
import random
from functools import partial
from typing import Any, NamedTuple

import zmq.asyncio

from select_service.simulator.client import CallFailed, SelectorClient
from select_service.simulator.engine import U64_MASK, Engine, KvEvent
from select_service.simulator.engine_api import EngineApi, KvEventsConfig
from select_service.simulator.publisher import Publisher

SUBSCRIBE_S_MAX = 15.0
CATCH_UP_S_MAX = 10.0
CATCH_UP_POLL_S = 0.05
BATCH_TOKENS = 8192


class FleetShape(NamedTuple):
    """How many workers, ranks in each, and how large the cache of each rank is."""

    workers: int
    ranks_per_worker: int
    blocks_per_rank: int
    block_size: int
    seed: int

    @property
    def ranks(self) -> int:
        return self.workers * self.ranks_per_worker


class EventTotals(NamedTuple):
    """The event streams of all ranks together, as GET /workers tells them."""

    caught_up: bool
    gaps: int
    replayed: int
    lost: int
    decode_errors: int


def fresh_engines(shape: FleetShape) -> list[Engine]:
    """Empty caches, one per rank, worker by worker; each names its blocks in its own way."""
    rng = random.Random(shape.seed)
    return [
        Engine(shape.blocks_per_rank, shape.block_size, hash_seed=rng.getrandbits(64) & U64_MASK)
        for _ in range(shape.ranks)
    ]


class Fleet:
    """The publishers of all ranks and the tasks that answer replay requests.  Close it once."""

    def __init__(self, shape: FleetShape, lose_fraction: float = 0.0) -> None:
        self.shape = shape
        rng = random.Random(shape.seed)

        def lose() -> bool:
            return rng.random() < lose_fraction

        self._context = zmq.asyncio.Context()
        self.publishers = [
            Publisher(self._context, i % shape.ranks_per_worker, lose) for i in range(shape.ranks)
        ]
        self._replays = [asyncio.create_task(p.serve_replay()) for p in self.publishers]
        self._apis: list[EngineApi] = []
        self._urls: list[str] = []

    def emit(self, rank_index: int, events: list[KvEvent]) -> None:
        """Publish what happened in the cache of one rank."""
        self.publishers[rank_index].publish(events)

    def rank_index(self, worker_id: int, dp_rank: int) -> int:
        """Position in `fresh_engines` of a rank that the service names."""
        assert 1 <= worker_id <= self.shape.workers
        assert 0 <= dp_rank < self.shape.ranks_per_worker
        return (worker_id - 1) * self.shape.ranks_per_worker + dp_rank

    def rank_names(self) -> list[str]:
        """For people, in the order of `fresh_engines`."""
        shape = self.shape
        return [
            f"worker {worker_id}" + (f" rank {dp_rank}" if shape.ranks_per_worker > 1 else "")
            for worker_id in range(1, shape.workers + 1)
            for dp_rank in range(shape.ranks_per_worker)
        ]

    async def serve(self, model_name: str, engines: list[Engine]) -> None:
        """Answer HTTP for every worker.  engines: as of `fresh_engines`"""
        ranks = self.shape.ranks_per_worker
        for first in range(0, self.shape.ranks, ranks):
            api = EngineApi(
                model_name,
                engines[first : first + ranks],
                partial(self._emit_of_worker, first),
                self._kv_events_config(first),
                BATCH_TOKENS,
            )
            self._apis.append(api)
            self._urls.append(await api.open())

    def url_of(self, worker_id: int) -> str:
        """Where the worker answers HTTP."""
        return self._urls[worker_id - 1]

    def _emit_of_worker(self, first: int, dp_rank: int, events: list[KvEvent]) -> None:
        self.emit(first + dp_rank, events)

    def _kv_events_config(self, first: int) -> KvEventsConfig:
        """As an engine says it; nothing for several ranks, whose ports are not in a row."""
        if self.shape.ranks_per_worker > 1:
            return {"enable_kv_cache_events": False}
        publisher = self.publishers[first]
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": publisher.endpoint,
            "replay_endpoint": publisher.replay_endpoint,
        }

    def registration(self, worker_id: int) -> dict[str, Any]:
        """The body of POST /workers, without its model.  Call `serve` before."""
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
            # Only asked for when the service queues; harmless otherwise.
            "max_num_batched_tokens": BATCH_TOKENS,
        }

    async def register(self, client: SelectorClient) -> None:
        """Register every worker and wait until the service listens to every rank.

        Raises CallFailed when a worker is not schedulable or a rank has no subscriber in time.
        """
        for worker_id in range(1, self.shape.workers + 1):
            worker = await client.register(self.registration(worker_id))
            if worker.lifecycle != "schedulable":
                reasons = ", ".join(worker.not_schedulable_reasons)
                raise CallFailed(f"worker {worker_id} is {worker.lifecycle}: {reasons}")
        heard = await asyncio.gather(
            *(publisher.wait_for_subscriber(SUBSCRIBE_S_MAX) for publisher in self.publishers)
        )
        if not all(heard):
            raise CallFailed(f"no subscriber on {heard.count(False)} ranks in {SUBSCRIBE_S_MAX} s")

    async def catch_up(self, client: SelectorClient) -> EventTotals:
        """Wait until the service has read what every rank published, at most CATCH_UP_S_MAX."""
        for publisher in self.publishers:
            publisher.reveal_last_loss()
        totals = await self.event_totals(client)
        for _ in range(round(CATCH_UP_S_MAX / CATCH_UP_POLL_S)):
            if totals.caught_up:
                break
            await asyncio.sleep(CATCH_UP_POLL_S)
            totals = await self.event_totals(client)
        return totals

    async def event_totals(self, client: SelectorClient) -> EventTotals:
        """Compare GET /workers with what was published."""
        seen = {
            self.rank_index(worker.worker_id, dp_rank): status
            for worker in await client.workers()
            for dp_rank, status in worker.kv_events.items()
        }
        return EventTotals(
            caught_up=all(
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
        """Batches withheld on purpose; replay still has them."""
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
        self._context.term()
