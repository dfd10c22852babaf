"""View of a deployment for a report: a copy that may be drawn in another thread."""

from collections.abc import Mapping
from typing import NamedTuple

from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import DeploymentSettings, scaled_roles
from select_service.planner.core.stages import PluginCall
from select_service.planner.core.tick_input import Role
from select_service.planner.deployment_status import (
    COLUMNS,
    DeploymentStatus,
    PluginCallKind,
    ReplicaChange,
)
from select_service.planner.thinned_history import Table, thin_table

GROUPS_MAX = 480
"""Maximum groups of neighbouring ticks; each draws two points of a series."""


class ChartSeries(NamedTuple):
    """Series of a chart.

    times:  float64 [n], seconds, rising
    values: float64 [n], NaN where unknown
    """

    times: Table
    values: Table


class DeploymentView(NamedTuple):
    """View of a deployment, or of a configuration of a replay.

    table:           float64 [ticks, COLUMNS]
    met:             part of the requests that kept a target, by `ttft` and `itl`
    least_gpu_hours: GPU hours with knowledge of the future; None if unknown
    """

    name: str
    settings: DeploymentSettings
    table: Table
    changes: tuple[ReplicaChange, ...]
    ticks: int
    gpu_hours: float
    least_gpu_hours: float | None
    met: Mapping[str, float | None]
    reversals: int
    by_reason: Mapping[Reason, int]
    plugin_calls: Mapping[PluginCallKind, int] = {}
    last_calls: Mapping[str, PluginCall] = {}

    @property
    def roles(self) -> tuple[Role, ...]:
        """Roles of the mode."""
        return scaled_roles(self.settings)

    def with_drawable_ticks(self) -> "DeploymentView":
        """Return the view with at most as many ticks as are drawn. 80 ms for a full table."""
        return self._replace(table=thin_table(self.table, GROUPS_MAX))


def make_view(
    status: DeploymentStatus, name: str | None = None, least_gpu_hours: float | None = None
) -> DeploymentView:
    """Copy the state. name: name in the report, if other than the deployment's"""
    return DeploymentView(
        name=status.name if name is None else name,
        settings=status.settings,
        table=status.history_table(),
        changes=tuple(status.changes),
        ticks=status.ticks,
        gpu_hours=status.gpu_hours,
        least_gpu_hours=least_gpu_hours,
        met={slo: met.attained_part for slo, met in status.met.items()},
        reversals=sum(status.reversals.values()),
        by_reason=dict(status.by_reason),
        plugin_calls=dict(status.plugin_calls),
        last_calls=dict(status.last_calls),
    )


def column_series(table: Table, column: str) -> ChartSeries:
    """Return a column as a series."""
    return ChartSeries(table[:, 0], table[:, COLUMNS.index(column)])
