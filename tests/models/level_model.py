"""Naive twin of the degradation levels: each step looks at all steps since the last change."""

from select_service.core.health.degradation.degradation_levels import LEVELS, level_of


def naive_levels(steps, worsen_s, restore_s, margin):
    """Yield the level after each step.

    steps: pairs of time and ratio
    """
    level, seen = 0, []
    for now, ratio in steps:
        seen.append((now, ratio))
        is_worse = has_lasted(seen, now, worsen_s, lambda r, at=level: level_of(r) > at)
        if is_worse or (ratio == 0.0 and level < len(LEVELS) - 1):
            level, seen = level_of(ratio), seen[-1:]
        while level and has_lasted(
            seen, now, restore_s, lambda r, at=level: r >= LEVELS[at - 1].ratio_min + margin
        ):
            level, seen = level - 1, seen[-1:]
        yield level


def has_lasted(seen, now, seconds, is_so):
    """Return whether a condition has been true for that long."""
    since = None
    for at, ratio in reversed(seen):
        if not is_so(ratio):
            break
        since = at
    return since is not None and now - since >= seconds
