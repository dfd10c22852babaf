"""What plugins see of a tick, and what they may answer."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from select_service.planner.core.diagnostics import SizingRecord
from select_service.planner.core.forecast_contracts import ForecastRecord
from select_service.planner.core.reconcile import BoundType, Proposal
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.stages import (
    TARGETS_MAX,
    PluginText,
    Prediction,
    Stage,
)
from select_service.planner.core.tick_input import (
    REPLICAS_MAX,
    EngineLimits,
    ForwardPass,
    Role,
    TrafficWindow,
)

ENGINES_MAX = 1024
"""Limit of the ranks that a plugin sees."""


class RoleContext(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A role as plugins see it.

    ready, starting: replicas that serve, and that start
    is_changing:     whether a change is under way
    min_endpoint:    least replicas
    num_gpu:         GPUs of a replica
    startup_s:       measured start-up time, seconds
    """

    ready: int
    starting: int
    is_changing: bool
    min_endpoint: int
    num_gpu: int
    startup_s: float
    limits: EngineLimits = EngineLimits()


class EngineContext(Struct, frozen=True, kw_only=True):
    """A rank as plugins see it. newest: its newest forward pass"""

    role: Role
    newest: ForwardPass


class PluginContext(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a plugin sees of a tick. None and omitted fields mean unknown.

    now_s:            time of the tick, seconds since 1970
    traffic:          last window, without single samples
    engines:          ranks with their newest forward passes
    engines_left_out: ranks beyond the limit
    prediction:       prediction of this tick; in PREDICT the builtin one
    sizes:            replicas that the prediction needs, by role
    proposals:        proposals of this tick; in PROPOSE those of the builtin loops
    reconciled:       counts after RECONCILE, in CONSTRAIN
    """

    stage: Stage
    now_s: float
    roles: dict[Role, RoleContext]
    settings: DeploymentSettings
    deployment: str = ""
    traffic: TrafficWindow | None = None
    engines: tuple[EngineContext, ...] = ()
    engines_left_out: int = 0
    prediction: ForecastRecord | None = None
    sizes: dict[Role, SizingRecord] = {}
    proposals: tuple[Proposal, ...] = ()
    reconciled: dict[Role, int] = {}


class ReplicaTarget(Struct, frozen=True, forbid_unknown_fields=True):
    """Count of a role. In CONSTRAIN only AT_LEAST and AT_MOST are allowed."""

    component: Role
    type: BoundType
    replicas: Annotated[int, Meta(ge=0, le=REPLICAS_MAX)]


class ReplicaTargets(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Answer to PROPOSE and CONSTRAIN. No target means no opinion.

    final:  whether the targets are taken as given, within budgets; only in PROPOSE
    reject: reason to end the tick without a change
    reason: text for status and report
    """

    targets: Annotated[tuple[ReplicaTarget, ...], Meta(max_length=TARGETS_MAX)] = ()
    final: bool = False
    reject: PluginText | None = None
    reason: PluginText = ""


PluginAnswer = Prediction | ReplicaTargets

ANSWER_TYPES: Mapping[Stage, type[PluginAnswer]] = {
    Stage.PREDICT: Prediction,
    Stage.PROPOSE: ReplicaTargets,
    Stage.CONSTRAIN: ReplicaTargets,
}
"""Type of the answers to a stage."""


class InvalidAnswer(ValueError):
    """Error of an answer that has the right form and an impossible content."""


def check_answer(stage: Stage, answer: PluginAnswer, roles: Iterable[Role]) -> None:
    """Check an answer against the roles of the mode. Raises InvalidAnswer."""
    if isinstance(answer, Prediction):
        # NaN passes every comparison of a range, so the ranges of the fields do not exclude it.
        for field in answer.__struct_fields__:
            value: Any = getattr(answer, field)
            if isinstance(value, float) and not math.isfinite(value):
                raise InvalidAnswer(f"{field}: expected a finite number, got {value}")
        return
    possible = tuple(roles)
    if stage is Stage.CONSTRAIN and answer.final:
        raise InvalidAnswer("final: only a proposal can be final; use AT_LEAST and AT_MOST")
    for target in answer.targets:
        if target.component not in possible:
            modes = ", ".join(possible)
            raise InvalidAnswer(
                f"component `{target.component}` is no role of the mode: use {modes}"
            )
        if stage is Stage.CONSTRAIN and target.type is BoundType.SET:
            raise InvalidAnswer("type SET is no bound: use AT_LEAST or AT_MOST in constraints")


def without_foreign_roles(
    proposals: Iterable[Proposal], roles: Iterable[Role]
) -> Iterator[Proposal]:
    """Yield the proposals without targets of roles that the mode does not have.

    Answers are checked when they arrive; recorded answers may be from another mode.
    """
    names = {str(role) for role in roles}
    for proposal in proposals:
        targets = proposal.targets or ()
        if all(target.component in names for target in targets):
            yield proposal
        else:
            yield replace(proposal, targets=tuple(t for t in targets if t.component in names))


def shown_engines(
    passes: Mapping[Role, tuple[ForwardPass, ...]] | None,
) -> tuple[tuple[EngineContext, ...], int]:
    """Return the newest pass of each rank within the limit, and the number of ranks beyond it."""
    newest = {
        (role, one.worker, one.rank): one
        for role, of_role in (passes or {}).items()
        for one in of_role
    }
    shown = list(newest.items())[:ENGINES_MAX]
    engines = tuple(EngineContext(role=role, newest=one) for (role, _, _), one in shown)
    return engines, max(0, len(newest) - ENGINES_MAX)


def shown_traffic(traffic: TrafficWindow | None) -> TrafficWindow | None:
    """Return the window without single samples, which would be most of its bytes."""
    if traffic is None:
        return None
    return replace(traffic, prefill_samples=(), decode_samples=())
