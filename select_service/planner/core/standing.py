"""What there is of a deployment at a tick: ready, starting, moving, and what bounds it."""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from select_service.planner.core.inputs import Limits, Replicas, Role, TickInput
from select_service.planner.core.settings import Settings, roles_of
from select_service.planner.core.startups import Startups, Waiting, in_progress, starting


class RoleNow(NamedTuple):
    """verified: only start-ups are under way, says the connector"""

    ready: int
    starting: int
    moving: bool
    verified: bool
    waiting: Waiting

    @property
    def have(self) -> int:
        """Replicas that are there or will be."""
        return self.ready + self.starting


class Standing(NamedTuple):
    """All roles of the mode."""

    roles: Mapping[Role, RoleNow]

    @property
    def ready(self) -> dict[Role, int]:
        return {role: now.ready for role, now in self.roles.items()}

    @property
    def have(self) -> dict[Role, int]:
        return {role: now.have for role, now in self.roles.items()}

    @property
    def is_asleep(self) -> bool:
        """Whether no replica is ready."""
        return not any(self.ready.values())

    @property
    def moving(self) -> bool:
        return any(now.moving for now in self.roles.values())

    @property
    def only_starting(self) -> bool:
        """Whatever moves is a verified start-up, and something does."""
        moving = [now for now in self.roles.values() if now.moving]
        begun = any(now.starting > 0 for now in moving)
        return begun and all(now.verified for now in moving)


def _kept(before: Limits, now: Replicas) -> Limits:
    """Return the limits of the engines: those that were there last, while there are none."""
    assert now.limits is not None
    if now.ready:
        return now.limits
    said = {field: getattr(now.limits, field) for field in Limits.__struct_fields__}
    return replace(before, **{field: n for field, n in said.items() if n is not None})


class Inventory:
    """What was read of each role, over ticks."""

    def __init__(self, settings: Settings) -> None:
        self._roles = roles_of(settings)
        self._startups = {role: Startups(settings) for role in self._roles}
        self.limits = {role: Limits() for role in self._roles}
        self._wait_s = settings.scaling_max_wait
        self._since: dict[Role, tuple[Replicas, float]] = {}
        """How a role that moves stands, and since when it stands like that."""

    def observe(self, told: TickInput) -> Standing | None:
        """None: a role could not be read."""
        found: dict[Role, RoleNow] = {}
        for role in self._roles:
            replicas = told.replicas.get(role)
            if replicas is None:
                return None
            if replicas.limits is not None:
                self.limits[role] = _kept(self.limits[role], replicas)
            waiting = self._startups[role].observe(told.now_s, replicas)
            found[role] = RoleNow(
                replicas.ready,
                starting(replicas),
                self._moves(role, replicas, told.now_s),
                replicas.startup_only,
                waiting,
            )
        return Standing(found)

    def _moves(self, role: Role, replicas: Replicas, now_s: float) -> bool:
        """What has not changed for `scaling_max_wait` holds nothing up any more."""
        if not in_progress(replicas):
            self._since.pop(role, None)
            return False
        before = self._since.get(role)
        if before is None or before[0] != replicas:
            self._since[role] = replicas, now_s
            return True
        return now_s - before[1] < self._wait_s

    @property
    def startup_s(self) -> float:
        """Of the slower role."""
        return max(each.startup_s for each in self._startups.values())

    def startup_of(self, role: Role) -> float:
        return self._startups[role].startup_s

    def check_invariants(self) -> None:
        """For tests."""
        for each in self._startups.values():
            each.check_invariants()
