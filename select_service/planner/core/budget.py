"""Numbers of replicas -> numbers that the GPUs allow. The ceiling is never given up.

`proportional` fits whatever it is given, `directional` never turns a movement round, and `guard`
chooses between them from what is running now.  A pair is (prefill, decode).
"""

from math import ceil, floor
from typing import NamedTuple

from select_service.planner.core.reasons import Reason

Pair = tuple[int, int]


class Budget(NamedTuple):
    """GPUs in all, -1: no bound.

    gpus:     of one replica of each role
    minimums: replicas of each role that are always kept
    """

    min_gpus: int
    max_gpus: int
    gpus: Pair
    minimums: Pair

    @property
    def slack(self) -> int:
        """What the floor gives: steps of whole replicas need not meet both bounds."""
        return max(self.gpus) if self.min_gpus >= 0 and self.max_gpus >= 0 else 0

    def total(self, pair: Pair) -> int:
        return pair[0] * self.gpus[0] + pair[1] * self.gpus[1]

    def over(self, total: int) -> bool:
        return 0 <= self.max_gpus < total

    def under(self, total: int) -> bool:
        return self.min_gpus >= 0 and total < self.min_gpus - self.slack

    def inside(self, pair: Pair) -> bool:
        total = self.total(pair)
        return not self.over(total) and not self.under(total)

    @property
    def feasible(self) -> bool:
        """The minima fit under the ceiling."""
        return not self.over(self.total(self.minimums))


class Guarded(NamedTuple):
    """reason None: nothing but fitting was done"""

    pair: Pair
    reason: Reason | None


def proportional(pair: Pair, budget: Budget) -> Pair:
    """Shrunk or grown in proportion; (0, 0) where not even the minima fit."""
    total = budget.total(pair)
    if budget.over(total):
        return _shrunk(pair, budget, total)
    if budget.under(total):
        return _grown(pair, budget, total)
    return pair


def _shrunk(pair: Pair, budget: Budget, total: int) -> Pair:
    (gpu_p, gpu_d), (min_p, min_d) = budget.gpus, budget.minimums
    if not budget.feasible:
        return 0, 0
    most_p = (budget.max_gpus - min_d * gpu_d) // gpu_p
    prefill = max(min_p, min(most_p, floor(pair[0] * (budget.max_gpus / total))))
    return prefill, max(min_d, (budget.max_gpus - prefill * gpu_p) // gpu_d)


def _grown(pair: Pair, budget: Budget, total: int) -> Pair:
    """As it is where no whole replicas fit between the bounds."""
    (gpu_p, gpu_d), (min_p, min_d) = budget.gpus, budget.minimums
    share = pair[0] * (budget.min_gpus / total) if total > 0 else budget.min_gpus / 2 / gpu_p
    prefill = max(min_p, ceil(share))
    rest = max(0, budget.min_gpus - prefill * gpu_p)
    decode = max(min_d, -(-rest // gpu_d))
    grown = (prefill, decode)
    return pair if budget.over(budget.total(grown)) else grown


def directional(current: Pair, proposed: Pair, budget: Budget) -> Pair:
    """The nearest to the proposal that turns no movement round; `current` where nothing fits.

    Of opposing movements both happen or neither.  O(replicas moved by the smaller movement)
    """
    minimums = budget.minimums
    if proposed[0] >= minimums[0] and proposed[1] >= minimums[1] and budget.inside(proposed):
        return proposed
    best: tuple[int, int, int, int, int] | None = None
    for prefill in _between(current[0], proposed[0], minimums[0], budget.max_gpus, budget.gpus[0]):
        decode = _nearest_decode(prefill, current, proposed, budget)
        if decode is not None:
            score = _score((prefill, decode), current, proposed)
            best = score if best is None or score < best else best
    return current if best is None else best[3:]


def _between(current: int, proposed: int, minimum: int, max_gpus: int, gpus: int) -> range:
    """Never more than the ceiling could hold."""
    high = max(current, proposed)
    if max_gpus >= 0:
        high = min(high, max_gpus // gpus)
    return range(max(min(current, proposed), minimum), high + 1)


def _nearest_decode(prefill: int, current: Pair, proposed: Pair, budget: Budget) -> int | None:
    """The number of decode replicas next to the proposed one that fits beside `prefill`."""
    low = max(min(current[1], proposed[1]), budget.minimums[1])
    high = max(current[1], proposed[1])
    used, gpus = prefill * budget.gpus[0], budget.gpus[1]
    if budget.max_gpus >= 0:
        high = min(high, (budget.max_gpus - used) // gpus)
    if budget.min_gpus >= 0:
        low = max(low, -(-(budget.min_gpus - budget.slack - used) // gpus))
    if opposing(current, proposed):
        if prefill == current[0]:
            return current[1] if low <= current[1] <= high else None
        if proposed[1] > current[1]:
            low = max(low, current[1] + 1)
        else:
            high = min(high, current[1] - 1)
    return min(max(proposed[1], low), high) if low <= high else None


def _score(pair: Pair, current: Pair, proposed: Pair) -> tuple[int, int, int, int, int]:
    """Smaller is better: distance, skew of the two movements, progress, replicas."""
    moved = abs(pair[0] - current[0]), abs(pair[1] - current[1])
    asked = abs(proposed[0] - current[0]), abs(proposed[1] - current[1])
    distance = abs(proposed[0] - pair[0]) + abs(proposed[1] - pair[1])
    skew = abs(moved[0] * asked[1] - moved[1] * asked[0])
    return distance, skew, -(moved[0] + moved[1]), pair[0], pair[1]


def opposing(current: Pair, proposed: Pair) -> bool:
    """One role up, the other down."""
    return (proposed[0] - current[0]) * (proposed[1] - current[1]) < 0


def guard(current: Pair, proposed: Pair, budget: Budget) -> Guarded:
    """What may be done about a proposal. Outside of the band, `current` alone decides."""
    if not budget.inside(current):
        return Guarded(proportional(current, budget), Reason.GPU_BUDGET_RECONCILE)
    total = budget.total(current)
    down = proposed[0] < current[0] or proposed[1] < current[1]
    up = proposed[0] > current[0] or proposed[1] > current[1]
    if total <= budget.min_gpus and down and not up:
        return Guarded(current, Reason.GPU_BUDGET_HOLD)
    full = 0 <= budget.max_gpus <= total
    if opposing(current, proposed) and (full or total <= budget.min_gpus):
        return _held_or(directional(current, proposed, budget), current)
    if full and up:
        return Guarded(current, Reason.GPU_BUDGET_HOLD)
    fitted = proportional(proposed, budget)
    if not (_on_the_way(current, proposed, fitted) and budget.inside(fitted)):
        return Guarded(current, Reason.GPU_BUDGET_HOLD)
    return Guarded(fitted, None)


def _held_or(fitted: Pair, current: Pair) -> Guarded:
    return Guarded(fitted, Reason.GPU_BUDGET_HOLD if fitted == current else None)


def _on_the_way(current: Pair, proposed: Pair, fitted: Pair) -> bool:
    return all(
        min(now, then) <= number <= max(now, then)
        for now, then, number in zip(current, proposed, fitted, strict=True)
    )


def proportional_single(replicas: int, budget: Budget) -> int:
    """One role, the first of the budget: the other has no GPUs and no minimum."""
    gpus, minimum = budget.gpus[0], budget.minimums[0]
    total = replicas * gpus
    if budget.over(total):
        return max(minimum, budget.max_gpus // gpus) if budget.feasible else 0
    if not budget.under(total):
        return replicas
    grown = max(minimum, -(-budget.min_gpus // gpus))
    if budget.over(grown * gpus):
        return max(minimum, budget.max_gpus // gpus) if budget.feasible else 0
    return grown


def guard_single(current: int, proposed: int, budget: Budget) -> tuple[int, Reason | None]:
    """As `guard`, of one role."""
    if not budget.inside((current, 0)):
        return proportional_single(current, budget), Reason.GPU_BUDGET_RECONCILE
    total = current * budget.gpus[0]
    if budget.min_gpus >= 0 and total <= budget.min_gpus and proposed < current:
        return current, Reason.GPU_BUDGET_HOLD
    if 0 <= budget.max_gpus <= total and proposed > current:
        return current, Reason.GPU_BUDGET_HOLD
    fitted = proportional_single(proposed, budget)
    if not min(current, proposed) <= fitted <= max(current, proposed):
        return current, Reason.GPU_BUDGET_HOLD
    return fitted, None
