"""Fit of replica counts into a GPU budget; the ceiling is never exceeded.

The proportional fit accepts any pair, the directional fit never reverses the direction of a
movement, and the guard chooses between both by the replicas that run now.  A pair is (prefill,
decode).
"""

from math import ceil, floor
from typing import NamedTuple

from select_service.planner.core.reasons import Reason

Pair = tuple[int, int]


class GpuBudget(NamedTuple):
    """GPU budget of a deployment; a bound of -1 is no bound.

    min_gpus, max_gpus: floor and ceiling, GPUs of all replicas together
    gpus:     GPUs of a replica, by role
    minimums: replicas that are always kept, by role
    """

    min_gpus: int
    max_gpus: int
    gpus: Pair
    minimums: Pair

    @property
    def slack(self) -> int:
        """GPUs by which the floor may be missed.

        Steps of whole replicas cannot always meet both bounds.
        """
        # With replicas of 8 GPUs no count fits a band of 20 to 22, so the floor gives way by up to
        # one replica.
        return max(self.gpus) if self.min_gpus >= 0 and self.max_gpus >= 0 else 0

    def total_gpus(self, pair: Pair) -> int:
        """Return the GPUs of a pair of replica counts."""
        return pair[0] * self.gpus[0] + pair[1] * self.gpus[1]

    def is_over(self, total: int) -> bool:
        """Return whether so many GPUs exceed the ceiling."""
        return 0 <= self.max_gpus < total

    def is_under(self, total: int) -> bool:
        """Return whether so many GPUs are below the floor by more than the slack."""
        return self.min_gpus >= 0 and total < self.min_gpus - self.slack

    def is_within(self, pair: Pair) -> bool:
        """Return whether a pair of replica counts is within both bounds."""
        total = self.total_gpus(pair)
        return not self.is_over(total) and not self.is_under(total)

    @property
    def is_feasible(self) -> bool:
        """Whether the minimums fit under the ceiling."""
        return not self.is_over(self.total_gpus(self.minimums))


class GuardedPair(NamedTuple):
    """Pair that the guard allows; reason None means that only the fit was applied."""

    pair: Pair
    reason: Reason | None


def fit_proportional(pair: Pair, budget: GpuBudget) -> Pair:
    """Shrink or grow both roles in proportion; (0, 0) if even the minimums do not fit."""
    total = budget.total_gpus(pair)
    if budget.is_over(total):
        return _shrink_pair(pair, budget, total)
    if budget.is_under(total):
        return _grow_pair(pair, budget, total)
    return pair


def _shrink_pair(pair: Pair, budget: GpuBudget, total: int) -> Pair:
    """Return the pair cut to the ceiling: prefill in proportion, decode from the remaining GPUs."""
    (gpu_p, gpu_d), (min_p, min_d) = budget.gpus, budget.minimums
    if not budget.is_feasible:
        return 0, 0
    # Prefill is scaled first and rounded down; decode takes the rest, so that no GPU stays unused.
    most_p = (budget.max_gpus - min_d * gpu_d) // gpu_p
    prefill = max(min_p, min(most_p, floor(pair[0] * (budget.max_gpus / total))))
    return prefill, max(min_d, (budget.max_gpus - prefill * gpu_p) // gpu_d)


def _grow_pair(pair: Pair, budget: GpuBudget, total: int) -> Pair:
    """Return the pair raised to the floor.

    The pair is unchanged if no whole replicas fit between the bounds.
    """
    (gpu_p, gpu_d), (min_p, min_d) = budget.gpus, budget.minimums
    # From zero replicas there is no proportion to keep: each role gets half of the GPUs.
    share = pair[0] * (budget.min_gpus / total) if total > 0 else budget.min_gpus / 2 / gpu_p
    prefill = max(min_p, ceil(share))
    rest = max(0, budget.min_gpus - prefill * gpu_p)
    decode = max(min_d, -(-rest // gpu_d))
    grown = (prefill, decode)
    # Rounding up may pass the ceiling, which has precedence over the floor.
    return pair if budget.is_over(budget.total_gpus(grown)) else grown


def fit_directional(current: Pair, proposed: Pair, budget: GpuBudget) -> Pair:
    """Return the closest pair to the proposal that reverses no movement; else `current`.

    Opposing movements happen together or not at all.  O(replicas moved by the smaller movement)
    """
    minimums = budget.minimums
    if proposed[0] >= minimums[0] and proposed[1] >= minimums[1] and budget.is_within(proposed):
        return proposed
    best: tuple[int, int, int, int, int] | None = None
    for prefill in _candidate_counts(
        current[0], proposed[0], minimums[0], budget.max_gpus, budget.gpus[0]
    ):
        decode = _nearest_decode(prefill, current, proposed, budget)
        if decode is not None:
            score = _pair_score((prefill, decode), current, proposed)
            best = score if best is None or score < best else best
    return current if best is None else best[3:]


def _candidate_counts(current: int, proposed: int, minimum: int, max_gpus: int, gpus: int) -> range:
    """Return the prefill counts between current and proposed, cut at the ceiling."""
    high = max(current, proposed)
    # Bounds the search: a proposal of a million replicas must not cost a million steps.
    if max_gpus >= 0:
        high = min(high, max_gpus // gpus)
    return range(max(min(current, proposed), minimum), high + 1)


def _nearest_decode(prefill: int, current: Pair, proposed: Pair, budget: GpuBudget) -> int | None:
    """Return the decode count closest to the proposal that fits beside `prefill`, or None."""
    low = max(min(current[1], proposed[1]), budget.minimums[1])
    high = max(current[1], proposed[1])
    used, gpus = prefill * budget.gpus[0], budget.gpus[1]
    if budget.max_gpus >= 0:
        high = min(high, (budget.max_gpus - used) // gpus)
    if budget.min_gpus >= 0:
        low = max(low, -(-(budget.min_gpus - budget.slack - used) // gpus))
    if is_opposing(current, proposed):
        # An opposing proposal exchanges replicas between the roles. Moving only one of them would
        # take GPUs from one role without use for the other, or exceed the ceiling.
        if prefill == current[0]:
            return current[1] if low <= current[1] <= high else None
        if proposed[1] > current[1]:
            low = max(low, current[1] + 1)
        else:
            high = min(high, current[1] - 1)
    return min(max(proposed[1], low), high) if low <= high else None


def _pair_score(pair: Pair, current: Pair, proposed: Pair) -> tuple[int, int, int, int, int]:
    """Return the sort key of a pair, best first.

    The key is distance, skew of both movements, progress, replicas.
    """
    moved = abs(pair[0] - current[0]), abs(pair[1] - current[1])
    asked = abs(proposed[0] - current[0]), abs(proposed[1] - current[1])
    distance = abs(proposed[0] - pair[0]) + abs(proposed[1] - pair[1])
    # Cross product of both movements: 0 if the pair keeps the proposed proportion.
    skew = abs(moved[0] * asked[1] - moved[1] * asked[0])
    return distance, skew, -(moved[0] + moved[1]), pair[0], pair[1]


def is_opposing(current: Pair, proposed: Pair) -> bool:
    """Return whether the roles move in opposite directions."""
    return (proposed[0] - current[0]) * (proposed[1] - current[1]) < 0


def guard_proposal(current: Pair, proposed: Pair, budget: GpuBudget) -> GuardedPair:
    """Return the allowed part of a proposal; outside of the band only `current` counts."""
    if not budget.is_within(current):
        return GuardedPair(fit_proportional(current, budget), Reason.GPU_BUDGET_RECONCILE)
    total = budget.total_gpus(current)
    down = proposed[0] < current[0] or proposed[1] < current[1]
    up = proposed[0] > current[0] or proposed[1] > current[1]
    # At the floor a step down is refused, not redistributed in proportion.
    if total <= budget.min_gpus and down and not up:
        return GuardedPair(current, Reason.GPU_BUDGET_HOLD)
    full = 0 <= budget.max_gpus <= total
    if is_opposing(current, proposed) and (full or total <= budget.min_gpus):
        moved = fit_directional(current, proposed, budget)
        return GuardedPair(moved, Reason.GPU_BUDGET_HOLD if moved == current else None)
    if full and up:
        return GuardedPair(current, Reason.GPU_BUDGET_HOLD)
    fitted = fit_proportional(proposed, budget)
    # Proportional fitting may move a role against its proposal; then nothing is done at all.
    if not (_is_between(current, proposed, fitted) and budget.is_within(fitted)):
        return GuardedPair(current, Reason.GPU_BUDGET_HOLD)
    return GuardedPair(fitted, None)


def _is_between(current: Pair, proposed: Pair, fitted: Pair) -> bool:
    """Return whether each fitted count lies between the current and the proposed count."""
    return all(
        min(now, then) <= number <= max(now, then)
        for now, then, number in zip(current, proposed, fitted, strict=True)
    )


def fit_single_role(replicas: int, budget: GpuBudget) -> int:
    """Fit a single role, the first of the budget: the other has no GPUs and no minimum."""
    gpus, minimum = budget.gpus[0], budget.minimums[0]
    if budget.is_within((replicas, 0)):
        return replicas
    grown = max(minimum, -(-budget.min_gpus // gpus))
    if not budget.is_over(replicas * gpus) and not budget.is_over(grown * gpus):
        return grown
    return max(minimum, budget.max_gpus // gpus) if budget.is_feasible else 0


def guard_single_role(current: int, proposed: int, budget: GpuBudget) -> tuple[int, Reason | None]:
    """Return the allowed count of a single role, and the reason if the budget changed the count."""
    if not budget.is_within((current, 0)):
        return fit_single_role(current, budget), Reason.GPU_BUDGET_RECONCILE
    total = current * budget.gpus[0]
    if budget.min_gpus >= 0 and total <= budget.min_gpus and proposed < current:
        return current, Reason.GPU_BUDGET_HOLD
    if 0 <= budget.max_gpus <= total and proposed > current:
        return current, Reason.GPU_BUDGET_HOLD
    fitted = fit_single_role(proposed, budget)
    if not min(current, proposed) <= fitted <= max(current, proposed):
        return current, Reason.GPU_BUDGET_HOLD
    return fitted, None
