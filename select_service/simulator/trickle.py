"""Traffic that goes on while the demo stays up: conversations of the workload's kind, slowed down.

The time of the model passes so slowly that about PER_S requests come in a second; prompts and
answers take as much longer, so that ranks are as busy as in the run.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count

from select_service.simulator.client import CallFailed, Choice, SelectorClient
from select_service.simulator.drive import Driver
from select_service.simulator.engine import Engine
from select_service.simulator.fleet import Fleet, FleetShape
from select_service.simulator.workload import (
    SESSIONS_PER_S_AND_RANK,
    TURNS,
    Session,
    Shape,
    Workload,
    generate,
)
from select_service.simulator.world import World

PER_S = 2.0
REQUESTS = 400
"""Of one workload; then another one begins."""
RETRY_S = 1.0
"""Between two attempts to have a request taken."""


class PatientClient(SelectorClient):
    """A client that goes on whatever is tried out on the service meanwhile.

    A request waits until a worker of the demo takes it, and one whose worker was removed is over.
    """

    def __init__(self, base_url: str, model_name: str, workers: int) -> None:
        """workers: of the demo, numbered from 1"""
        super().__init__(base_url, model_name)
        self._workers = workers

    async def select_and_reserve(self, reservation_id: str, token_ids: list[int]) -> Choice:
        """Choose a rank of the demo and book the request on it, as soon as that is possible."""
        while True:
            with suppress(CallFailed):
                choice = await super().select_and_reserve(reservation_id, token_ids)
                if 1 <= choice.worker_id <= self._workers:
                    return choice
                await super().free(reservation_id)
            await asyncio.sleep(RETRY_S)

    async def prefill_complete(self, reservation_id: str) -> None:
        """The prompt has been computed."""
        with suppress(CallFailed):
            await super().prefill_complete(reservation_id)

    async def output_block(self, reservation_id: str) -> None:
        """The answer has grown by a block."""
        with suppress(CallFailed):
            await super().output_block(reservation_id)

    async def free(self, reservation_id: str) -> None:
        """The request is done."""
        with suppress(CallFailed):
            await super().free(reservation_id)


async def keep_going(fleet: Fleet, client: PatientClient, engines: list[Engine]) -> None:
    """Send requests until cancelled.

    It returns where the caches are too small for any conversation.
    """
    slowness = _requests_per_s(fleet.shape) / PER_S
    for number in count(1):
        workload = _workload(fleet.shape, number)
        if not workload.sessions:
            return
        client.latencies_s.clear()
        driver = Driver(World(workload, engines, fleet.emit), fleet, client)
        await driver.work_off(lambda step: None, _paced(slowness))


def _requests_per_s(shape: FleetShape) -> float:
    """In the time of the model."""
    return SESSIONS_PER_S_AND_RANK * shape.ranks * sum(TURNS) / 2


def _workload(shape: FleetShape, number: int) -> Workload:
    """Conversations that fit into the caches, under names that no other request has."""
    made = generate(Shape(REQUESTS, shape.block_size, shape.ranks, shape.seed + number))
    return Workload(shape.block_size, tuple(_named(made, shape.blocks_per_rank, number)))


def _named(made: Workload, blocks: int, number: int) -> Iterator[Session]:
    for session in made.sessions:
        if all(made.job(session, turn).places <= blocks for turn in range(len(session.turns))):
            yield replace(session, name=f"trickle-{number}-{session.name}")


def _paced(slowness: float) -> Callable[[float], Awaitable[None]]:
    """Return what waits until a moment of the model has come."""
    begun = time.monotonic()

    async def wait(virtual_s: float) -> None:
        await asyncio.sleep(begun + virtual_s * slowness - time.monotonic())

    return wait
