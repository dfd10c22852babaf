"""What every connector is to the loop, and what it answers."""

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from select_service.planner.core.inputs import (
    REPLICAS_MAX,
    Replicas,
    Role,
)

Counts = Mapping[Role, int]
"""Wanted replicas by role; roles that are left out keep what they have."""

ReadyCounts = Callable[[], Awaitable[Mapping[Role, int] | None]]
"""Replicas that serve, by role, as selectors see them; None: not known now."""


class Status(StrEnum):
    """What became of the wish for one role."""

    APPLIED = "applied"
    UNCHANGED = "unchanged"
    ADVISORY = "advisory"
    """Nothing is scaled: the deployment is only advised."""
    NOT_LEADER = "not_leader"
    """Another planner holds the lease."""
    OPEN = "open"
    """An earlier decision is still open; this one is kept and may replace it."""
    DRAINING = "draining"
    """Replicas that shall go finish their requests first."""
    WAITING = "waiting"
    """Another role is reduced first; raised when those replicas are gone."""
    REFUSED = "refused"
    """The target cannot be scaled as things are: rights, name, form."""
    FAILED = "failed"
    """The platform did not answer, or was too busy: the next tick decides anew."""


class RoleDecision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of the wish for one role, and why."""

    wanted: int
    status: Status
    detail: str = ""
    victims: tuple[str, ...] = ()
    """Names of those that shall go, where the connector chooses."""


class Decision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a wish, by role."""

    roles: Mapping[Role, RoleDecision]
    decision_id: int | None = None
    """Number of the decision that the platform has now, where it counts them."""

    def with_status(self, status: Status) -> tuple[Role, ...]:
        """Roles whose wish ended so."""
        return tuple(role for role, decided in self.roles.items() if decided.status == status)


class ConnectorError(Exception):
    """The platform cannot be read or scaled as it is configured."""


class ConnectorUnavailable(ConnectorError):
    """The platform did not answer now; it may at the next tick."""


class Connector(Protocol):
    """One deployment on one platform."""

    async def read(self) -> Mapping[Role, Replicas]:
        """What is there.  Roles that cannot be read are left out: `faults` says why.

        Raises ConnectorUnavailable when nothing can be read.
        """
        ...

    def faults(self) -> Mapping[Role, str]:
        """What kept roles from being read or scaled the last time, in words."""
        ...

    async def scale(self, wanted: Counts) -> Decision:
        """Ask for so many replicas.  Long steps (draining, raising what must wait) go on in
        `wait`; a new wish replaces what is left of the last one."""
        ...

    async def wait(self, timeout_s: float) -> bool:
        """Go on with what is under way, for so long at most; 0: one step.  Is all of it done?"""
        ...

    async def validate(self) -> None:
        """Reads only.  Raises ConnectorError, in one line, where scaling could never work."""
        ...

    async def pause(self) -> None:
        """Give back what is under way: workers that drain for a wish serve again.

        What keeps other planners from acting stays held, as nobody is to act.
        """
        ...

    async def close(self) -> None:
        """Give back what is held; what was decided stays."""
        ...


def everywhere(wanted: Counts, status: Status, detail: str = "") -> Decision:
    """The same answer for every role."""
    return Decision(
        roles={
            role: RoleDecision(wanted=count, status=status, detail=detail)
            for role, count in wanted.items()
        }
    )


def check_counts(wanted: Counts) -> None:
    """Raises ValueError for a count that no platform can have."""
    for role, count in wanted.items():
        if not 0 <= count <= REPLICAS_MAX:
            raise ValueError(f"{count} replicas of {role.value}: expected 0 to {REPLICAS_MAX}")
