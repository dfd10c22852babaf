"""Drain of surplus replicas, so that their requests finish first.

A drain holds the chosen workers, the start and the progress; the drainer advances by one step at a
time, so that a tick never waits for requests of minutes.  After the timeout the remaining workers
are removed anyway: a hanging engine must not hold its GPU for ever.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from time import monotonic

import msgspec
from msgspec import Struct

from select_service.planner.connectors.connector import ConnectorUnavailable, DesiredCounts
from select_service.planner.connectors.selector_client import (
    DrainAnswer,
    DrainRemainder,
    SelectorClients,
    WorkerLoad,
)
from select_service.planner.core.tick_input import Role

log = logging.getLogger("select_service.planner.connectors")

DRAIN_TIMEOUT_S = 300.0
ABSENT_WORKER_S = 60.0
"""Time after which a worker unknown to a selector counts as gone. Until then the selector may have
restarted, and the worker may register again as serving.
"""


class DrainingWorker(Struct, frozen=True, kw_only=True):
    """Worker to remove."""

    worker_id: int
    role: Role
    is_asked: bool = False
    is_done: bool = False
    is_others: bool = False
    """Whether another actor took the worker out: the planner neither drains nor restores such a
    worker.
    """
    absent_since: float | None = None
    """Time at which a selector was first found without this worker; None if all have it."""


class WorkerDrain(Struct, frozen=True, kw_only=True):
    """Drain of all workers to remove for a decision."""

    wanted: DesiredCounts
    fewer: Mapping[Role, int]
    """Number of replicas to remove, by role."""
    victims: tuple[DrainingWorker, ...] = ()
    since: float
    is_over: bool = False

    @property
    def roles(self) -> tuple[Role, ...]:
        """Roles that are reduced."""
        return tuple(self.fewer)

    @property
    def worker_ids(self) -> tuple[int, ...]:
        """Ids of all workers to remove."""
        return tuple(victim.worker_id for victim in self.victims)

    def workers_of_role(self, role: Role) -> tuple[int, ...]:
        """Return the ids of the workers to remove of a role."""
        return tuple(victim.worker_id for victim in self.victims if victim.role == role)


def least_used_workers(loads: Iterable[WorkerLoad], role: Role, count: int) -> list[WorkerLoad]:
    """Return the cheapest workers to remove: lost ones, then those with the fewest active and the
    fewest cached blocks.
    """
    of_role = [load for load in loads if load.role == role]
    of_role.sort(
        key=lambda load: (
            not load.is_lost,
            load.active_blocks,
            load.cached_blocks,
            load.worker_id,
        )
    )
    return of_role[:count]


class WorkerDrainer:
    """Executor of drains.

    timeout_s: time after which remaining workers are removed with their requests
    """

    def __init__(
        self,
        selectors: SelectorClients,
        timeout_s: float = DRAIN_TIMEOUT_S,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._selectors = selectors
        self._timeout_s = timeout_s
        self._clock = clock

    async def read_loads(self) -> list[WorkerLoad]:
        """Return the loads of the workers.  Raises ConnectorUnavailable if no selector answers."""
        loads = await self._selectors.read_loads()
        if loads is None:
            raise ConnectorUnavailable("no selector answers: replicas are not reduced")
        return loads

    async def serves_requests(self, worker_id: int) -> bool:
        """Return whether any selector sends requests to a worker, or may do.

        Raises ConnectorUnavailable while a selector is silent.
        """
        found = await self._selectors.read_remainders((worker_id,))
        if found is None:
            raise ConnectorUnavailable("a selector does not answer")
        left = found.get(worker_id)
        return left is not None and left.serves

    async def choose_workers(
        self, before: WorkerDrain | None, fewer: Mapping[Role, int], wanted: DesiredCounts
    ) -> WorkerDrain:
        """Choose the least used workers of each role, without any request to them yet.

        An equal request continues with its workers. Raises ConnectorUnavailable if no selector
        answers.
        """
        # The same reduction continues: choosing anew would undrain workers that are almost done.
        if before is not None and before.fewer == fewer:
            return msgspec.structs.replace(before, wanted=dict(wanted))
        loads = await self.read_loads()
        victims: list[tuple[int, Role]] = []
        for role, count in fewer.items():
            # Workers already chosen come first, as their drain has progressed.
            going = () if before is None else before.workers_of_role(role)[:count]
            # Another actor's drain removes its worker without this drain.
            others = [one for one in loads if not (one.drains or one.worker_id in going)]
            chosen = least_used_workers(others, role, count - len(going))
            victims += [(worker, role) for worker in going]
            victims += [(load.worker_id, role) for load in chosen]
        return self.plan_drain(before, fewer, wanted, victims)

    def plan_drain(
        self,
        before: WorkerDrain | None,
        fewer: Mapping[Role, int],
        wanted: DesiredCounts,
        victims: Sequence[tuple[int, Role]],
        others: Collection[int] = (),
    ) -> WorkerDrain:
        """Return the drain of these workers, with the progress so far.  Sends nothing yet.

        others: workers that another actor has taken out
        """
        chosen = [
            DrainingWorker(worker_id=worker_id, role=role, is_others=worker_id in others)
            for worker_id, role in victims
        ]
        since = self._clock()
        if before is not None:
            known = {victim.worker_id: victim for victim in before.victims}
            chosen = [known.get(victim.worker_id, victim) for victim in chosen]
            # The timeout restarts with new workers, which have not had their time yet.
            if all(victim.worker_id in known for victim in chosen):
                since = before.since
        return WorkerDrain(
            wanted=dict(wanted), fewer=dict(fewer), victims=tuple(chosen), since=since
        )

    async def begin_drain(self, before: WorkerDrain | None, drain: WorkerDrain) -> WorkerDrain:
        """Start a drain; workers only in the drain before serve again."""
        if before is not None:
            await self.cancel_drain(set(before.worker_ids) - set(drain.worker_ids))
        return await self.step_drain(drain)

    async def step_drain(self, drain: WorkerDrain) -> WorkerDrain:
        """Send outstanding drain requests, then update the progress."""
        if drain.is_over:
            return drain
        victims = list(
            await asyncio.gather(*(self._send_drain_request(victim) for victim in drain.victims))
        )
        if not all(victim.is_done for victim in victims):
            # None while a selector is silent: then nothing can be concluded about remaining
            # requests.
            found = await self._selectors.read_remainders(drain.worker_ids)
            if found is not None:
                victims = [_update_progress(victim, found, self._clock()) for victim in victims]
        left = [victim.worker_id for victim in victims if not victim.is_done]
        is_late = self.is_late(drain)
        if left and is_late:
            fields = {"workers": left, "timeout_s": self._timeout_s}
            log.warning(
                "drain timed out, workers removed with open requests", extra={"fields": fields}
            )
        return msgspec.structs.replace(drain, victims=tuple(victims), is_over=not left or is_late)

    def is_late(self, drain: WorkerDrain) -> bool:
        """Return whether the timeout has passed."""
        return self._clock() - drain.since >= self._timeout_s

    async def cancel_drain(self, workers: Iterable[int]) -> bool:
        """Make all these workers serve again.  False if a selector did not confirm."""
        return all(await asyncio.gather(*map(self._selectors.undrain_worker, sorted(workers))))

    async def close(self) -> None:
        """Close the connections."""
        await self._selectors.close()

    async def _send_drain_request(self, victim: DrainingWorker) -> DrainingWorker:
        """Send the drain request of a worker, unless sent before."""
        if victim.is_asked or victim.is_done or victim.is_others:
            return victim
        answer = await self._selectors.drain_worker(victim.worker_id)
        # Sent again at the next step.
        if answer == DrainAnswer.FAILED:
            return victim
        # Neither answer will ever lead to a drain, so waiting would only delay the scale-down.
        done = answer in (DrainAnswer.UNKNOWN, DrainAnswer.HEALTH_OFF)
        return msgspec.structs.replace(victim, is_asked=True, is_done=done)


def _update_progress(
    victim: DrainingWorker, found: Mapping[int, DrainRemainder], now_s: float
) -> DrainingWorker:
    """Return the worker's progress.

    A worker that serves again, after a restart of a selector or by another actor, gets a new
    request.
    """
    if not (victim.is_asked or victim.is_others):
        return victim
    left = found.get(victim.worker_id)
    if left is None:
        since = now_s if victim.absent_since is None else victim.absent_since
        done = victim.is_done or now_s - since >= ABSENT_WORKER_S
        return msgspec.structs.replace(victim, is_done=done, absent_since=since)
    # A worker without requests that still serves can get one in the next moment.
    done = not left.serves and left.reservations == 0
    asked, others = (not left.serves and of for of in (victim.is_asked, victim.is_others))
    return msgspec.structs.replace(
        victim, is_asked=asked, is_done=done, is_others=others, absent_since=None
    )
