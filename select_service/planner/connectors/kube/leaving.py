"""Which pods go, that they drain, and that the platform takes just those.

That a planner drains a worker stands in an annotation of its pod before any selector is asked, and
goes with the pod.  So whoever acts after a planner that was killed knows what drains for nobody;
what drains without it was asked for by somebody else, and is left alone.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from select_service.planner.connectors.draining import Drain, Drainer
from select_service.planner.connectors.kube.api import NOT_FOUND, Api, KubeError
from select_service.planner.connectors.kube.bodies import Pod
from select_service.planner.connectors.kube.rollout import Going, Rollout, number_of, victims_of
from select_service.planner.connectors.kube.target import (
    DELETION_COST,
    DRAINED_WORKER,
    FIRST_TO_GO,
    ORDINAL,
    Standing,
    annotate,
)
from select_service.planner.core.inputs import Role

log = logging.getLogger("select_service.planner.connectors")


class Leaving:
    """drainer: None: the platform takes whom it likes.  may_act: False: another planner may do so
    soon"""

    def __init__(
        self, api: Api, drainer: Drainer | None, worker_label: str, may_act: Callable[[], bool]
    ) -> None:
        self._api = api
        self._drainer = drainer
        self._worker_label = worker_label
        self._may_act = may_act

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
            rollout.going = before.still_going()
            rollout.drain = msgspec.structs.replace(earlier, wanted=dict(rollout.wanted))
            return
        loads = await self._drainer.loads()
        rollout.going = tuple(
            Going(found[role].target, pod, worker_id)
            for role, count in fewer.items()
            for pod, worker_id in victims_of(found[role], count, loads, self._worker_label)
        )
        out = {load.worker_id for load in loads if load.drains}
        known = [(each, w) for each in rollout.going if (w := each.worker_id) is not None]
        victims = [(worker_id, each.target.role) for each, worker_id in known]
        others = {w for each, w in known if w in out and not _is_recorded(each.pod, w)}
        rollout.drain = self._drainer.planned(earlier, fewer, rollout.wanted, victims, others)

    async def begin(self, rollout: Rollout, before: Rollout | None) -> None:
        """Those that go begin to drain; who was to go before and is not among them serves again."""
        if before is not None:
            await self.take_back(before, rollout.going)
        await self.step(rollout)

    async def step(self, rollout: Rollout) -> None:
        """Ask who was not asked yet, and see who is done.

        Nobody is asked of whom a planner after this one would not know.
        """
        drain = rollout.drain
        if drain is None or drain.is_over or self._drainer is None or not self._may_act():
            return
        if not (await self._recorded(rollout, drain) or self._drainer.is_late(drain)):
            return
        if self._may_act():
            rollout.drain = await self._drainer.step(drain)

    async def take_back(self, rollout: Rollout, but: Sequence[Going] = ()) -> None:
        """Whoever was to go, and whose count was not lowered, serves again."""
        drain, kept = still_draining(rollout), {_key(each) for each in but}
        if drain is None:
            return
        others = _others(drain)
        await self._released(
            each._replace(worker_id=None) if each.worker_id in others else each
            for each in rollout.still_going()
            if _key(each) not in kept
        )

    async def sweep(self, standing: Standing, but: Sequence[Going]) -> bool:
        """Workers that drain for no wish, as their pods say, serve again.  False: not all yet.

        but: what goes for the wish there is
        """
        kept = {_key(each) for each in but}
        drained = [
            Going(standing.target, pod, number_of(worker_id))
            for pod in standing.pods
            if (worker_id := pod.metadata.annotations.get(DRAINED_WORKER)) is not None
            and pod.metadata.deletion_timestamp is None
        ]
        return await self._released(each for each in drained if _key(each) not in kept)

    async def close(self) -> None:
        """See Drainer.close."""
        if self._drainer is not None:
            await self._drainer.close()

    async def _recorded(self, rollout: Rollout, drain: Drain) -> bool:
        """That they go stands at their pods, as far as that is allowed.  False: not at all yet."""
        others = _others(drain)
        return all(
            await asyncio.gather(
                *(
                    self._annotated(each, _record(each, each.worker_id in others))
                    for each in rollout.still_going()
                )
            )
        )

    async def _released(self, going: Iterable[Going]) -> bool:
        return all(await asyncio.gather(*map(self._let_go, going)))

    async def _let_go(self, going: Going) -> bool:
        """The record stays until every selector has heard that the worker serves again."""
        drainer, worker_id = self._drainer, going.worker_id
        if drainer is None or not (worker_id is None or await drainer.cancel([worker_id])):
            return False
        annotations = going.pod.metadata.annotations
        ours: dict[str, str | None] = {DRAINED_WORKER: None}
        if annotations.get(DELETION_COST) == FIRST_TO_GO:
            ours[DELETION_COST] = None
        return await self._annotated(going, ours)

    async def _annotated(self, going: Going, wanted: Mapping[str, str | None]) -> bool:
        """What is there already is not written.  False: it may be at the next step.

        Where it never may, it counts as written: a planner that is killed leaves its drains then,
        and the platform takes whom it likes.
        """
        there = going.pod.metadata.annotations
        changed = {name: value for name, value in wanted.items() if there.get(name) != value}
        if not changed:
            return True
        try:
            await annotate(self._api, going.target.namespace, going.pod, changed)
        except KubeError as error:
            if error.status != NOT_FOUND:
                fields = {"pod": going.pod.metadata.name, "error": str(error)}
                log.warning("a pod that goes cannot be marked", extra={"fields": fields})
            if error.is_passing:
                return False
        for name, value in changed.items():
            if value is None:
                there.pop(name, None)
            else:
                there[name] = value
        return True


def _record(going: Going, is_others: bool) -> dict[str, str | None]:
    """What stands at a pod that goes; nothing where the platform asks for no order and nobody
    drains for us."""
    worker_id = "" if going.worker_id is None or is_others else str(going.worker_id)
    if going.target.kind not in ORDINAL:
        return {DRAINED_WORKER: worker_id, DELETION_COST: FIRST_TO_GO}
    return {DRAINED_WORKER: worker_id} if worker_id else {}


def _is_recorded(pod: Pod, worker_id: int) -> bool:
    return pod.metadata.annotations.get(DRAINED_WORKER) == str(worker_id)


def _key(going: Going) -> tuple[str, str]:
    return going.target.namespace, going.pod.metadata.name


def _others(drain: Drain) -> set[int]:
    return {victim.worker_id for victim in drain.victims if victim.is_others}


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
