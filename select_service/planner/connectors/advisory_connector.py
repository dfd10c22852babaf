"""Wrapper that makes a connector read-only while the deployment is advisory."""

from collections.abc import Mapping

from select_service.planner.connectors.connector import (
    ConnectorDecision,
    ConnectorStatus,
    DesiredCounts,
    PlatformConnector,
    check_counts,
    same_outcome,
)
from select_service.planner.core.tick_input import Role, RoleReplicas


class AdvisoryConnector:
    """Wrapper of any connector, so that no connector can omit the check.

    In advisory mode only `read` and `validate` reach the connector.
    """

    def __init__(self, connector: PlatformConnector, advisory: bool) -> None:
        self._connector = connector
        self._advisory = advisory

    @property
    def connector(self) -> PlatformConnector:
        """Wrapped connector."""
        return self._connector

    @property
    def advisory(self) -> bool:
        """Whether the connector is read-only."""
        return self._advisory

    async def switch_advisory(self, advisory: bool) -> None:
        """Switch advisory mode; on entry, changes under way are undone, as draining workers."""
        if advisory and not self._advisory:
            # Set before the pause, so that a concurrent call cannot start a new change meanwhile.
            self._advisory = True
            await self._connector.pause()
        self._advisory = advisory

    async def read(self) -> Mapping[Role, RoleReplicas]:
        """See Connector."""
        return await self._connector.read()

    def faults(self) -> Mapping[Role, str]:
        """See Connector."""
        return self._connector.faults()

    async def scale(self, wanted: DesiredCounts) -> ConnectorDecision:
        """See Connector."""
        check_counts(wanted)
        if self._advisory:
            return same_outcome(wanted, ConnectorStatus.ADVISORY)
        return await self._connector.scale(wanted)

    async def wait(self, timeout_s: float) -> bool:
        """See Connector."""
        return True if self._advisory else await self._connector.wait(timeout_s)

    async def validate(self) -> None:
        """See Connector."""
        await self._connector.validate()

    async def pause(self) -> None:
        """See Connector."""
        await self._connector.pause()

    async def close(self) -> None:
        """See Connector."""
        await self._connector.close()
