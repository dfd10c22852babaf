"""Results of the last tick by stage, as the planner's API shows them."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from select_service.planner.core.diagnostics import RoleDiagnostics
from select_service.planner.core.stages import PluginCall, Stage
from select_service.planner.deployment_status import DeploymentStatus

ReadRole = Callable[[RoleDiagnostics], Mapping[str, Any]]


class StageBody(Struct, frozen=True, kw_only=True):
    """Results of a stage. null means unknown, or that the stage had nothing to do.

    common: results of all roles together
    roles:  results by role
    """

    stage: Stage
    common: Mapping[str, Any]
    roles: Mapping[str, Mapping[str, Any]]
    plugins: tuple[PluginCall, ...]


_ROLES: Mapping[Stage, ReadRole] = {
    Stage.OBSERVE: lambda one: {
        "ready": one.ready,
        "starting": one.starting,
        "model_source": one.model_source,
    },
    Stage.PREDICT: lambda one: {},
    Stage.PROPOSE: lambda one: {"throughput": one.sized, "load": one.load, "floor": one.floor},
    Stage.RECONCILE: lambda one: {"count": one.reconciled, "decided_by": one.decided_by},
    Stage.CONSTRAIN: lambda one: {"stabiliser": one.stabilised, "count": one.final},
    Stage.EXECUTE: lambda one: {},
}


def make_stages(status: DeploymentStatus) -> tuple[StageBody, ...]:
    """Return the stages of the last tick in their order; none before the first tick."""
    said, tick = status.diagnostics, status.tick
    if said is None or tick is None:
        return ()
    traffic = None if tick.traffic is None else msgspec.to_builtins(tick.traffic)
    for samples in ("prefill_samples", "decode_samples"):
        (traffic or {}).pop(samples, None)
    common: Mapping[Stage, Mapping[str, Any]] = {
        Stage.OBSERVE: {"traffic": traffic},
        Stage.PREDICT: {"prediction": said.forecast},
        Stage.PROPOSE: {
            "throughput_reason": said.throughput_reason,
            "load_reason": said.load_reason,
            "plugins": tick.proposals,
        },
        Stage.RECONCILE: {"rejected": said.rejected},
        Stage.CONSTRAIN: {"plugins": tick.constraints, "set_dropped": said.set_dropped},
        Stage.EXECUTE: {"reasons": said.reasons, "applied": status.applied},
    }
    return tuple(
        StageBody(
            stage=stage,
            common=common[stage],
            roles={role.value: read(one) for role, one in said.roles.items() if read(one)},
            plugins=tuple(call for call in said.plugins if call.stage is stage),
        )
        for stage, read in _ROLES.items()
    )
