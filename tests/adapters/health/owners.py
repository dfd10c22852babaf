"""Fake owner of canary checks, and the addresses of ranks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from indexer.sockets.dns_resolver import Resolver
from select_service.adapters.guarded_callbacks import GuardedCallbacks
from select_service.adapters.health.canary_sender import CanarySender
from select_service.adapters.health.canary_targets import CanaryTarget
from select_service.adapters.health.loop_lag import MEASURE_INTERVAL_S
from select_service.adapters.periodic_tasks import PeriodicTask, PeriodicTasks
from select_service.adapters.probe_http import TimedHttpClient
from select_service.core.health.checks.canary_prompts import CanaryPrompt
from select_service.core.health.checks.check_state import Attempt, CheckOrder
from select_service.core.identity import Rank
from select_service.schemas.workers import WorkerRegistration
from tests.builders.polling import PATIENCE_S, eventually_on_loop

PROMPT = CanaryPrompt((11, 12, 13), 4)
RANK = Rank(1, 0)


class Places:
    """Addresses of ranks by endpoint."""

    def __init__(self, endpoint: str, api="openai"):
        self.endpoint, self.api = endpoint, api
        self.tokens = 0
        self.registered: dict[int, WorkerRegistration] = {}

    def register(self, worker_id: int) -> WorkerRegistration:
        given = WorkerRegistration(worker_id=worker_id, model_name="m", endpoint=self.endpoint)
        self.registered[worker_id] = given
        return given

    def find_target(self, rank: Rank) -> CanaryTarget | None:
        given = self.registered.get(rank.worker_id) or self.register(rank.worker_id)
        return CanaryTarget(given, given.endpoint, "m", self.api)

    def prefill_tokens(self, rank: Rank) -> int:
        return self.tokens


class Owner:
    """Owner that hands out orders and records the attempts."""

    def __init__(self, *pauses: float, names_ranks: bool = False) -> None:
        """pauses: pauses before further attempts of each check, seconds"""
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

    def next_due_check(self, now: float) -> CheckOrder | None:
        if not self.orders:
            return None
        self.begun += 1
        return self.orders.pop(0)

    def process_attempt(self, order: CheckOrder, attempt: Attempt, now: float) -> float | None:
        earlier = sum(order == other for other, _, _ in self.told)
        self.told.append((order, attempt, now))
        return self._pauses[earlier] if earlier < len(self._pauses) else None

    def may_continue(self, order: CheckOrder) -> bool:
        self.places_missing -= 1
        return self.places_missing < 0

    async def attempt_of(self, rank: Rank = RANK, prompt: CanaryPrompt = PROMPT) -> Attempt:
        """Order one check of the rank; return the last attempt."""
        before = len(self.told)
        self.order(rank, prompt)
        await eventually_on_loop(lambda: len(self.told) > before + len(self._pauses))
        return self.told[-1][1]


@contextlib.asynccontextmanager
async def sending(
    owner, places, timeout_s: float = PATIENCE_S, names: Resolver | None = None, bugs: int = 0
) -> AsyncIterator[CanarySender]:
    """Yield a canary sender.

    bugs: expected number of failed callbacks
    """
    callbacks = GuardedCallbacks()
    canaries = CanarySender(
        owner, places, TimedHttpClient(names or Resolver()), callbacks, timeout_s=timeout_s
    )
    due = PeriodicTasks([PeriodicTask("canaries", MEASURE_INTERVAL_S, canaries.send_due)], 0.0)
    running = asyncio.create_task(due.run_tasks())
    try:
        yield canaries
    finally:
        running.cancel()
        await canaries.stop()
    assert callbacks.failures.get("canary", 0) == bugs
