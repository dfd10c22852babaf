"""Naive twin of the levels of degradation: everything since the last change is looked at again."""

from select_service.core.health.degradation.degradation_levels import LEVELS, level_of


def naive_levels(steps, worsen_s, restore_s, margin):
    """The level after each step.  steps: (time, ratio)"""
    level, seen = 0, []
    for now, ratio in steps:
        seen.append((now, ratio))
        is_worse = held(seen, now, worsen_s, lambda r, at=level: level_of(r) > at)
        if is_worse or (ratio == 0.0 and level < len(LEVELS) - 1):
            level, seen = level_of(ratio), seen[-1:]
        while level and held(
            seen, now, restore_s, lambda r, at=level: r >= LEVELS[at - 1].ratio_min + margin
        ):
            level, seen = level - 1, seen[-1:]
        yield level


def held(seen, now, seconds, is_so):
    """Has it been so for that long?"""
    since = None
    for at, ratio in reversed(seen):
        if not is_so(ratio):
            break
        since = at
    return since is not None and now - since >= seconds
