"""Rollout of a decision: reduce first, wait for the pods to end, then raise.

A raise concurrent with a reduction would need the GPUs of both until the pods have ended.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

from select_service.planner.connectors.connector import ConnectorStatus, DesiredCounts, RoleOutcome
from select_service.planner.connectors.kube.objects import PodObject
from select_service.planner.connectors.kube.scale_target import (
    ORDINAL_KINDS,
    ScaleTarget,
    TargetState,
)
from select_service.planner.connectors.selector_client import WorkerLoad
from select_service.planner.connectors.worker_drain import WorkerDrain
from select_service.planner.core.tick_input import Role


class RemovedPod(NamedTuple):
    """Pod to remove.  worker_id: None if its worker is unknown"""

    target: ScaleTarget
    pod: PodObject
    worker_id: int | None


class CountsRollout(Struct, kw_only=True):
    """Rollout of desired counts.

    before:  replicas at the decision, by role; a change by another actor ends the rollout
    decided: outcome of each role so far; APPLIED and UNCHANGED are final
    """

    wanted: DesiredCounts
    before: Mapping[Role, int]
    decided: dict[Role, RoleOutcome]
    began: float
    drain: WorkerDrain | None = None
    removed_pods: tuple[RemovedPod, ...] = ()
    """Pods that the platform is to remove."""

    def reduced_roles(self) -> tuple[Role, ...]:
        """Return the roles with fewer replicas."""
        return tuple(r for r, count in self.before.items() if self.wanted[r] < count)

    def raised_roles(self) -> tuple[Role, ...]:
        """Return the roles with more replicas."""
        return tuple(r for r, count in self.before.items() if self.wanted[r] > count)

    def is_written(self, role: Role) -> bool:
        """Return whether the platform has the new count."""
        return self.decided[role].status == ConnectorStatus.APPLIED

    def set_outcome(self, role: Role, status: ConnectorStatus, detail: str = "") -> None:
        """Set the outcome of a role."""
        victims = () if self.drain is None else tuple(map(str, self.drain.workers_of_role(role)))
        self.decided[role] = RoleOutcome(
            wanted=self.wanted[role], status=status, detail=detail, victims=victims
        )

    def is_under_way(self, role: Role) -> bool:
        """Return whether a role still needs a step."""
        return self.decided[role].status in (ConnectorStatus.DRAINING, ConnectorStatus.WAITING)

    def remaining_pods(self) -> tuple[RemovedPod, ...]:
        """Return the pods of roles with a count that was not lowered yet."""
        return tuple(each for each in self.removed_pods if not self.is_written(each.target.role))

    def stop_rollout(self, now: float) -> None:
        """End the rollout because of a newer decision: nothing more is written."""
        self.began = now
        for role in filter(self.is_under_way, tuple(self.decided)):
            self.set_outcome(role, ConnectorStatus.FAILED, "superseded by a newer decision")

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return not any(map(self.is_under_way, self.decided))


def have_pods_ended(standing: TargetState) -> bool:
    """Return whether there are no surplus pods; terminating pods count."""
    # Terminating pods hold their GPUs to the end.
    return standing.existing <= standing.replicas and not standing.terminating


def has_surplus_pods(standing: TargetState) -> bool:
    """Return whether the platform will remove pods that it has not begun to end yet."""
    return standing.existing - standing.terminating > standing.replicas


def choose_pods_to_remove(
    standing: TargetState, count: int, loads: Iterable[WorkerLoad], worker_label: str
) -> list[tuple[PodObject, int | None]]:
    """Return the pods to remove for `count` fewer replicas, each with its worker id if known.

    Replicas without pods go first. With ordinals the highest go, as the platform does; else unready
    pods, then pods with the fewest active and cached blocks.
    """
    by_id = {load.worker_id: load for load in loads}
    by_host = {load.host: load for load in by_id.values() if load.host}
    staying = [pod for pod in standing.pods if pod.metadata.deletion_timestamp is None]
    known = [(pod, find_worker(pod, by_host, worker_label)) for pod in staying]
    if standing.target.kind in ORDINAL_KINDS:
        known.sort(key=lambda of: -_pod_ordinal(of[0]))
    else:
        known.sort(key=lambda of: _removal_cost(of[0], None if of[1] is None else by_id.get(of[1])))
    # Replicas that have no pod yet cost nothing to remove, so they count first.
    missing = max(0, standing.replicas - len(staying))
    return known[: max(0, count - missing)]


def find_worker(pod: PodObject, by_host: Mapping[str, WorkerLoad], worker_label: str) -> int | None:
    """Return the worker of a pod.

    The worker is found by label or annotation, else by the pod's address in the worker's endpoint.
    """
    said = pod.metadata.labels.get(worker_label) or pod.metadata.annotations.get(worker_label)
    if said and (number := parse_worker_id(said)) is not None:
        return number
    # An empty address would match all workers without a known host.
    found = by_host.get(pod.status.pod_ip) if pod.status.pod_ip else None
    return None if found is None else found.worker_id


def parse_worker_id(text: str) -> int | None:
    """Return the worker id of a text, or None."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _removal_cost(pod: PodObject, load: WorkerLoad | None) -> tuple[bool, bool, int, int, str]:
    """Return the sort key of a pod by the cost of its removal."""
    if load is None:
        return pod.is_ready, pod.is_ready, 0, 0, pod.metadata.name
    return (
        pod.is_ready and not load.is_lost,
        False,
        load.active_blocks,
        load.cached_blocks,
        pod.metadata.name,
    )


def _pod_ordinal(pod: PodObject) -> int:
    """Return the ordinal of a pod, or -1."""
    tail = pod.metadata.name.rpartition("-")[2]
    return int(tail) if tail.isascii() and tail.isdigit() else -1
