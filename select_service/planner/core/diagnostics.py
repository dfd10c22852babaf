"""What one tick thought, stage by stage: for metrics, the log, the report and people."""

from msgspec import Struct

from select_service.planner.core.contracts import Said
from select_service.planner.core.inputs import Role
from select_service.planner.core.reasons import Reason


class Sized(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The throughput proposer, of one role.

    replicas:    what the forecast needs, before steps and budgets; None: cannot be said
    exact:       the same before rounding; rounded while less is kept than was promised
    spare:       the same with the slack that a step down must leave
    engine_rps:  requests/s of one engine that is always busy
    attainment:  part of the requests that would keep the target
    wanted:      attainment that was sized for, corrected by what was observed
    """

    replicas: int | None
    reason: Reason
    exact: float | None = None
    spare: int | None = None
    engine_rps: float | None = None
    attainment: float | None = None
    wanted: float | None = None


class Loaded(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The load proposer, of one role. estimate_ms: the worst engine"""

    reason: Reason | None = None
    target: int | None = None
    estimate_ms: float | None = None
    itl_ms: float | None = None
    engines: int = 0
    notes: tuple[Reason, ...] = ()


class Stabilised(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """wanted: replicas as a real number"""

    wanted: float
    target: int | None
    reason: Reason


class RoleDiagnostics(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All stages of one role. num_gpu: of one replica, as it counts"""

    ready: int
    starting: int
    floor: int
    num_gpu: int = 1
    model_source: str | None = None
    sized: Sized | None = None
    load: Loaded | None = None
    merged: int | None = None
    stabilised: Stabilised | None = None
    final: int | None = None
    reasons: tuple[Reason, ...] = ()
    pending_s: float = 0.0
    startup_s: float | None = None


class Diagnostics(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One tick of one deployment.

    load_reason, throughput_reason: of both roles together, in the words of the reference
    reasons: why the result is what it is, in the order of the stages
    set_dropped: roles for which a constraint had a SET, which is none
    stale:   nothing has been observed for three throughput intervals
    """

    now_s: float
    run_load: bool
    run_throughput: bool
    roles: dict[Role, RoleDiagnostics]
    load_reason: Reason | None = None
    throughput_reason: Reason | None = None
    forecast: Said | None = None
    reasons: tuple[Reason, ...] = ()
    rejected: str | None = None
    set_dropped: tuple[str, ...] = ()
    stale: bool = False
    slo_out_of_reach: bool = False
    miss_correction: float = 1.0
    ttft_met: float | None = None
    itl_met: float | None = None
