"""Degradation levels: what is given up while the remaining ranks cannot carry the promised load.

A level sets all its effects. The level worsens after the ratio of capacity to promise was too low
for a while, and at once when no capacity is left. The level improves by single steps, with a margin
and after a longer time.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class LoadShedding(StrEnum):
    """Requests that are refused."""

    NONE = "none"
    LOWEST_TIER = "lowest_tier"
    ALL = "all"


class LevelEffects(NamedTuple):
    """Effects of a level, absolute and independent of the previous level.

    ratio_min: smallest ratio for which the level suffices
    batch_multiplier: factor of `max_num_batched_tokens` and of the busy thresholds
    latency_multiplier: factor of queue timeouts and latency promises
    """

    ratio_min: float
    batch_multiplier: float
    shed: LoadShedding
    latency_multiplier: float

    @property
    def refuses_new(self) -> bool:
        """Whether new and queued requests are refused."""
        return self.shed is LoadShedding.ALL


LEVELS = (
    LevelEffects(1.0, 1.0, LoadShedding.NONE, 1.0),
    LevelEffects(0.75, 0.75, LoadShedding.NONE, 1.0),
    LevelEffects(0.5, 0.75, LoadShedding.LOWEST_TIER, 1.0),
    LevelEffects(0.25, 0.5, LoadShedding.LOWEST_TIER, 2.0),
    LevelEffects(0.0, 0.5, LoadShedding.ALL, 2.0),
)


RATIOS = tuple(level.ratio_min for level in LEVELS[:-1])
"""Smallest ratios of the levels 0 to 3; below the last one everything is refused."""


def level_of(ratio: float, ratios: Sequence[float] = RATIOS) -> int:
    """Return the mildest level that suffices for a ratio.

    ratios: smallest ratio of every level but the last
    """
    return next((n for n, least in enumerate(ratios) if ratio >= least), len(ratios))


class DegradationRules(NamedTuple):
    """Hold times before a change of level, in s, and the margin for improving.

    ratios: smallest ratio of every level but the last
    """

    worsen_hold_s: float = 5.0
    restore_hold_s: float = 30.0
    margin: float = 0.05
    ratios: tuple[float, ...] = RATIOS


class DegradationLevel:
    """Degradation level of a partition."""

    def __init__(self, rules: DegradationRules | None = None) -> None:
        self._rules = rules or DegradationRules()
        self.level = 0
        self._direction = 0
        """Direction of the ratio: -1 worse than the level, 1 clearly better, 0 neither."""
        self._since = 0.0

    @property
    def current_effects(self) -> LevelEffects:
        """Effects of the current level."""
        return LEVELS[self.level]

    def update_level(self, ratio: float, now: float) -> bool:
        """Evaluate the ratio at a time; return whether the level changed."""
        side = self._direction_of(ratio)
        # The hold time restarts whenever the direction changes, which suppresses flapping around
        # a threshold.
        if side != self._direction:
            self._direction, self._since = side, now
        before = self.level
        held_s = now - self._since
        # Without any capacity waiting would only queue requests that cannot be served.
        if side < 0 and (ratio <= 0.0 or held_s >= self._rules.worsen_hold_s):
            self._set_level(level_of(ratio, self._rules.ratios), ratio, now)
        # `_set_level` restarts the hold time, so more than one step occurs only with a hold of 0 s.
        while self._direction > 0 and now - self._since >= self._rules.restore_hold_s:
            self._set_level(self.level - 1, ratio, now)
        return self.level != before

    def _set_level(self, level: int, ratio: float, now: float) -> None:
        """Set the level and restart the hold time, so that every step takes its full time."""
        self.level = level
        self._direction, self._since = self._direction_of(ratio), now

    def _direction_of(self, ratio: float) -> int:
        ratios = self._rules.ratios
        if level_of(ratio, ratios) > self.level:
            return -1
        if self.level and ratio >= ratios[self.level - 1] + self._rules.margin:
            return 1
        return 0
