"""What effects of the state machines mean for the time of the next check."""

from collections.abc import Sequence

from select_service.core.health.checked import CheckedFleet
from select_service.core.health.effects import (
    CheckAsked,
    Effect,
    ProbeAsked,
    StateChanged,
    Withheld,
)
from select_service.core.health.kinds import Kind, State
from select_service.core.health.rules import HealthRules
from select_service.core.health.schedule import Schedule
from select_service.core.identity import Rank


class Following:
    """Between the state machines and the schedule."""

    def __init__(self, rules: HealthRules, schedule: Schedule, fleet: CheckedFleet) -> None:
        self._rules = rules
        self._schedule = schedule
        self._fleet = fleet

    def follow(self, effects: Sequence[Effect], now: float) -> None:
        """New ones, in their order."""
        for effect in effects:
            match effect:
                case CheckAsked(rank):
                    self._schedule.ask(rank, now)
                case ProbeAsked(rank):
                    self._probe(rank, now)
                case StateChanged():
                    self._moved(effect, now)
                case Withheld():
                    self._fleet.counts.withheld += 1

    def _moved(self, effect: StateChanged, now: float) -> None:
        """Who is out is only probed; whom callers suspect is asked."""
        self._fleet.counts.transitions[effect.was, effect.state] += 1
        if not effect.state.serves:
            self._schedule.pause(effect.rank)
        elif not effect.was.serves:
            self._schedule.next_round(effect.rank, now)
        elif effect.state is State.SUSPICIOUS and effect.cause is Kind.PASSIVE:
            self._schedule.confirm(effect.rank, now + self._rules.confirm_s)

    def _probe(self, rank: Rank, now: float) -> None:
        """At once; further ones after a pause, each with another prompt."""
        passes = self._fleet.record(rank).breaker.passes
        pause_s = self._rules.probe_pause_s if passes else 0.0
        prompt = self._fleet.ranks[rank].wrong_prompt + passes
        self._schedule.at(rank, now + pause_s, prompt)
