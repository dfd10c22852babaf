"""Traffic while the demo stays up: slow conversations like in the workload.

Virtual time passes so slowly that about REQUESTS_PER_S requests arrive per second. Prompts and
answers are slowed equally, so ranks are as busy as in the run.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count

from select_service.sim.demo.conversations import (
    SESSIONS_PER_S_AND_RANK,
    TURNS,
    ConversationWorkload,
    DemoConversation,
    WorkloadShape,
    generate_workload,
)
from select_service.sim.demo.demo_fleet import DemoFleet, FleetShape
from select_service.sim.demo.prefix_cache import PrefixCache
from select_service.sim.demo.service_client import CallFailed, ChosenRank, ServiceClient
from select_service.sim.demo.virtual_world import VirtualWorld
from select_service.sim.demo.workload_driver import WorkloadDriver

REQUESTS_PER_S = 2.0
REQUESTS = 400
"""Requests of a workload, followed by the next."""
RETRY_S = 1.0
"""Pause between two attempts of a request, in seconds."""


class PatientClient(ServiceClient):
    """Client that survives all changes that users make to the service meanwhile.

    A request waits until a worker of the demo accepts it, and ends if its worker is removed.
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

    async def prefill_complete(self, reservation_id: str) -> None:
        """Report that the prompt is computed, ignoring failures."""
        with suppress(CallFailed):
            await super().prefill_complete(reservation_id)

    async def output_block(self, reservation_id: str) -> None:
        """Report another output block, ignoring failures."""
        with suppress(CallFailed):
            await super().output_block(reservation_id)

    async def free_reservation(self, reservation_id: str) -> None:
        """Report the end of the request, ignoring failures."""
        with suppress(CallFailed):
            await super().free_reservation(reservation_id)


async def send_until_cancelled(
    fleet: DemoFleet, client: PatientClient, engines: list[PrefixCache]
) -> None:
    """Send requests until cancelled; returns if the caches are too small for any conversation."""
    slowness = _requests_per_s(fleet.shape) / REQUESTS_PER_S
    for number in count(1):
        workload = _make_workload(fleet.shape, number)
        if not workload.sessions:
            return
        # The demo may stay up for days; the lists would grow without bound.
        client.latencies_s.clear()
        driver = WorkloadDriver(
            VirtualWorld(workload, engines, fleet.publish_events), fleet, client
        )
        await driver.drive_world(lambda step: None, _make_pacer(slowness))


def _requests_per_s(shape: FleetShape) -> float:
    """Return the rate of requests in virtual time."""
    return SESSIONS_PER_S_AND_RANK * shape.ranks * sum(TURNS) / 2


def _make_workload(shape: FleetShape, number: int) -> ConversationWorkload:
    """Return conversations that fit into the caches, with unique request names."""
    made = generate_workload(
        WorkloadShape(REQUESTS, shape.block_size, shape.ranks, shape.seed + number)
    )
    return ConversationWorkload(
        shape.block_size, tuple(_rename_sessions(made, shape.blocks_per_rank, number))
    )


def _rename_sessions(
    made: ConversationWorkload, blocks: int, number: int
) -> Iterator[DemoConversation]:
    for session in made.sessions:
        if all(
            made.job_of_turn(session, turn).places <= blocks for turn in range(len(session.turns))
        ):
            # Names must differ from those of earlier workloads, which may still be reserved.
            yield replace(session, name=f"trickle-{number}-{session.name}")


def _make_pacer(slowness: float) -> Callable[[float], Awaitable[None]]:
    """Return a coroutine function that waits for a moment of virtual time."""
    begun = time.monotonic()

    async def wait(virtual_s: float) -> None:
        await asyncio.sleep(begun + virtual_s * slowness - time.monotonic())

    return wait
