"""How others learn what follows from the health of ranks."""

from typing import Protocol

from select_service.core.health.effects import Effect


class HealthFollower(Protocol):
    """Is told of every effect, in order and once, after the weights of ranks are in force.

    It is told in `Selector.settle`, never while a verb of somebody else runs.  It notes what it has
    to do and does it in its turns; it may read everything,
    and must not call verbs of `Fitness` while it is told.  Ranks may have gone meanwhile.
    """

    def follow(self, effect: Effect, now: float) -> None:
        """Note it."""

    def settle(self, now: float) -> None:
        """One turn of what was noted; it asks for the next one (`Touched.wake_if`)."""

    def tick(self, now: float) -> None:
        """Once a second, after the states of ranks."""
