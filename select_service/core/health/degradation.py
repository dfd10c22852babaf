"""What is given up, step by step, while the ranks that are left cannot carry what was promised.

A level sets all its effects.  It gets worse when the ratio of capacity to promise was below for a
while, at once when nothing is left, and better one level at a time, with a margin and after longer.
"""

from enum import StrEnum
from typing import NamedTuple


class Shed(StrEnum):
    """Whose requests are refused."""

    NONE = "none"
    LOWEST_TIER = "lowest_tier"
    ALL = "all"


class LevelEffects(NamedTuple):
    """Absolute values, whatever the level before was.

    ratio_min:          from which on the level is enough
    batch_multiplier:   of `max_num_batched_tokens` and the busy thresholds
    latency_multiplier: of queue timeouts and promises
    """

    ratio_min: float
    batch_multiplier: float
    shed: Shed
    latency_multiplier: float

    @property
    def refuses_new(self) -> bool:
        """Are new requests refused, and waiting ones, too?"""
        return self.shed is Shed.ALL


LEVELS = (
    LevelEffects(1.0, 1.0, Shed.NONE, 1.0),
    LevelEffects(0.75, 0.75, Shed.NONE, 1.0),
    LevelEffects(0.5, 0.75, Shed.LOWEST_TIER, 1.0),
    LevelEffects(0.25, 0.5, Shed.LOWEST_TIER, 2.0),
    LevelEffects(0.0, 0.5, Shed.ALL, 2.0),
)
RETRY_AFTER_S = 30
"""What a request refused at level 4 is told."""


def level_of(ratio: float) -> int:
    """The level that is enough for a ratio."""
    return next((n for n, level in enumerate(LEVELS) if ratio >= level.ratio_min), len(LEVELS) - 1)


class DegradationRules(NamedTuple):
    """Seconds until a level is changed, and what a better one needs above its threshold."""

    worsen_hold_s: float = 5.0
    restore_hold_s: float = 30.0
    margin: float = 0.05


class Degradation:
    """The level of one partition."""

    def __init__(self, rules: DegradationRules | None = None) -> None:
        self._rules = rules or DegradationRules()
        self.level = 0
        self._side = 0
        """-1: worse than the level, 1: clearly better, 0: neither."""
        self._since = 0.0

    @property
    def effects(self) -> LevelEffects:
        """Of the level that is in force."""
        return LEVELS[self.level]

    def update(self, ratio: float, now: float) -> bool:
        """Look at the ratio; whether the level is another one now."""
        side = self._side_of(ratio)
        if side != self._side:
            self._side, self._since = side, now
        before = self.level
        held_s = now - self._since
        if side < 0 and (ratio <= 0.0 or held_s >= self._rules.worsen_hold_s):
            self._set(level_of(ratio), ratio, now)
        while self._side > 0 and now - self._since >= self._rules.restore_hold_s:
            self._set(self.level - 1, ratio, now)
        return self.level != before

    def _set(self, level: int, ratio: float, now: float) -> None:
        """The next step needs its own time."""
        self.level = level
        self._side, self._since = self._side_of(ratio), now

    def _side_of(self, ratio: float) -> int:
        if level_of(ratio) > self.level:
            return -1
        if self.level and ratio >= LEVELS[self.level - 1].ratio_min + self._rules.margin:
            return 1
        return 0
