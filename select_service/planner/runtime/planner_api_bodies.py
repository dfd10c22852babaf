"""Bodies of the planner's API."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from select_service.planner.config import DeploymentConfig
from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.stages import PluginCall
from select_service.planner.deployment_status import DeploymentStatus, ReplicaChange
from select_service.planner.runtime.stage_bodies import StageBody, make_stages

CHANGES_SHOWN = 50
_Count = Annotated[int, Meta(ge=0, le=1_000_000)]
_Budget = Annotated[int, Meta(ge=-1, le=1_000_000)]


class SettingsPatch(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Changeable settings of a running deployment. null means the file's default."""

    min_endpoint: _Count | UnsetType = UNSET
    prefill_min_endpoint: _Count | UnsetType | None = UNSET
    decode_min_endpoint: _Count | UnsetType | None = UNSET
    min_gpu_budget: _Budget | UnsetType = UNSET
    max_gpu_budget: _Budget | UnsetType = UNSET
    advisory: bool | UnsetType = UNSET
    paused: bool | UnsetType = UNSET

    def given_settings(self) -> dict[str, object]:
        """Return the given settings."""
        given = {field: getattr(self, field) for field in CHANGEABLE}
        return {field: value for field, value in given.items() if value is not UNSET}


_PROPOSING_REASONS = frozenset({Reason.SCALE, Reason.SCALE_UP, Reason.SCALE_DOWN})
CHANGEABLE: Final = tuple(field for field in SettingsPatch.__struct_fields__ if field != "paused")


class RoleReplicasBody(Struct):
    """Replicas of a role.

    wanted:     serving replicas decided by the last tick
    decided_by: builtin loop or plugin that gave or bounded the count
    lost:       replicas that health has taken out, with the ids of their workers
    spares:     idle spares among the ready replicas
    draining:   replicas that finish their requests before the end
    """

    ready: int | None
    starting: int | None
    wanted: int | None
    decided_by: str | None = None
    lost: int | None = None
    lost_workers: tuple[int, ...] = ()
    spares: int | None = None
    draining: int = 0


class ReasonBody(Struct):
    """Reason of a decision."""

    code: str
    text: str


class AttainmentBody(Struct):
    """Parts of the requests that kept the targets; null means no reports."""

    target: float
    ttft: float | None
    itl: float | None


class DeploymentSummary(Struct):
    """Summary of a deployment. Counters are since the start of the process.

    last_tick_s, next_tick_s: seconds since 1970
    reasons: reasons of the last tick, and the last reason of each loop
    plugins: calls of plugins in the last tick
    """

    name: str
    model_name: str
    tenant_id: str
    mode: str
    advisory: bool
    paused: bool
    last_tick_s: float | None
    next_tick_s: float
    ticks: int
    replicas: Mapping[str, RoleReplicasBody]
    reasons: tuple[ReasonBody, ...]
    degradation_level: int
    stale: bool
    slo_out_of_reach: bool
    gpus: float
    gpu_hours: float
    attainment: AttainmentBody
    reversals: Mapping[str, int]
    faults: Mapping[str, str]
    plugins: tuple[PluginCall, ...]


class StatusBody(Struct):
    """Body of GET /v1/status."""

    deployments: tuple[DeploymentSummary, ...]


class DeploymentDetail(Struct):
    """Body of GET /v1/deployments/{name}.

    decisions:   number of ticks by reason
    stages:      results of the last tick by stage
    diagnostics: results of the last tick, as in the decision log
    """

    summary: DeploymentSummary
    settings: DeploymentSettings
    decisions: Mapping[str, int]
    changes: tuple[ReplicaChange, ...]
    stages: tuple[StageBody, ...]
    diagnostics: Raw
    applied: Raw


class ChangedSettingsBody(Struct):
    """Body of the answer to PATCH /v1/deployments/{name}: the new settings."""

    name: str
    paused: bool
    settings: DeploymentSettings


def make_summary(
    status: DeploymentStatus,
    config: DeploymentConfig,
    paused: bool,
    faults: Mapping[str, str],
    next_tick_s: float,
) -> DeploymentSummary:
    """Return the summary of a deployment."""
    said = status.diagnostics
    roles = {} if said is None else said.roles
    unknown = said is not None and Reason.REPLICAS_UNKNOWN in said.reasons
    return DeploymentSummary(
        name=status.name,
        model_name=config.model_name,
        tenant_id=config.tenant_id,
        mode=config.mode,
        advisory=config.advisory,
        paused=paused,
        last_tick_s=None if said is None else said.now_s,
        next_tick_s=next_tick_s,
        ticks=status.ticks,
        replicas={
            role.value: RoleReplicasBody(None, None, None)
            if unknown
            else RoleReplicasBody(
                ready=one.ready,
                starting=one.starting,
                wanted=one.final,
                decided_by=one.decided_by,
                lost=one.lost,
                lost_workers=one.lost_workers,
                spares=one.spares,
                draining=one.draining,
            )
            for role, one in roles.items()
        },
        reasons=tuple(ReasonBody(each.value, each.sentence) for each in _summary_reasons(status)),
        degradation_level=0 if said is None else said.degradation_level,
        stale=said is not None and said.stale,
        slo_out_of_reach=status.slo_out_of_reach,
        gpus=status.gpus_now(),
        gpu_hours=status.gpu_hours,
        attainment=AttainmentBody(
            config.attainment, status.met["ttft"].attained_part, status.met["itl"].attained_part
        ),
        reversals={role.value: status.reversals[role] for role in roles},
        faults=dict(faults),
        plugins=() if said is None else said.plugins,
    )


def _summary_reasons(status: DeploymentStatus) -> Iterable[Reason]:
    """Return the reasons of the last tick, and the last reason of each loop, each once.

    A proposal of a loop is no reason after the replicas have followed, or if another stage has held
    it and gives its own reason.
    """
    said = status.diagnostics
    if said is None:
        return (Reason.BEFORE_FIRST_TICK,)
    loops = [r for r in (status.throughput_reason, status.load_reason) if r is not None]
    if all(one.ready == one.final for one in said.roles.values()):
        loops = [Reason.NO_CHANGE if each in _PROPOSING_REASONS else each for each in loops]
    return dict.fromkeys((*said.reasons, *loops))


def make_detail(status: DeploymentStatus, summary: DeploymentSummary) -> DeploymentDetail:
    """Return the details of a deployment."""
    return DeploymentDetail(
        summary=summary,
        settings=status.settings,
        decisions={each.value: n for each, n in sorted(status.by_reason.items())},
        changes=tuple(status.changes)[-CHANGES_SHOWN:],
        stages=make_stages(status),
        diagnostics=Raw(msgspec.json.encode(status.diagnostics)),
        applied=Raw(msgspec.json.encode(status.applied)),
    )
