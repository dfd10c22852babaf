"""What the API of a planner answers and reads."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from select_service.planner.config import DeploymentConfig
from select_service.planner.core.reasons import SENTENCES, Reason
from select_service.planner.core.settings import Settings
from select_service.planner.status import Change, DeploymentStatus

CHANGES_SHOWN = 50
_Count = Annotated[int, Meta(ge=0, le=1_000_000)]
_Budget = Annotated[int, Meta(ge=-1, le=1_000_000)]


class Patch(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What can be changed of a deployment that runs. null: what the file would say by default."""

    min_endpoint: _Count | UnsetType = UNSET
    prefill_min_endpoint: _Count | UnsetType | None = UNSET
    decode_min_endpoint: _Count | UnsetType | None = UNSET
    min_gpu_budget: _Budget | UnsetType = UNSET
    max_gpu_budget: _Budget | UnsetType = UNSET
    advisory: bool | UnsetType = UNSET
    paused: bool | UnsetType = UNSET

    def settings(self) -> dict[str, object]:
        """Settings that are given."""
        given = {field: getattr(self, field) for field in CHANGEABLE}
        return {field: value for field, value in given.items() if value is not UNSET}


_ASKING = frozenset({Reason.SCALE, Reason.SCALE_UP, Reason.SCALE_DOWN})
CHANGEABLE: Final = tuple(field for field in Patch.__struct_fields__ if field != "paused")


class RoleBody(Struct):
    """Replicas of one role. wanted: what the last tick decided"""

    ready: int | None
    starting: int | None
    wanted: int | None


class ReasonBody(Struct):
    """Why."""

    code: str
    text: str


class Attainment(Struct):
    """Parts of the requests that kept the targets; null: nobody has reported."""

    target: float
    ttft: float | None
    itl: float | None


class Summary(Struct):
    """One deployment in a few numbers. Counts are since the start of the process.

    last_tick_s, next_tick_s: seconds since 1970
    reasons: of the last tick, and what each loop said last
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
    replicas: Mapping[str, RoleBody]
    reasons: tuple[ReasonBody, ...]
    stale: bool
    slo_out_of_reach: bool
    gpus: float
    gpu_hours: float
    attainment: Attainment
    reversals: Mapping[str, int]
    faults: Mapping[str, str]


class StatusBody(Struct):
    """GET /v1/status"""

    deployments: tuple[Summary, ...]


class Detail(Struct):
    """GET /v1/deployments/{name}

    decisions: ticks by reason;  diagnostics: of the last tick, stage by stage
    """

    summary: Summary
    settings: Settings
    decisions: Mapping[str, int]
    changes: tuple[Change, ...]
    diagnostics: Raw
    applied: Raw


class Changed(Struct):
    """PATCH /v1/deployments/{name}: what counts now."""

    name: str
    paused: bool
    settings: Settings


def summary_of(
    status: DeploymentStatus,
    config: DeploymentConfig,
    paused: bool,
    faults: Mapping[str, str],
    next_tick_s: float,
) -> Summary:
    said = status.diagnostics
    roles = {} if said is None else said.roles
    unknown = said is not None and Reason.REPLICAS_UNKNOWN in said.reasons
    return Summary(
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
            role.value: RoleBody(None, None, None)
            if unknown
            else RoleBody(one.ready, one.starting, one.final)
            for role, one in roles.items()
        },
        reasons=tuple(ReasonBody(each.value, SENTENCES[each]) for each in _told(status)),
        stale=said is not None and said.stale,
        slo_out_of_reach=status.slo_out_of_reach,
        gpus=status.gpus_now(),
        gpu_hours=status.gpu_hours,
        attainment=Attainment(config.attainment, status.met["ttft"].part, status.met["itl"].part),
        reversals={role.value: status.reversals[role] for role in roles},
        faults=dict(faults),
    )


def _told(status: DeploymentStatus) -> Iterable[Reason]:
    """Return the reasons of the last tick, and what each loop said last, each once.

    What a loop has asked for is no reason where nothing of it is left: replicas have followed, or
    another stage has held it and says why.
    """
    said = status.diagnostics
    if said is None:
        return (Reason.BEFORE_FIRST_TICK,)
    loops = [r for r in (status.throughput_reason, status.load_reason) if r is not None]
    if all(one.ready == one.final for one in said.roles.values()):
        loops = [Reason.NO_CHANGE if each in _ASKING else each for each in loops]
    return dict.fromkeys((*said.reasons, *loops))


def detail_of(status: DeploymentStatus, summary: Summary) -> Detail:
    return Detail(
        summary=summary,
        settings=status.settings,
        decisions={each.value: n for each, n in sorted(status.by_reason.items())},
        changes=tuple(status.changes)[-CHANGES_SHOWN:],
        diagnostics=Raw(msgspec.json.encode(status.diagnostics)),
        applied=Raw(msgspec.json.encode(status.applied)),
    )


def settings_of(config: DeploymentConfig) -> Settings:
    """Without where it is observed and what is scaled."""
    return Settings(**{each: getattr(config, each) for each in Settings.__struct_fields__})
