"""Diagnostics of a tick, stage by stage: for metrics, the log and the report."""

from msgspec import Struct

from select_service.planner.core.forecast_contracts import ForecastRecord
from select_service.planner.core.reasons import Reason
from select_service.planner.core.stages import PluginCall
from select_service.planner.core.tick_input import Role


class SizingRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of the throughput proposer for a role.

    replicas:    replicas the forecast needs, before steps and budgets; None if unknown
    exact:       replicas before rounding; already rounded while attainment is below the target
    spare:       replicas including the slack that a step down must leave
    engine_rps:  requests/s of an engine that is always busy
    attainment:  predicted part of the requests that keep the target
    wanted:      attainment sized for, corrected by observed misses
    """

    replicas: int | None
    reason: Reason
    exact: float | None = None
    spare: int | None = None
    engine_rps: float | None = None
    attainment: float | None = None
    wanted: float | None = None


class LoadRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of the load proposer for a role. estimate_ms: latency of the worst engine"""

    reason: Reason | None = None
    target: int | None = None
    estimate_ms: float | None = None
    itl_ms: float | None = None
    engines: int = 0
    notes: tuple[Reason, ...] = ()


class StabiliserRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of the stabiliser. wanted: desired replicas, not rounded"""

    wanted: float
    target: int | None
    reason: Reason


class RoleDiagnostics(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Results of all stages for a role.

    num_gpu:    GPUs of a replica, as counted
    decided_by: builtin loop or plugin with the number that is or bounds the reconciled count
    num_gpu:  GPUs of a replica, as counted
    serving:  ready replicas that do not drain; None means all
    draining: replicas that finish their requests before the end
    """

    ready: int
    starting: int
    floor: int
    num_gpu: int = 1
    model_source: str | None = None
    sized: SizingRecord | None = None
    load: LoadRecord | None = None
    reconciled: int | None = None
    decided_by: str | None = None
    stabilised: StabiliserRecord | None = None
    final: int | None = None
    reasons: tuple[Reason, ...] = ()
    pending_s: float = 0.0
    startup_s: float | None = None
    lost: int = 0
    """Replicas that health has taken out."""
    lost_workers: tuple[int, ...] = ()
    spares: int = 0
    """Idle spares among the ready replicas."""
    serving: int | None = None
    draining: int = 0


class TickDiagnostics(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Diagnostics of a tick of a deployment.

    load_reason, throughput_reason: reason of both roles together, in the words of Dynamo's planner
    reasons:     reasons of the result, in the order of the stages
    set_dropped: roles for which an invalid SET was dropped from a constraint
    plugins:     calls of plugins
    stale:       whether nothing has been observed for three throughput intervals
    """

    now_s: float
    run_load: bool
    run_throughput: bool
    roles: dict[Role, RoleDiagnostics]
    load_reason: Reason | None = None
    throughput_reason: Reason | None = None
    forecast: ForecastRecord | None = None
    reasons: tuple[Reason, ...] = ()
    rejected: str | None = None
    set_dropped: tuple[str, ...] = ()
    plugins: tuple[PluginCall, ...] = ()
    stale: bool = False
    slo_out_of_reach: bool = False
    miss_correction: float = 1.0
    ttft_met: float | None = None
    itl_met: float | None = None
    replace: tuple[int, ...] = ()
    """Workers that are replaced by this decision."""
    degradation_level: int = 0
