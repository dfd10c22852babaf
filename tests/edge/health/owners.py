"""Somebody who has checks made, and where the ranks are."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from indexer.sockets.names import Names
from select_service.bodies.workers import WorkerRegistration
from select_service.core.health.canary_prompts import CanaryPrompt
from select_service.core.health.checked import Attempt, CheckOrder
from select_service.core.identity import Rank
from select_service.edge.due import DueTask, DueTasks
from select_service.edge.health.canaries import Canaries
from select_service.edge.health.lateness import STEP_S
from select_service.edge.health.targets import Target
from select_service.edge.supervised import Callbacks
from tests.patience import PATIENCE_S, eventually_on_loop

PROMPT = CanaryPrompt((11, 12, 13), 4)
RANK = Rank(1, 0)


class Places:
    """Ranks by endpoint."""

    def __init__(self, endpoint: str, api="openai"):
        self.endpoint, self.api = endpoint, api
        self.tokens = 0
        self.registered: dict[int, WorkerRegistration] = {}

    def register(self, worker_id: int) -> WorkerRegistration:
        given = WorkerRegistration(worker_id=worker_id, model_name="m", endpoint=self.endpoint)
        self.registered[worker_id] = given
        return given

    def of(self, rank: Rank) -> Target | None:
        given = self.registered.get(rank.worker_id) or self.register(rank.worker_id)
        return Target(given, given.endpoint, "m", self.api)

    def prefill_tokens(self, rank: Rank) -> int:
        return self.tokens


class Owner:
    """Has the orders carried out that it is given, and notes what it is told."""

    def __init__(self, *pauses: float, names_ranks: bool = False) -> None:
        """pauses: before further attempts of each check"""
        self.names_ranks, self.seed = names_ranks, 0
        self.orders: list[CheckOrder] = []
        self.told: list[tuple[CheckOrder, Attempt, float]] = []
        self.begun, self.places_missing = 0, 0
        self._pauses = pauses

    def order(self, rank: Rank = RANK, prompt: CanaryPrompt = PROMPT) -> CheckOrder:
        number = len(self.orders) + self.begun
        order = CheckOrder(number, rank, prompt, 0, 3, False, self.names_ranks, self.seed)
        self.orders.append(order)
        return order

    def due(self, now: float) -> CheckOrder | None:
        if not self.orders:
            return None
        self.begun += 1
        return self.orders.pop(0)

    def attempted(self, order: CheckOrder, attempt: Attempt, now: float) -> float | None:
        earlier = sum(order == other for other, _, _ in self.told)
        self.told.append((order, attempt, now))
        return self._pauses[earlier] if earlier < len(self._pauses) else None

    def resumes(self, order: CheckOrder) -> bool:
        self.places_missing -= 1
        return self.places_missing < 0

    async def attempt_of(self, rank: Rank = RANK, prompt: CanaryPrompt = PROMPT) -> Attempt:
        """What one more check of the rank brings in the end."""
        before = len(self.told)
        self.order(rank, prompt)
        await eventually_on_loop(lambda: len(self.told) > before + len(self._pauses))
        return self.told[-1][1]


@contextlib.asynccontextmanager
async def sending(
    owner,
    places,
    timeout_s: float = PATIENCE_S,
    names: Names | None = None,
    bugs: int = 0,
) -> AsyncIterator[Canaries]:
    """bugs: so many are expected"""
    callbacks = Callbacks()
    canaries = Canaries(owner, places, names or Names(), callbacks, timeout_s=timeout_s)
    due = DueTasks([DueTask("canaries", STEP_S, canaries.step)], 0.0)
    running = asyncio.create_task(due.run())
    try:
        yield canaries
    finally:
        running.cancel()
        await canaries.stop()
    assert callbacks.failures.get("canary", 0) == bugs
