"""EDGE: every tick as a line of the decision log."""

import msgspec
from msgspec import Raw

from select_service.planner.connectors.base import Decision
from select_service.planner.core.inputs import TickInput
from select_service.planner.core.settings import Settings
from select_service.planner.core.tick import Effects
from select_service.planner.decision_lines import SettingsLine, TickLine
from select_service.planner.edge.decision_log import DecisionLog


class Recorder:
    """Listens to the loop."""

    def __init__(self, log: DecisionLog) -> None:
        self._log = log
        self._started_s: dict[str, float] = {}

    def ticked(
        self, name: str, tick: TickInput, effects: Effects, applied: Decision | None
    ) -> None:
        self._log.write(
            TickLine(
                deployment=name,
                tick=tick,
                scale_to=effects.scale_to,
                diagnostics=Raw(msgspec.json.encode(effects.diagnostics)),
                applied=Raw(msgspec.json.encode(applied)),
            )
        )

    def changed(self, name: str, settings: Settings, now_s: float) -> None:
        """The first time that of the start."""
        started_s = self._started_s.setdefault(name, now_s)
        self._log.write(
            SettingsLine(deployment=name, at_s=now_s, settings=settings, started_s=started_s)
        )
