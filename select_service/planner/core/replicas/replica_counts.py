"""Replica counts of a deployment at a tick, with the limits of its engines."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from select_service.planner.core.replicas.lost_capacity import LostReplicas
from select_service.planner.core.replicas.startups import (
    StartUpProgress,
    StartUpTracker,
    count_starting,
    is_in_progress,
)
from select_service.planner.core.settings import DeploymentSettings, scaled_roles
from select_service.planner.core.tick_input import EngineLimits, Role, RoleReplicas, TickInput


class RoleCounts(NamedTuple):
    """Replica counts of a role.

    ready:    ready replicas
    starting: replicas that start
    moving:   whether a change is under way
    verified: whether the connector has verified that replicas only start
    waiting:  progress of the start-up
    lost:     replicas that health has taken out, which are neither ready nor starting
    spares:   idle spares among the ready replicas, without requests
    """

    ready: int
    starting: int
    moving: bool
    verified: bool
    waiting: StartUpProgress
    lost: int = 0
    spares: int = 0

    @property
    def running_or_starting(self) -> int:
        """Number of replicas that run or start."""
        return self.ready + self.starting


class ReplicaCounts(NamedTuple):
    """Replica counts of all roles of the mode."""

    roles: Mapping[Role, RoleCounts]

    @property
    def ready(self) -> dict[Role, int]:
        """Ready replicas by role."""
        return {role: now.ready for role, now in self.roles.items()}

    @property
    def running_or_starting(self) -> dict[Role, int]:
        """Replicas that run or start, by role."""
        return {role: now.running_or_starting for role, now in self.roles.items()}

    @property
    def lost(self) -> dict[Role, int]:
        """Lost replicas by role."""
        return {role: now.lost for role, now in self.roles.items()}

    @property
    def is_asleep(self) -> bool:
        """Whether no replica is ready."""
        return not any(self.ready.values())

    @property
    def is_changing(self) -> bool:
        """Whether a change is under way in any role."""
        return any(now.moving for now in self.roles.values())

    @property
    def is_only_starting(self) -> bool:
        """Whether at least one replica starts, and every change under way is a verified
        start-up.
        """
        moving = [now for now in self.roles.values() if now.moving]
        begun = any(now.starting > 0 for now in moving)
        return begun and all(now.verified for now in moving)


def _last_known_limits(before: EngineLimits, now: RoleReplicas) -> EngineLimits:
    """Return the limits of the engines; without ready engines the last known limits."""
    assert now.limits is not None
    # The platform reports limits of a pod template even without engines, but without the values
    # that only engines know; those are kept from the last ready engine.
    if now.ready:
        return now.limits
    said = {field: getattr(now.limits, field) for field in EngineLimits.__struct_fields__}
    return replace(before, **{field: n for field, n in said.items() if n is not None})


class ReplicaInventory:
    """Readings of each role over ticks."""

    def __init__(self, settings: DeploymentSettings) -> None:
        self._roles = scaled_roles(settings)
        self._startups = {role: StartUpTracker(settings) for role in self._roles}
        self.limits = {role: EngineLimits() for role in self._roles}
        self.losses = LostReplicas(settings, self._roles)
        self._wait_s = settings.scaling_max_wait
        self._since: dict[Role, tuple[RoleReplicas, float]] = {}
        """Reading of a role under change, and the time since which the reading is the same."""

    def observe_replicas(self, tick_input: TickInput) -> ReplicaCounts | None:
        """Return the replica counts; None if a role could not be read."""
        found: dict[Role, RoleCounts] = {}
        readings = self.losses.read_roles(tick_input)
        for role in self._roles:
            if role not in readings:
                return None
            replicas, lost, spares = readings[role]
            if replicas.limits is not None:
                self.limits[role] = _last_known_limits(self.limits[role], replicas)
            waiting = self._startups[role].observe_role(tick_input.now_s, replicas)
            found[role] = RoleCounts(
                replicas.ready,
                count_starting(replicas),
                self._is_changing(role, replicas, tick_input.now_s),
                replicas.startup_only,
                waiting,
                lost,
                spares,
            )
        return ReplicaCounts(found)

    def without_replaced(
        self, counts: ReplicaCounts, replaced: Collection[int], roles: Mapping[int, Role]
    ) -> ReplicaCounts:
        """Return the counts after lost replicas began to start.

        roles: role of each replaced worker
        """
        found = dict(counts.roles)
        for worker_id in replaced:
            role = roles[worker_id]
            now = found[role]
            found[role] = now._replace(starting=now.starting + 1, lost=now.lost - 1)
        return ReplicaCounts(found)

    def _is_changing(self, role: Role, replicas: RoleReplicas, now_s: float) -> bool:
        """Return whether a change is under way.

        A change without progress for `scaling_max_wait` is not.
        """
        if not is_in_progress(replicas):
            self._since.pop(role, None)
            return False
        before = self._since.get(role)
        # Any change of the reading is progress, so only a standstill counts against the maximum
        # wait.
        if before is None or before[0] != replicas:
            self._since[role] = replicas, now_s
            return True
        return now_s - before[1] < self._wait_s

    @property
    def startup_s(self) -> float:
        """Start-up time of the slower role, seconds."""
        return max(each.startup_s for each in self._startups.values())

    def startup_seconds_of(self, role: Role) -> float:
        """Return the start-up time of a role, seconds."""
        return self._startups[role].startup_s
