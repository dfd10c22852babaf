"""A decision log run again: with its own settings nothing may differ, with others it is shown what.

Every tick is told what it was told then, replicas included: it is asked how it would decide there,
not where the fleet would have gone.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec import Struct

from select_service.planner.core.inputs import Role
from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import Settings
from select_service.planner.core.tick import Deployment, Effects
from select_service.planner.decision_lines import Line, LogError, SettingsLine, TickLine
from select_service.planner.judging import settings_faults

DIFFERENCES_MAX = 1000
"""That are kept of a deployment; the others are counted."""
Make = Callable[[Settings, float], Deployment]
BROKEN = (ValueError, ArithmeticError, LookupError)
"""What no planner could have written, as counts without their bins, makes of the core."""
_CLUSTER = f'"{Reason.CLUSTER_BUDGET}"'.encode()


class Difference(Struct, frozen=True, kw_only=True):
    """One tick. None: nothing was to change.

    thoughts: the decision is the same, and what led to it is not
    """

    at_s: float
    recorded: Mapping[Role, int] | None
    now: Mapping[Role, int] | None
    thoughts: bool


class Again(Struct, frozen=True, kw_only=True):
    """One deployment.

    from_start: the log has its first tick; else the first ones may well differ
    shared:     ticks in which other deployments of the cluster took part, and that are not compared
    """

    deployment: str
    ticks: int
    same: int
    shared: int
    from_start: bool
    differences: list[Difference]
    differing: int


class _One:
    """A deployment that is told everything again."""

    def __init__(self, name: str, make: Make, other: Settings | None) -> None:
        self._name = name
        self._make = make
        self._other = other
        self._started_s: float | None = None
        self._deployment: Deployment | None = None
        self._differences: list[Difference] = []
        self._ticks = self._same = self._shared = self._differing = 0
        self._from_start = True

    def set(self, line: SettingsLine) -> None:
        """A deployment that begins, or other bounds of the one that there is."""
        settings = line.settings if self._other is None else self._other
        for fault in settings_faults(settings):
            raise LogError(f"settings of `{self._name}`: {fault}")
        if self._deployment is None or line.started_s != self._started_s:
            self._started_s = line.started_s
            self._deployment = self._make(settings, line.started_s)
        elif self._other is None:
            self._deployment.reconfigure(settings)

    def tick(self, line: TickLine) -> None:
        if self._deployment is None:
            raise LogError(f"a tick of `{self._name}` before its settings")
        if self._ticks == 0:
            first_s = self._deployment.next_tick.at_s
            interval_s = first_s - self._deployment.last_s
            self._from_start = line.tick.now_s < first_s + interval_s / 2
        try:
            effects = self._deployment.tick(line.tick)
        except BROKEN as error:
            now_s = line.tick.now_s
            raise LogError(f"`{self._name}` cannot be told the tick of {now_s}: {error}") from None
        self._ticks += 1
        if _CLUSTER in bytes(line.diagnostics):
            self._shared += 1
        elif self._is_same(line, effects):
            self._same += 1
        else:
            self._differ(line, effects)

    def result(self) -> Again:
        return Again(
            deployment=self._name,
            ticks=self._ticks,
            same=self._same,
            shared=self._shared,
            from_start=self._from_start,
            differences=self._differences,
            differing=self._differing,
        )

    def _is_same(self, line: TickLine, effects: Effects) -> bool:
        """To the byte with its own settings; with others only what was decided."""
        if line.scale_to != effects.scale_to:
            return False
        if self._other is not None:
            return True
        return msgspec.json.encode(effects.diagnostics) == bytes(line.diagnostics)

    def _differ(self, line: TickLine, effects: Effects) -> None:
        self._differing += 1
        if len(self._differences) < DIFFERENCES_MAX:
            self._differences.append(
                Difference(
                    at_s=line.tick.now_s,
                    recorded=line.scale_to,
                    now=effects.scale_to,
                    thoughts=line.scale_to == effects.scale_to,
                )
            )


def run_again(lines: Iterable[Line], make: Make, other: Settings | None = None) -> list[Again]:
    """By deployment, in the order of the log.

    other: instead of the settings of the log

    Raises LogError.
    """
    found: dict[str, _One] = {}
    for line in lines:
        one = found.setdefault(line.deployment, _One(line.deployment, make, other))
        if isinstance(line, SettingsLine):
            one.set(line)
        else:
            one.tick(line)
    results = [one.result() for one in found.values()]
    if not any(each.ticks for each in results):
        raise LogError("there is no tick in the log")
    return results
