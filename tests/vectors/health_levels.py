"""Player of degradation cases: the level at each ratio over time, and the effects of levels."""

from collections.abc import Iterator
from typing import Any

from select_service.core.health.degradation.degradation_levels import (
    LEVELS,
    DegradationLevel,
    DegradationRules,
    LoadShedding,
)
from tests.vectors.differences import Difference, differences


def play(case: dict[str, Any]) -> Iterator[Difference]:
    """Compare levels up to the first row that differs."""
    rules = DegradationRules(case["worsen_hold"], case["restore_hold"], case["margin"])
    degradation = DegradationLevel(rules)
    for at, (now, ratio, level) in enumerate(case["rows"]):
        degradation.update_level(ratio, now)
        found = list(differences(level, degradation.level, f"row {at} (t {now}, ratio {ratio})"))
        if found:
            yield from found
            return


SHED = {LoadShedding.NONE: None, LoadShedding.LOWEST_TIER: "lowest", LoadShedding.ALL: "all"}


def play_effects(case: dict[str, Any]) -> Iterator[Difference]:
    """Compare the effects of every level, and the smallest ratios at which each level suffices."""
    found = {
        str(number): {
            "batch": level.batch_multiplier,
            "shed": SHED[level.shed],
            "latency": level.latency_multiplier,
            "accept": not level.refuses_new,
        }
        for number, level in enumerate(LEVELS)
    }
    yield from differences(case["effects"], found, "effects")
    yield from differences(case["floors"], [level.ratio_min for level in LEVELS[:-1]], "floors")
