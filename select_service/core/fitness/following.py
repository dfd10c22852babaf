"""How others learn what follows from the health of ranks."""

from typing import Protocol

from select_service.core.health.effects import Effect


class HealthFollower(Protocol):
    """Is told of every effect, in order and once, after the weights of ranks are in force.

    It is told in `Selector.settle`, never while a verb of somebody else runs.  It notes what it has
    to do and does it in turns of its own (`DueTask`, or `Touched.wake_if`); it may read everything,
    and must not call verbs of `Fitness` while it is told.  Ranks may have gone meanwhile.
    """

    def follow(self, effect: Effect, now: float) -> None:
        """Note it."""
