"""What a report shows of one deployment: a copy, that may be drawn in another thread."""

from collections.abc import Mapping
from typing import NamedTuple

from select_service.planner.core.inputs import Role
from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import Settings, roles_of
from select_service.planner.history import Table, thinned
from select_service.planner.status import COLUMNS, Change, DeploymentStatus

GROUPS_MAX = 480
"""Of neighbouring ticks; each draws two points of a series."""


class Series(NamedTuple):
    """times: float64 [n], seconds, rising;  values: float64 [n], NaN where not known"""

    times: Table
    values: Table


class View(NamedTuple):
    """One deployment, or one configuration of a replay.

    table:           float64 [ticks, COLUMNS]
    met:             part of the requests that kept a target, by `ttft` and `itl`
    least_gpu_hours: of somebody who knew the future; None: not known
    """

    name: str
    settings: Settings
    table: Table
    changes: tuple[Change, ...]
    ticks: int
    gpu_hours: float
    least_gpu_hours: float | None
    met: Mapping[str, float | None]
    reversals: int
    by_reason: Mapping[Reason, int]

    @property
    def roles(self) -> tuple[Role, ...]:
        return roles_of(self.settings)

    def slim(self) -> "View":
        """With no more ticks than can be drawn. 80 ms for a table that is full."""
        return self._replace(table=thinned(self.table, GROUPS_MAX))


def view_of(
    status: DeploymentStatus, name: str | None = None, least_gpu_hours: float | None = None
) -> View:
    """name: what it is called in the report, if not as the deployment."""
    return View(
        name=status.name if name is None else name,
        settings=status.settings,
        table=status.table(),
        changes=tuple(status.changes),
        ticks=status.ticks,
        gpu_hours=status.gpu_hours,
        least_gpu_hours=least_gpu_hours,
        met={slo: met.part for slo, met in status.met.items()},
        reversals=sum(status.reversals.values()),
        by_reason=dict(status.by_reason),
    )


def series_of(table: Table, column: str) -> Series:
    return Series(table[:, 0], table[:, COLUMNS.index(column)])
