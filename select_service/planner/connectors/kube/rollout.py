"""One wish on its way: reduce first, wait for the pods to go, then raise.

Raising at the same time as reducing would hold the GPUs of both for as long as pods take to end.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

from select_service.planner.connectors.base import Counts, RoleDecision, Status
from select_service.planner.connectors.draining import Drain
from select_service.planner.connectors.kube.bodies import Pod
from select_service.planner.connectors.kube.target import ORDINAL, Standing, Target
from select_service.planner.connectors.selectors import RankLoad
from select_service.planner.core.inputs import Role


class Going(NamedTuple):
    """One pod that goes.  worker_id: None: it is no worker that is known."""

    target: Target
    pod: Pod
    worker_id: int | None


class Rollout(Struct, kw_only=True):
    """before: replicas when it was decided, by role; whoever else changes them ends it.

    decided: what became of each role so far; status APPLIED and UNCHANGED are done.
    """

    wanted: Counts
    before: Mapping[Role, int]
    decided: dict[Role, RoleDecision]
    began: float
    drain: Drain | None = None
    going: tuple[Going, ...] = ()
    """Pods that the platform is to take."""

    def reduced(self) -> tuple[Role, ...]:
        """Roles that get fewer."""
        return tuple(r for r, count in self.before.items() if self.wanted[r] < count)

    def raised(self) -> tuple[Role, ...]:
        """Roles that get more."""
        return tuple(r for r, count in self.before.items() if self.wanted[r] > count)

    def is_written(self, role: Role) -> bool:
        """Does the platform know of it?"""
        return self.decided[role].status == Status.APPLIED

    def tell(self, role: Role, status: Status, detail: str = "") -> None:
        """What became of one role now."""
        victims = () if self.drain is None else tuple(map(str, self.drain.of_role(role)))
        self.decided[role] = RoleDecision(
            wanted=self.wanted[role], status=status, detail=detail, victims=victims
        )

    def is_under_way(self, role: Role) -> bool:
        """Is there something left to do for it?"""
        return self.decided[role].status in (Status.DRAINING, Status.WAITING)

    def still_going(self) -> tuple[Going, ...]:
        """Those whose count was not lowered yet."""
        return tuple(each for each in self.going if not self.is_written(each.target.role))

    def stop(self, now: float) -> None:
        """Another wish has come: nothing more is written for this one."""
        self.began = now
        for role in filter(self.is_under_way, tuple(self.decided)):
            self.tell(role, Status.FAILED, "another wish has come")

    @property
    def is_over(self) -> bool:
        """Is nothing left to do, or nothing that could be done?"""
        return not any(map(self.is_under_way, self.decided))


def has_gone(standing: Standing) -> bool:
    """Are there no more pods than are wanted, those that leave included?"""
    return standing.existing <= standing.replicas and not standing.terminating


def is_reducing(standing: Standing) -> bool:
    """Will the platform take away pods that it has not begun to end yet?"""
    return standing.existing - standing.terminating > standing.replicas


def victims_of(
    standing: Standing, count: int, loads: Iterable[RankLoad], worker_label: str
) -> list[tuple[Pod, int | None]]:
    """Who goes when there are `count` fewer, with the id of its worker where that is known.

    Replicas without pods go first.
    Where pods have ordinals the highest, as the platform does; else those that do not serve, then
    those with the fewest active and cached blocks.
    """
    by_id = {load.worker_id: load for load in loads}
    by_host = {load.host: load for load in by_id.values() if load.host}
    staying = [pod for pod in standing.pods if pod.metadata.deletion_timestamp is None]
    known = [(pod, worker_of(pod, by_host, worker_label)) for pod in staying]
    if standing.target.kind in ORDINAL:
        known.sort(key=lambda of: -_ordinal(of[0]))
    else:
        known.sort(key=lambda of: _use(of[0], None if of[1] is None else by_id.get(of[1])))
    missing = max(0, standing.replicas - len(staying))
    return known[: max(0, count - missing)]


def worker_of(pod: Pod, by_host: Mapping[str, RankLoad], worker_label: str) -> int | None:
    """By label or annotation, else by the address of the pod in the worker's endpoint."""
    said = pod.metadata.labels.get(worker_label) or pod.metadata.annotations.get(worker_label)
    if said and (number := number_of(said)) is not None:
        return number
    found = by_host.get(pod.status.pod_ip) if pod.status.pod_ip else None
    return None if found is None else found.worker_id


def number_of(said: str) -> int | None:
    """The id of a worker; None: it is none."""
    return int(said) if said.isascii() and said.isdigit() and len(said) < 20 else None


def _use(pod: Pod, load: RankLoad | None) -> tuple[bool, bool, int, int, str]:
    if load is None:
        return pod.is_ready, pod.is_ready, 0, 0, pod.metadata.name
    return pod.is_ready, False, load.active_blocks, load.cached_blocks, pod.metadata.name


def _ordinal(pod: Pod) -> int:
    tail = pod.metadata.name.rpartition("-")[2]
    return int(tail) if tail.isascii() and tail.isdigit() else -1
