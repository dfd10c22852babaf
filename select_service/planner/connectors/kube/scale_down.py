"""Choice of the pods to remove, their drain, and marks that make the platform remove just those.

An annotation of the pod records a drain before any selector is asked, and disappears with the pod.
So a successor of a killed planner finds the drains without a decision. Drains without the
annotation belong to other actors, and are left alone.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from select_service.net.kubernetes_session import KubernetesError
from select_service.planner.connectors.kube.api_requests import (
    NOT_FOUND,
    KubernetesApi,
)
from select_service.planner.connectors.kube.objects import PodObject
from select_service.planner.connectors.kube.rollout import (
    CountsRollout,
    RemovedPod,
    choose_pods_to_remove,
    parse_worker_id,
)
from select_service.planner.connectors.kube.scale_target import (
    DELETION_COST,
    DRAINED_WORKER,
    FIRST_TO_GO,
    ORDINAL_KINDS,
    TargetState,
    annotate_pod,
)
from select_service.planner.connectors.worker_drain import WorkerDrain, WorkerDrainer
from select_service.planner.core.tick_input import Role

log = logging.getLogger("select_service.planner.connectors")


class ScaleDown:
    """Scale-down of pods.

    drainer: None means the platform chooses the pods
    may_act: function that returns False if another planner may act soon
    """

    def __init__(
        self,
        api: KubernetesApi,
        drainer: WorkerDrainer | None,
        worker_label: str,
        may_act: Callable[[], bool],
    ) -> None:
        self._api = api
        self._drainer = drainer
        self._worker_label = worker_label
        self._may_act = may_act

    async def choose_pods(
        self,
        rollout: CountsRollout,
        before: CountsRollout | None,
        found: Mapping[Role, TargetState],
    ) -> None:
        """Choose the pods.  Sends nothing yet.

        Raises ConnectorUnavailable if no selector answers.
        """
        if self._drainer is None or not rollout.reduced_roles():
            return
        earlier = None if before is None else remaining_drain(before)
        fewer = {r: found[r].replicas - rollout.wanted[r] for r in rollout.reduced_roles()}
        # The same reduction keeps its pods: choosing anew would restart drains that are almost
        # done.
        if before is not None and earlier is not None and earlier.fewer == fewer:
            rollout.removed_pods = before.remaining_pods()
            rollout.drain = msgspec.structs.replace(earlier, wanted=dict(rollout.wanted))
            return
        loads = await self._drainer.read_loads()
        rollout.removed_pods = tuple(
            RemovedPod(found[role].target, pod, worker_id)
            for role, count in fewer.items()
            for pod, worker_id in choose_pods_to_remove(
                found[role], count, loads, self._worker_label
            )
        )
        out = {load.worker_id for load in loads if load.drains}
        known = [(each, w) for each in rollout.removed_pods if (w := each.worker_id) is not None]
        victims = [(worker_id, each.target.role) for each, worker_id in known]
        others = {w for each, w in known if w in out and not _has_drain_record(each.pod, w)}
        rollout.drain = self._drainer.plan_drain(earlier, fewer, rollout.wanted, victims, others)

    async def begin_drain(self, rollout: CountsRollout, before: CountsRollout | None) -> None:
        """Start the drain of the chosen pods; pods only in the rollout before serve again."""
        if before is not None:
            await self.undo_drain(before, rollout.removed_pods)
        await self.step_drain(rollout)

    async def step_drain(self, rollout: CountsRollout) -> None:
        """Send outstanding drain requests and update the progress.

        No drain is sent before its record, which a successor needs.
        """
        drain = rollout.drain
        if drain is None or drain.is_over or self._drainer is None or not self._may_act():
            return
        # The record must exist before the drain, unless the time is over anyway.
        if not (await self._write_records(rollout, drain) or self._drainer.is_late(drain)):
            return
        # Checked again, as writing the records may have taken longer than the lease.
        if self._may_act():
            rollout.drain = await self._drainer.step_drain(drain)

    async def undo_drain(
        self, rollout: CountsRollout, except_for: Sequence[RemovedPod] = ()
    ) -> None:
        """Make the chosen workers serve again, unless their count was lowered already."""
        drain, kept = remaining_drain(rollout), {_pod_key(each) for each in except_for}
        if drain is None:
            return
        others = _foreign_workers(drain)
        await self._release_pods(
            # Workers drained by other actors stay drained: only our mark on the pod is removed.
            each._replace(worker_id=None) if each.worker_id in others else each
            for each in rollout.remaining_pods()
            if _pod_key(each) not in kept
        )

    async def undo_stray_drains(
        self, standing: TargetState, except_for: Sequence[RemovedPod]
    ) -> bool:
        """Make workers serve again that drain without a decision, by the records of their pods.

        False if some are left.  except_for: pods of the current decision
        """
        kept = {_pod_key(each) for each in except_for}
        drained = [
            RemovedPod(standing.target, pod, parse_worker_id(worker_id))
            for pod in standing.pods
            if (worker_id := pod.metadata.annotations.get(DRAINED_WORKER)) is not None
            # A pod that is being deleted must not serve again.
            and pod.metadata.deletion_timestamp is None
        ]
        return await self._release_pods(each for each in drained if _pod_key(each) not in kept)

    async def close(self) -> None:
        """Close the connections."""
        if self._drainer is not None:
            await self._drainer.close()

    async def _write_records(self, rollout: CountsRollout, drain: WorkerDrain) -> bool:
        """Write the records of all chosen pods, as far as permitted.

        False if some must be retried.
        """
        others = _foreign_workers(drain)
        return all(
            await asyncio.gather(
                *(
                    self._write_annotations(
                        each, _removal_annotations(each, each.worker_id in others)
                    )
                    for each in rollout.remaining_pods()
                )
            )
        )

    async def _release_pods(self, going: Iterable[RemovedPod]) -> bool:
        """Undrain these pods; return whether all confirmed."""
        return all(await asyncio.gather(*map(self._release_pod, going)))

    async def _release_pod(self, going: RemovedPod) -> bool:
        """Undrain a pod; its record stays until every selector has confirmed."""
        drainer, worker_id = self._drainer, going.worker_id
        # Without confirmation of every selector the record stays, so that the next sweep tries
        # again.
        if drainer is None or not (worker_id is None or await drainer.cancel_drain([worker_id])):
            return False
        annotations = going.pod.metadata.annotations
        ours: dict[str, str | None] = {DRAINED_WORKER: None}
        if annotations.get(DELETION_COST) == FIRST_TO_GO:
            ours[DELETION_COST] = None
        return await self._write_annotations(going, ours)

    async def _write_annotations(self, going: RemovedPod, wanted: Mapping[str, str | None]) -> bool:
        """Write annotations that differ.  False if a later step may succeed.

        A permanent refusal counts as written: then a killed planner leaves its drains, and the
        platform chooses the pods.
        """
        there = going.pod.metadata.annotations
        changed = {name: value for name, value in wanted.items() if there.get(name) != value}
        if not changed:
            return True
        try:
            await annotate_pod(self._api, going.target.namespace, going.pod, changed)
        except KubernetesError as error:
            # A pod that is gone needs no mark.
            if error.status != NOT_FOUND:
                fields = {"pod": going.pod.metadata.name, "error": str(error)}
                log.warning("pod to remove not annotated", extra={"fields": fields})
            if error.is_transient:
                return False
        # The local copy follows, so that the same annotation is not written again in the next step.
        for name, value in changed.items():
            if value is None:
                there.pop(name, None)
            else:
                there[name] = value
        return True


def _removal_annotations(going: RemovedPod, is_others: bool) -> dict[str, str | None]:
    """Return the annotations of a pod to remove.

    Empty without an order and without a drain of ours.
    """
    worker_id = "" if going.worker_id is None or is_others else str(going.worker_id)
    # The deletion cost only has an effect on ReplicaSets.
    if going.target.kind not in ORDINAL_KINDS:
        return {DRAINED_WORKER: worker_id, DELETION_COST: FIRST_TO_GO}
    return {DRAINED_WORKER: worker_id} if worker_id else {}


def _has_drain_record(pod: PodObject, worker_id: int) -> bool:
    """Return whether the pod records this worker as drained."""
    return pod.metadata.annotations.get(DRAINED_WORKER) == str(worker_id)


def _pod_key(going: RemovedPod) -> tuple[str, str]:
    """Return namespace and name of a pod."""
    return going.target.namespace, going.pod.metadata.name


def _foreign_workers(drain: WorkerDrain) -> set[int]:
    """Return the workers taken out by other actors."""
    return {victim.worker_id for victim in drain.victims if victim.is_others}


def remaining_drain(rollout: CountsRollout) -> WorkerDrain | None:
    """Return the part of the drain with counts that were not lowered yet, or None."""
    drain = rollout.drain
    if drain is None:
        return None
    fewer = {r: count for r, count in drain.fewer.items() if not rollout.is_written(r)}
    if not fewer:
        return None
    victims = tuple(victim for victim in drain.victims if victim.role in fewer)
    return msgspec.structs.replace(drain, fewer=fewer, victims=victims)
