"""Parts of a planner for tests: a platform in memory, and scripted sources."""

import asyncio
from collections.abc import Mapping

from select_service.planner.connectors.connector import (
    ConnectorDecision,
    ConnectorStatus,
    DesiredCounts,
    same_outcome,
)
from select_service.planner.core.tick_input import EngineLimits, Role, RoleReplicas


class Platform:
    """Platform that follows decisions at once, unless broken."""

    def __init__(self, counts: DesiredCounts) -> None:
        self.counts = dict(counts)
        self.asked: list[dict[Role, int]] = []
        self.num_gpu: int | None = None
        self.fault: Exception | None = None
        self.hangs = False
        self.steps = self.pauses = 0
        self.is_closed = False

    async def read(self) -> Mapping[Role, RoleReplicas]:
        if self.fault is not None:
            raise self.fault
        limits = EngineLimits(num_gpu=self.num_gpu)
        return {
            role: RoleReplicas(ready=n, expected=n, limits=limits)
            for role, n in self.counts.items()
        }

    def faults(self) -> Mapping[Role, str]:
        return {}

    async def scale(self, wanted: DesiredCounts) -> ConnectorDecision:
        if self.fault is not None:
            raise self.fault
        if self.hangs:
            await asyncio.sleep(3600)
        self.asked.append(dict(wanted))
        self.counts |= wanted
        return same_outcome(wanted, ConnectorStatus.APPLIED)

    async def wait(self, timeout_s: float) -> bool:
        self.steps += 1
        if self.hangs:
            await asyncio.sleep(3600)
        return True

    async def validate(self) -> None: ...

    async def pause(self) -> None:
        self.pauses += 1

    async def close(self) -> None:
        self.is_closed = True
