"""Replicas that shall go finish their requests first.

A `Drain` is who has to go, since when, and who is done; the `Drainer` takes it on by one step at a
time, so that a tick never waits for requests of minutes.  When the time is over those that are left
go anyway: an engine that hangs must not hold its GPU for ever.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from time import monotonic

import msgspec
from msgspec import Struct

from select_service.planner.connectors.base import ConnectorUnavailable, Counts
from select_service.planner.connectors.selectors import Drained, Left, RankLoad, Selectors
from select_service.planner.core.inputs import Role

log = logging.getLogger("select_service.planner.connectors")

TIMEOUT_S = 300.0
ABSENT_S = 60.0
"""After that a worker that a selector does not know has gone. Until then the selector may have
begun anew, and the worker registers again, as one that serves."""


class Victim(Struct, frozen=True, kw_only=True):
    """One worker that has to go."""

    worker_id: int
    role: Role
    is_asked: bool = False
    is_done: bool = False
    is_others: bool = False
    """Somebody else has taken it out: it is neither asked nor let serve again."""
    absent_since: float | None = None
    """When a selector was first found not to know it; None: all do."""


class Drain(Struct, frozen=True, kw_only=True):
    """All that have to go for one wish."""

    wanted: Counts
    fewer: Mapping[Role, int]
    """How many fewer of each role."""
    victims: tuple[Victim, ...] = ()
    since: float
    is_over: bool = False

    @property
    def roles(self) -> tuple[Role, ...]:
        """Roles that are reduced."""
        return tuple(self.fewer)

    @property
    def workers(self) -> tuple[int, ...]:
        """Ids of all that have to go."""
        return tuple(victim.worker_id for victim in self.victims)

    def of_role(self, role: Role) -> tuple[int, ...]:
        """Ids of those of one role."""
        return tuple(victim.worker_id for victim in self.victims if victim.role == role)


def least_used(loads: Iterable[RankLoad], role: Role, count: int) -> list[RankLoad]:
    """Those whose going costs least: fewest active blocks, then fewest cached ones."""
    of_role = [load for load in loads if load.role == role]
    of_role.sort(key=lambda load: (load.active_blocks, load.cached_blocks, load.worker_id))
    return of_role[:count]


class Drainer:
    """timeout_s: after that those that are left go with what they have."""

    def __init__(
        self,
        selectors: Selectors,
        timeout_s: float = TIMEOUT_S,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._selectors = selectors
        self._timeout_s = timeout_s
        self._clock = clock

    async def loads(self) -> list[RankLoad]:
        """Of the workers.  Raises ConnectorUnavailable when no selector answers."""
        loads = await self._selectors.loads()
        if loads is None:
            raise ConnectorUnavailable("no selector answers: nothing is taken away")
        return loads

    async def choose(
        self, before: Drain | None, fewer: Mapping[Role, int], wanted: Counts
    ) -> Drain:
        """The least used of each role; the same wish again goes on.  Nothing is asked for yet.

        Raises ConnectorUnavailable when no selector answers.
        """
        if before is not None and before.fewer == fewer:
            return msgspec.structs.replace(before, wanted=dict(wanted))
        loads = await self.loads()
        victims: list[tuple[int, Role]] = []
        for role, count in fewer.items():
            going = () if before is None else before.of_role(role)[:count]
            others = [one for one in loads if not (one.drains or one.worker_id in going)]
            chosen = least_used(others, role, count - len(going))
            victims += [(worker, role) for worker in going]
            victims += [(load.worker_id, role) for load in chosen]
        return self.planned(before, fewer, wanted, victims)

    def planned(
        self,
        before: Drain | None,
        fewer: Mapping[Role, int],
        wanted: Counts,
        victims: Sequence[tuple[int, Role]],
        others: Collection[int] = (),
    ) -> Drain:
        """That these drain, as far as they do already.  Nothing is asked for yet.

        others: workers that somebody else has taken out
        """
        chosen = [
            Victim(worker_id=worker_id, role=role, is_others=worker_id in others)
            for worker_id, role in victims
        ]
        since = self._clock()
        if before is not None:
            known = {victim.worker_id: victim for victim in before.victims}
            chosen = [known.get(victim.worker_id, victim) for victim in chosen]
            if all(victim.worker_id in known for victim in chosen):
                since = before.since
        return Drain(wanted=dict(wanted), fewer=dict(fewer), victims=tuple(chosen), since=since)

    async def begin(self, before: Drain | None, drain: Drain) -> Drain:
        """They drain; of the drain before, who is not among them serves again."""
        if before is not None:
            await self.cancel(set(before.workers) - set(drain.workers))
        return await self.step(drain)

    async def step(self, drain: Drain) -> Drain:
        """Ask who was not asked yet; see who is done."""
        if drain.is_over:
            return drain
        victims = list(await asyncio.gather(*(self._asked(victim) for victim in drain.victims)))
        if not all(victim.is_done for victim in victims):
            found = await self._selectors.left(drain.workers)
            if found is not None:
                victims = [_seen(victim, found, self._clock()) for victim in victims]
        left = [victim.worker_id for victim in victims if not victim.is_done]
        is_late = self.is_late(drain)
        if left and is_late:
            fields = {"workers": left, "timeout_s": self._timeout_s}
            log.warning("workers go before they have drained", extra={"fields": fields})
        return msgspec.structs.replace(drain, victims=tuple(victims), is_over=not left or is_late)

    def is_late(self, drain: Drain) -> bool:
        """Do those that are left go with what they have?"""
        return self._clock() - drain.since >= self._timeout_s

    async def cancel(self, workers: Iterable[int]) -> bool:
        """All of them serve again.  False: not at every selector."""
        return all(await asyncio.gather(*map(self._selectors.undrain, sorted(workers))))

    async def close(self) -> None:
        """See Selectors.close."""
        await self._selectors.close()

    async def _asked(self, victim: Victim) -> Victim:
        if victim.is_asked or victim.is_done or victim.is_others:
            return victim
        answer = await self._selectors.drain(victim.worker_id)
        if answer == Drained.FAILED:
            return victim
        done = answer in (Drained.UNKNOWN, Drained.HEALTH_OFF)
        return msgspec.structs.replace(victim, is_asked=True, is_done=done)


def _seen(victim: Victim, found: Mapping[int, Left], now_s: float) -> Victim:
    """One that serves again, as a selector has begun anew, is asked once more; so is one that
    somebody else had taken out."""
    if not (victim.is_asked or victim.is_others):
        return victim
    left = found.get(victim.worker_id)
    if left is None:
        since = now_s if victim.absent_since is None else victim.absent_since
        done = victim.is_done or now_s - since >= ABSENT_S
        return msgspec.structs.replace(victim, is_done=done, absent_since=since)
    done = not left.serves and left.reservations == 0
    asked, others = (not left.serves and of for of in (victim.is_asked, victim.is_others))
    return msgspec.structs.replace(
        victim, is_asked=asked, is_done=done, is_others=others, absent_since=None
    )
