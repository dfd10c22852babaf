"""Budgets of one deployment: one role or two, what runs now, and the minima."""

from collections.abc import Mapping
from typing import NamedTuple

from select_service.planner.core.budget import (
    Budget,
    Pair,
    directional,
    guard,
    guard_single,
    proportional,
    proportional_single,
)
from select_service.planner.core.inputs import Role
from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import Settings, gpus_of, min_endpoint_of, roles_of

Counts = Mapping[Role, int]


class Allowed(NamedTuple):
    """reason None: nothing but fitting was done"""

    counts: dict[Role, int]
    reason: Reason | None


class Allowance:
    """Pure. Every mapping has the roles of the mode."""

    def __init__(self, settings: Settings, max_gpus: int | None = None) -> None:
        """max_gpus: instead of the one of the settings, for a share of the cluster"""
        self.roles = roles_of(settings)
        self._gradual = settings.gradual_reconcile
        self.minimums = {role: min_endpoint_of(settings, role) for role in self.roles}
        self.gpus = {role: gpus_of(settings, role) for role in self.roles}
        limit = settings.max_gpu_budget if max_gpus is None else max_gpus
        self.budget = self._budget(settings.min_gpu_budget, limit)
        self._ceiling = self._budget(-1, limit)

    def _budget(self, min_gpus: int, max_gpus: int) -> Budget:
        return Budget(min_gpus, max_gpus, self._pair(self.gpus), self._pair(self.minimums))

    def total(self, counts: Counts) -> int:
        """GPUs."""
        return sum(counts[role] * self.gpus[role] for role in self.roles)

    def inside(self, counts: Counts) -> bool:
        return self.budget.inside(self._pair(counts))

    def below_minimum(self, counts: Counts) -> bool:
        return any(counts[role] < self.minimums[role] for role in self.roles)

    def with_minimums(self, counts: Counts) -> dict[Role, int]:
        return {role: max(counts[role], self.minimums[role]) for role in self.roles}

    def under_ceiling(self, current: Counts, proposed: Counts) -> dict[Role, int]:
        """A floor of the forecast under the ceiling; a GPU minimum is no demand."""
        if len(self.roles) == 1:
            role = self.roles[0]
            return {role: guard_single(current[role], proposed[role], self._ceiling)[0]}
        if self.below_minimum(current):
            wanted = self._pair(self.with_minimums(proposed))
            return self._counts(proportional(wanted, self._ceiling))
        pair = directional(self._pair(current), self._pair(proposed), self._ceiling)
        return self._counts(pair)

    def step(self, current: Counts, proposed: Counts) -> Allowed:
        """What may be done now about a proposal."""
        if len(self.roles) == 1:
            role = self.roles[0]
            least = max(proposed[role], self.minimums[role])
            number, reason = guard_single(current[role], least, self.budget)
            return Allowed(self._eased(current, {role: number}, reason), reason)
        if self.below_minimum(current):
            wanted = self._pair(self.with_minimums(proposed))
            fitted = self._counts(proportional(wanted, self.budget))
            return Allowed(fitted, Reason.GPU_BUDGET_RECONCILE)
        guarded = guard(self._pair(current), self._pair(proposed), self.budget)
        eased = self._eased(current, self._counts(guarded.pair), guarded.reason)
        return Allowed(eased, guarded.reason)

    def clamped(self, counts: Counts) -> dict[Role, int]:
        """Whatever is given, under the ceiling and not below the minima."""
        wanted = self.with_minimums(counts)
        if len(self.roles) == 1:
            return {self.roles[0]: proportional_single(wanted[self.roles[0]], self._ceiling)}
        return self._counts(proportional(self._pair(wanted), self._ceiling))

    def _eased(self, current: Counts, fitted: Counts, reason: Reason | None) -> dict[Role, int]:
        """Out of the band one replica of each role a tick, where that is asked for; up to the
        minimum at once."""
        if not self._gradual or reason is not Reason.GPU_BUDGET_RECONCILE:
            return dict(fitted)
        return {
            role: max(
                current[role] - 1,
                min(max(current[role] + 1, self.minimums[role]), fitted[role]),
            )
            for role in self.roles
        }

    def _pair(self, counts: Counts) -> Pair:
        if len(self.roles) == 1:
            return counts[self.roles[0]], 0
        return counts[Role.PREFILL], counts[Role.DECODE]

    def _counts(self, pair: Pair) -> dict[Role, int]:
        return dict(zip(self.roles, pair, strict=False))
