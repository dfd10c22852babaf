"""Repetition of a decision log.

With its own settings nothing may differ; other settings show changes. Every tick gets its recorded
input, replicas included: the result is the decision in that situation, not the course that the
fleet would have taken.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec import Struct

from select_service.base.decode_errors import DECODE_ERRORS
from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick import PlannedDeployment, TickEffects
from select_service.planner.core.tick_input import Role
from select_service.planner.planner_log_lines import (
    DecisionLogError,
    LogLine,
    SettingsLine,
    TickLine,
)
from select_service.planner.validation import find_settings_faults

DIFFERENCES_MAX = 1000
"""Maximum differences kept of a deployment; the others are only counted."""
MakeDeployment = Callable[[DeploymentSettings, float], PlannedDeployment]
INPUT_ERRORS = (ValueError, ArithmeticError, LookupError)
"""Errors of the core on input that no planner could have written, such as counts without bins."""
_REPLACEMENT = b'"replace":'
_CLUSTER_REASON = f'"{Reason.CLUSTER_BUDGET}"'.encode()


class TickDifference(Struct, frozen=True, kw_only=True):
    """Difference in a tick. None means no change of replicas.

    thoughts: whether only the diagnostics differ
    """

    at_s: float
    recorded: Mapping[Role, int] | None
    now: Mapping[Role, int] | None
    thoughts: bool


class ReplayComparison(Struct, kw_only=True):
    """Comparison of a deployment, filled tick by tick.

    from_start: whether the log has the first tick; else the first ones may differ
    shared:     ticks shared with other deployments of the cluster, which are not compared
    """

    deployment: str
    ticks: int = 0
    same: int = 0
    shared: int = 0
    from_start: bool = True
    differences: list[TickDifference] = []
    differing: int = 0


class _AppliedReplacements(Struct):
    """Part of a logged connector decision."""

    replaced: tuple[int, ...] = ()


def _replaced_workers(line: TickLine) -> set[int]:
    """Return the workers that the platform began to replace. Raises msgspec.DecodeError."""
    applied = msgspec.json.decode(line.applied, type=_AppliedReplacements | None)
    return set() if applied is None else set(applied.replaced)


class _RepeatedDeployment:
    """Deployment that repeats its ticks."""

    def __init__(self, name: str, make: MakeDeployment, other: DeploymentSettings | None) -> None:
        self.comparison = ReplayComparison(deployment=name)
        self._make = make
        self._other = other
        self._started_s: float | None = None
        self._deployment: PlannedDeployment | None = None

    def apply_settings(self, line: SettingsLine) -> None:
        """Start the deployment, or change its bounds."""
        settings = line.settings if self._other is None else self._other
        # A log may come from elsewhere: invalid settings would fail deep in the core.
        for fault in find_settings_faults(settings):
            raise DecisionLogError(f"settings of `{self.comparison.deployment}`: {fault}")
        if self._deployment is None or line.started_s != self._started_s:
            self._started_s = line.started_s
            self._deployment = self._make(settings, line.started_s)
        elif self._other is None:
            self._deployment.reconfigure(settings)

    def repeat_tick(self, line: TickLine) -> None:
        """Repeat a tick. Raises DecisionLogError."""
        if self._deployment is None:
            raise DecisionLogError(f"tick of `{self.comparison.deployment}` precedes its settings")
        if self.comparison.ticks == 0:
            first_s = self._deployment.next_tick.at_s
            interval_s = first_s - self._deployment.last_s
            self.comparison.from_start = line.tick.now_s < first_s + interval_s / 2
        try:
            # Whether a replacement was carried out is not decided by the core: see the log.
            acts = self._other is not None or _REPLACEMENT in bytes(line.diagnostics)
            effects = self._deployment.run_tick(line.tick, acts=acts)
            self._deployment.undo_replacement(set(effects.replace) - _replaced_workers(line))
        except (*INPUT_ERRORS, *DECODE_ERRORS) as error:
            now_s = line.tick.now_s
            raise DecisionLogError(
                f"tick of `{self.comparison.deployment}` at {now_s} is invalid: {error}"
            ) from None
        self.comparison.ticks += 1
        # The share of the cluster depended on deployments that are not in this comparison.
        if _CLUSTER_REASON in bytes(line.diagnostics):
            self.comparison.shared += 1
        elif self._is_same(line, effects):
            self.comparison.same += 1
        else:
            self._record_difference(line, effects)

    def _is_same(self, line: TickLine, effects: TickEffects) -> bool:
        """Return whether the result is equal: to the byte with own settings, else the decision."""
        if line.scale_to != effects.scale_to:
            return False
        if self._other is not None:
            return True
        # Byte by byte: even a changed intermediate value shows a change of behaviour.
        return msgspec.json.encode(effects.diagnostics) == bytes(line.diagnostics)

    def _record_difference(self, line: TickLine, effects: TickEffects) -> None:
        """Record a difference."""
        self.comparison.differing += 1
        if len(self.comparison.differences) < DIFFERENCES_MAX:
            self.comparison.differences.append(
                TickDifference(
                    at_s=line.tick.now_s,
                    recorded=line.scale_to,
                    now=effects.scale_to,
                    thoughts=line.scale_to == effects.scale_to,
                )
            )


def repeat_log(
    lines: Iterable[LogLine], make: MakeDeployment, other: DeploymentSettings | None = None
) -> list[ReplayComparison]:
    """Repeat a log and return the comparisons, in the order of the log.

    other: settings in place of the log's
    Raises DecisionLogError.
    """
    found: dict[str, _RepeatedDeployment] = {}
    for line in lines:
        one = found.setdefault(line.deployment, _RepeatedDeployment(line.deployment, make, other))
        if isinstance(line, SettingsLine):
            one.apply_settings(line)
        else:
            one.repeat_tick(line)
    results = [one.comparison for one in found.values()]
    if not any(each.ticks for each in results):
        raise DecisionLogError("the log has no tick")
    return results
