"""Recorder of every tick in the decision log."""

import msgspec
from msgspec import Raw

from select_service.planner.connectors.connector import ConnectorDecision
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick import TickEffects
from select_service.planner.core.tick_input import TickInput
from select_service.planner.planner_log_lines import SettingsLine, TickLine
from select_service.planner.runtime.planner_decision_log import PlannerDecisionLog


class TickRecorder:
    """Listener that writes the decision log."""

    def __init__(self, log: PlannerDecisionLog) -> None:
        self._log = log
        self._started_s: dict[str, float] = {}

    def ticked(
        self, name: str, tick: TickInput, effects: TickEffects, applied: ConnectorDecision | None
    ) -> None:
        """Write a tick."""
        self._log.write_line(
            TickLine(
                deployment=name,
                tick=tick,
                scale_to=effects.scale_to,
                diagnostics=Raw(msgspec.json.encode(effects.diagnostics)),
                applied=Raw(msgspec.json.encode(applied)),
            )
        )

    def changed(self, name: str, settings: DeploymentSettings, now_s: float) -> None:
        """Write settings; the first call sets the start of the schedule."""
        # Settings change while the planner runs, but its state began only once.
        started_s = self._started_s.setdefault(name, now_s)
        self._log.write_line(
            SettingsLine(deployment=name, at_s=now_s, settings=settings, started_s=started_s)
        )
