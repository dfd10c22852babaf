"""Listener interface for effects of the health service."""

from typing import Protocol

from select_service.core.health.health_effects import HealthEffect


class HealthListener(Protocol):
    """Listener that receives every effect in order, once, after the weights are in force.

    Listeners are called in `HealthService.run_turn`, never while another method runs. A listener
    records work to do in turns of its own. A listener may read everything, but must not call
    methods of `HealthService` during the call. Ranks may have left in the meantime.
    """

    def on_effect(self, effect: HealthEffect, now: float) -> None:
        """Record an effect."""

    def run_turn(self, now: float) -> None:
        """Continue the recorded work for one turn; request another turn with `request_turn_if`."""

    def run_every_second(self, now: float) -> None:
        """Advance timers once a second, after the states of ranks."""
