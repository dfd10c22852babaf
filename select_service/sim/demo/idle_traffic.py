"""Traffic while the demo stays up: slow conversations like in the workload.

Virtual time passes so slowly that about REQUESTS_PER_S requests arrive per second. Prompts and
answers are slowed equally, so ranks are as busy as in the run.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count

from select_service.sim.demo.conversations import (
    SESSIONS_PER_S_AND_RANK,
    TURNS,
    ConversationWorkload,
    WorkloadShape,
    generate_workload,
)
from select_service.sim.demo.demo_fleet import DemoEngines, DemoFleet, FleetShape
from select_service.sim.demo.service_client import CallFailed, ChosenRank, ServiceClient
from select_service.sim.demo.workload_driver import WorkloadDriver
from select_service.sim.engine.block_catalog import BlockCatalog

REQUESTS_PER_S = 2.0
REQUESTS = 400
"""Requests of a workload, followed by the next."""
RETRY_S = 1.0
"""Pause between two attempts of a request, in seconds."""


class PatientClient(ServiceClient):
    """Client that survives all changes that users make to the service meanwhile.

    A request waits for a worker of the demo, and ends if that worker is removed.
    """

    def __init__(self, base_url: str, model_name: str, workers: int) -> None:
        """workers: number of workers of the demo, with ids from 1"""
        super().__init__(base_url, model_name)
        self._workers = workers

    async def select_and_reserve(self, reservation_id: str, token_ids: list[int]) -> ChosenRank:
        """Reserve a rank of the demo as soon as possible."""
        while True:
            with suppress(CallFailed):
                choice = await super().select_and_reserve(reservation_id, token_ids)
                # Users may register workers of their own; those ranks are not simulated.
                if 1 <= choice.worker_id <= self._workers:
                    return choice
                await super().free_reservation(reservation_id)
            await asyncio.sleep(RETRY_S)

    async def report_progress(self, reservation_id: str, verb: str) -> None:
        """Report progress, ignoring failures."""
        with suppress(CallFailed):
            await super().report_progress(reservation_id, verb)

    async def free_reservation(self, reservation_id: str) -> None:
        """Report the end of the request, ignoring failures."""
        with suppress(CallFailed):
            await super().free_reservation(reservation_id)


async def send_until_cancelled(
    fleet: DemoFleet, client: PatientClient, engines: DemoEngines
) -> None:
    """Send requests until cancelled; returns if the caches are too small for any conversation."""
    catalog = engines.caches[0].catalog
    virtual_rate = SESSIONS_PER_S_AND_RANK * fleet.shape.ranks * sum(TURNS) / 2
    for number in count(1):
        # The demo may stay up for days; the numbers and lists would grow without bound.
        catalog.recycle_numbers(cache.pool for cache in engines.caches)
        workload = _make_workload(fleet.shape, number, catalog)
        if not workload.sessions:
            return
        client.latencies_s.clear()
        driver = WorkloadDriver(workload, engines, fleet, client)
        await driver.drive_world(lambda step: None, _make_pacer(virtual_rate / REQUESTS_PER_S))


def _make_workload(shape: FleetShape, number: int, catalog: BlockCatalog) -> ConversationWorkload:
    """Return conversations that fit into the caches, with unique request names."""
    made = generate_workload(
        WorkloadShape(REQUESTS, shape.block_size, shape.ranks, shape.seed + number), catalog
    )
    # Names must differ from those of earlier workloads, which may still be reserved.
    sessions = tuple(
        replace(session, name=f"trickle-{number}-{session.name}")
        for session in made.sessions
        if ConversationWorkload(catalog, (session,)).places_max <= shape.blocks_per_rank
    )
    return ConversationWorkload(catalog, sessions)


def _make_pacer(slowness: float) -> Callable[[float], Awaitable[None]]:
    """Return a coroutine function that waits for a moment of virtual time."""
    begun = time.monotonic()

    async def wait(virtual_s: float) -> None:
        await asyncio.sleep(begun + virtual_s * slowness - time.monotonic())

    return wait
