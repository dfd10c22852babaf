"""Which pods go, that they drain, and that the platform takes just those."""

import asyncio
import logging
from collections.abc import Mapping

import msgspec

from select_service.planner.connectors.draining import Drain, Drainer
from select_service.planner.connectors.kube.api import Api, KubeError
from select_service.planner.connectors.kube.bodies import Pod
from select_service.planner.connectors.kube.rollout import Rollout, victims_of
from select_service.planner.connectors.kube.target import (
    DELETION_COST,
    FIRST_TO_GO,
    ORDINAL,
    Standing,
    mark,
)
from select_service.planner.core.inputs import Role

log = logging.getLogger("select_service.planner.connectors")


class Leaving:
    """drainer: None: the platform takes whom it likes."""

    def __init__(self, api: Api, drainer: Drainer | None, worker_label: str) -> None:
        self._api = api
        self._drainer = drainer
        self._worker_label = worker_label

    async def choose(
        self, rollout: Rollout, before: Rollout | None, found: Mapping[Role, Standing]
    ) -> None:
        """Who goes.  Nothing is asked for yet.

        Raises ConnectorUnavailable when no selector answers.
        """
        if self._drainer is None or not rollout.reduced():
            return
        earlier = None if before is None else still_draining(before)
        fewer = {r: found[r].replicas - rollout.wanted[r] for r in rollout.reduced()}
        if before is not None and earlier is not None and earlier.fewer == fewer:
            rollout.marked, before.marked = before.marked, ()
            rollout.drain = msgspec.structs.replace(earlier, wanted=dict(rollout.wanted))
            return
        loads = await self._drainer.loads()
        chosen = {
            role: victims_of(found[role], count, loads, self._worker_label)
            for role, count in fewer.items()
        }
        rollout.marked = tuple(
            (found[role].target.namespace, pod)
            for role, pods in chosen.items()
            if found[role].target.kind not in ORDINAL
            for pod, _ in pods
        )
        victims = [(w, role) for role, pods in chosen.items() for _, w in pods if w is not None]
        rollout.drain = self._drainer.planned(earlier, fewer, rollout.wanted, victims)

    async def begin(self, rollout: Rollout, before: Rollout | None) -> None:
        """Those that go begin to drain; who was to go before and is not among them serves again."""
        if self._drainer is None:
            return
        if rollout.drain is None:
            if before is not None:
                await self.take_back(before)
            return
        if before is not None:
            await self._unmark(before, rollout)
        await self._mark(rollout)
        earlier = None if before is None else still_draining(before)
        rollout.drain = await self._drainer.begin(earlier, rollout.drain)

    async def step(self, rollout: Rollout) -> None:
        """See who is done."""
        if rollout.drain is not None and self._drainer is not None:
            rollout.drain = await self._drainer.step(rollout.drain)

    async def take_back(self, rollout: Rollout) -> None:
        """Whoever was to go, and whose count was not lowered, serves again."""
        drain = still_draining(rollout)
        if drain is not None and self._drainer is not None:
            await self._unmark(rollout)
            await self._drainer.cancel(drain.workers)

    async def close(self) -> None:
        """See Drainer.close."""
        if self._drainer is not None:
            await self._drainer.close()

    async def _mark(self, rollout: Rollout) -> None:
        """Those that are not marked yet."""
        left = [each for each in rollout.marked if _cost(each[1]) != FIRST_TO_GO]
        await asyncio.gather(*(self._marked(*each, FIRST_TO_GO) for each in left))
        for _, pod in left:
            pod.metadata.annotations[DELETION_COST] = FIRST_TO_GO

    async def _unmark(self, rollout: Rollout, but: Rollout | None = None) -> None:
        """All but those that go for another rollout now."""
        kept = set() if but is None else {pod.metadata.name for _, pod in but.marked}
        left = [each for each in rollout.marked if each[1].metadata.name not in kept]
        await asyncio.gather(*(self._marked(*each, None) for each in left))
        rollout.marked = ()

    async def _marked(self, namespace: str, pod: Pod, cost: str | None) -> None:
        """Best effort: without the mark the platform takes whom it likes."""
        try:
            await mark(self._api, namespace, pod, cost)
        except KubeError as error:
            if error.status != 404:
                fields = {"pod": pod.metadata.name, "error": str(error)}
                log.warning("a pod cannot be marked as the first to go", extra={"fields": fields})


def _cost(pod: Pod) -> str | None:
    return pod.metadata.annotations.get(DELETION_COST)


def still_draining(rollout: Rollout) -> Drain | None:
    """The part of its drain whose counts were not lowered yet; None: there is none."""
    drain = rollout.drain
    if drain is None:
        return None
    fewer = {r: count for r, count in drain.fewer.items() if not rollout.is_written(r)}
    if not fewer:
        return None
    victims = tuple(victim for victim in drain.victims if victim.role in fewer)
    return msgspec.structs.replace(drain, fewer=fewer, victims=victims)
