"""Interface of connectors to the loop, and their answers."""

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from select_service.planner.core.tick_input import REPLICAS_MAX, Role, RoleReplicas

DesiredCounts = Mapping[Role, int]
"""Desired replicas by role; omitted roles keep their replicas."""

ReadReadyCounts = Callable[[], Awaitable[Mapping[Role, int] | None]]
"""Function that returns serving replicas by role, as selectors see; None if unknown now."""


class ConnectorStatus(StrEnum):
    """Outcome of a desired count for a role."""

    APPLIED = "applied"
    UNCHANGED = "unchanged"
    ADVISORY = "advisory"
    """Not scaled: advisory mode."""
    NOT_LEADER = "not_leader"
    """Not scaled: another planner holds the lease."""
    OPEN = "open"
    """Kept: an earlier decision is still open, and this one may replace it."""
    DRAINING = "draining"
    """Under way: surplus replicas finish their requests first."""
    WAITING = "waiting"
    """Under way: another role is reduced first; raised after its replicas have ended."""
    REFUSED = "refused"
    """Refused: the target cannot be scaled in its present state (rights, name, form)."""
    FAILED = "failed"
    """Failed: the platform did not answer or was overloaded; the next tick decides anew."""


class RoleOutcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Outcome for a role, with its reason."""

    wanted: int
    status: ConnectorStatus
    detail: str = ""
    victims: tuple[str, ...] = ()
    """Names of the replicas to remove, if the connector chooses."""


class ConnectorDecision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Outcome of desired counts, by role."""

    roles: Mapping[Role, RoleOutcome]
    decision_id: int | None = None
    """Number of the platform's current decision, if numbered."""
    replaced: tuple[int, ...] = ()
    """Lost workers with a replacement that has begun."""


class ConnectorError(Exception):
    """Error of a platform that cannot be read or scaled as configured."""


class ConnectorUnavailable(ConnectorError):
    """Error of a platform that did not answer, and may at the next tick."""


class PlatformConnector(Protocol):
    """Connector of a deployment to a platform. The defaults are for decisions complete at once."""

    async def read(self) -> Mapping[Role, RoleReplicas]:
        """Return the current replicas.  Unreadable roles are omitted, with the reason in `faults`.

        Raises ConnectorUnavailable if nothing can be read.
        """
        ...

    def faults(self) -> Mapping[Role, str]:
        """Return the reasons that prevented a read or a change of roles the last time."""
        return {}

    async def scale(self, wanted: DesiredCounts, lost: tuple[int, ...] = ()) -> ConnectorDecision:
        """Request so many replicas, and other replicas in the places of lost workers.

        Long steps (drains, postponed raises) continue in `wait`; a new request replaces the rest of
        the last.
        """
        ...

    async def wait(self, timeout_s: float) -> bool:
        """Continue changes under way, for at most so long; 0: one step.

        Return whether all is done.
        """
        return True

    async def validate(self) -> None:
        """Check the configuration by reads only.

        Raises ConnectorError, in one line, if scaling could never work.
        """
        ...

    async def pause(self) -> None:
        """Undo changes under way: workers that drain for a decision serve again.

        Locks against other planners are kept, as no planner is to act.
        """
        return

    async def close(self) -> None:
        """Release all resources; decisions remain."""
        return


def same_outcome(
    wanted: DesiredCounts, status: ConnectorStatus, detail: str = ""
) -> ConnectorDecision:
    """Return the same outcome for every role."""
    return ConnectorDecision(
        roles={
            role: RoleOutcome(wanted=count, status=status, detail=detail)
            for role, count in wanted.items()
        }
    )


def check_counts(wanted: DesiredCounts) -> None:
    """Raise ValueError for a count that no platform can have."""
    for role, count in wanted.items():
        if not 0 <= count <= REPLICAS_MAX:
            raise ValueError(f"{count} replicas of {role.value}: expected 0 to {REPLICAS_MAX}")
