"""A connector that is only read while the deployment is advisory."""

from collections.abc import Mapping

from select_service.planner.connectors.base import (
    Connector,
    Counts,
    Decision,
    Status,
    check_counts,
    everywhere,
)
from select_service.planner.core.inputs import Replicas, Role


class Switched:
    """Stands before any other connector, so that none can forget to ask.

    While it is advisory nothing but `read` and `validate` reaches it.
    """

    def __init__(self, connector: Connector, advisory: bool) -> None:
        self._connector = connector
        self._advisory = advisory

    @property
    def connector(self) -> Connector:
        """The one behind."""
        return self._connector

    @property
    def advisory(self) -> bool:
        """Is it only read?"""
        return self._advisory

    async def switch(self, advisory: bool) -> None:
        """What is under way when it becomes advisory is given back, as workers that drain."""
        if advisory and not self._advisory:
            self._advisory = True
            await self._connector.pause()
        self._advisory = advisory

    async def read(self) -> Mapping[Role, Replicas]:
        """See Connector."""
        return await self._connector.read()

    def faults(self) -> Mapping[Role, str]:
        """See Connector."""
        return self._connector.faults()

    async def scale(self, wanted: Counts) -> Decision:
        """See Connector."""
        check_counts(wanted)
        if self._advisory:
            return everywhere(wanted, Status.ADVISORY)
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
