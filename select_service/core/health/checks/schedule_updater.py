"""Schedule changes that follow from effects of the health state machines."""

from collections.abc import Sequence

from select_service.core.health.checks.check_schedule import CheckSchedule
from select_service.core.health.checks.check_state import CheckedFleet
from select_service.core.health.checks.connection_probes import ConnectionProbes
from select_service.core.health.health_effects import (
    CheckRequested,
    ConnectionProbeRequested,
    EjectionWithheld,
    HealthEffect,
    ProbeRequested,
    StateChanged,
)
from select_service.core.health.health_kinds import CheckKind, RankHealthState
from select_service.core.health.health_rules import HealthRules
from select_service.core.identity import Rank


class CheckScheduleUpdater:
    """Listener between the state machines and the check schedule."""

    def __init__(
        self,
        rules: HealthRules,
        schedule: CheckSchedule,
        fleet: CheckedFleet,
        connections: ConnectionProbes,
    ) -> None:
        self._rules = rules
        self._connections = connections
        self._schedule = schedule
        self._fleet = fleet

    def apply_effects(self, effects: Sequence[HealthEffect], now: float) -> None:
        """Apply new effects in their order."""
        for effect in effects:
            match effect:
                case CheckRequested(rank):
                    self._schedule.request_check(rank, now)
                case ProbeRequested(rank):
                    self._schedule_probe(rank, now)
                case ConnectionProbeRequested(rank):
                    endpoint = self._fleet.ranks[rank].endpoint
                    if endpoint is not None:
                        self._connections.request_probe(endpoint)
                case StateChanged():
                    self._on_state_changed(effect, now)
                case EjectionWithheld():
                    self._fleet.counters.withheld += 1

    def _on_state_changed(self, effect: StateChanged, now: float) -> None:
        """Stop regular checks of ranks out of rotation, and confirm reported failures by a
        check.
        """
        self._fleet.counters.transitions[effect.previous_state, effect.state] += 1
        if not effect.state.is_serving:
            self._schedule.cancel_next_check(effect.rank)
        elif not effect.previous_state.is_serving:
            self._schedule.plan_regular_check(effect.rank, now)
        # Suspicion by a failing check is confirmed by the dispatcher; only reports need a check
        # here.
        elif effect.state is RankHealthState.SUSPICIOUS and effect.cause is CheckKind.PASSIVE:
            self._schedule.plan_confirmation(effect.rank, now + self._rules.confirm_s)

    def _schedule_probe(self, rank: Rank, now: float) -> None:
        """Schedule a probe: the first at once, further probes after a pause with another prompt."""
        passes = self._fleet.record_of(rank).breaker.passed_probes
        pause_s = self._rules.probe_pause_s if passes else 0.0
        # The first probe repeats the prompt that failed; later probes cover other prompts.
        prompt = self._fleet.ranks[rank].failed_prompt + passes
        self._schedule.plan_extra_check(rank, now + pause_s, prompt)
