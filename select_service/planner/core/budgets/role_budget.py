"""GPU budget of a deployment with one or two roles, their running replicas and minimums."""

from collections.abc import Mapping
from typing import NamedTuple

from select_service.planner.core.budgets.gpu_budget import (
    GpuBudget,
    Pair,
    fit_directional,
    fit_proportional,
    fit_single_role,
    guard_proposal,
    guard_single_role,
)
from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import (
    DeploymentSettings,
    minimum_replicas,
    replica_gpus,
    scaled_roles,
)
from select_service.planner.core.tick_input import Role

Counts = Mapping[Role, int]


class AllowedCounts(NamedTuple):
    """Replica counts that the budget allows; reason None means that only the fit was applied."""

    counts: dict[Role, int]
    reason: Reason | None


class RoleBudget:
    """GPU budget by role. Pure: no state; every mapping has exactly the roles of the mode."""

    def __init__(self, settings: DeploymentSettings, max_gpus: int | None = None) -> None:
        """Store the bounds; max_gpus replaces the setting, for a share of the cluster."""
        self.roles = scaled_roles(settings)
        self._gradual = settings.gradual_reconcile
        self.minimums = {role: minimum_replicas(settings, role) for role in self.roles}
        self.gpus = {role: replica_gpus(settings, role) for role in self.roles}
        limit = settings.max_gpu_budget if max_gpus is None else max_gpus
        self.budget = self._make_budget(settings.min_gpu_budget, limit)
        # The forecast's floor is demand, and a GPU minimum is not: so it is fitted without the
        # minimum.
        self._ceiling = self._make_budget(-1, limit)

    def _make_budget(self, min_gpus: int, max_gpus: int) -> GpuBudget:
        return GpuBudget(min_gpus, max_gpus, self._to_pair(self.gpus), self._to_pair(self.minimums))

    def total_gpus(self, counts: Counts) -> int:
        """Return the GPUs of these replicas."""
        return sum(counts[role] * self.gpus[role] for role in self.roles)

    def is_within_budget(self, counts: Counts) -> bool:
        """Return whether these replicas are within both bounds."""
        return self.budget.is_within(self._to_pair(counts))

    def is_below_minimum(self, counts: Counts) -> bool:
        """Return whether any role has fewer replicas than its minimum."""
        return any(counts[role] < self.minimums[role] for role in self.roles)

    def with_minimums(self, counts: Counts) -> dict[Role, int]:
        """Return the counts raised to the minimums."""
        return {role: max(counts[role], self.minimums[role]) for role in self.roles}

    def fit_under_ceiling(self, current: Counts, proposed: Counts) -> dict[Role, int]:
        """Fit the floor of a forecast under the ceiling.

        The GPU minimum is ignored, as no demand.
        """
        if len(self.roles) == 1:
            role = self.roles[0]
            return {role: guard_single_role(current[role], proposed[role], self._ceiling)[0]}
        # Below a minimum the direction rules are skipped, as service has precedence over
        # steadiness.
        if self.is_below_minimum(current):
            wanted = self._to_pair(self.with_minimums(proposed))
            return self._to_counts(fit_proportional(wanted, self._ceiling))
        pair = fit_directional(self._to_pair(current), self._to_pair(proposed), self._ceiling)
        return self._to_counts(pair)

    def fit_step(self, current: Counts, proposed: Counts) -> AllowedCounts:
        """Return the part of a proposal that is allowed in this tick."""
        if len(self.roles) == 1:
            role = self.roles[0]
            least = max(proposed[role], self.minimums[role])
            number, reason = guard_single_role(current[role], least, self.budget)
            return AllowedCounts(self._limit_step(current, {role: number}, reason), reason)
        if self.is_below_minimum(current):
            wanted = self._to_pair(self.with_minimums(proposed))
            fitted = self._to_counts(fit_proportional(wanted, self.budget))
            return AllowedCounts(fitted, Reason.GPU_BUDGET_RECONCILE)
        guarded = guard_proposal(self._to_pair(current), self._to_pair(proposed), self.budget)
        eased = self._limit_step(current, self._to_counts(guarded.pair), guarded.reason)
        return AllowedCounts(eased, guarded.reason)

    def clamp_counts(self, counts: Counts) -> dict[Role, int]:
        """Return the counts cut to the ceiling and raised to the minimums."""
        wanted = self.with_minimums(counts)
        if len(self.roles) == 1:
            return {self.roles[0]: fit_single_role(wanted[self.roles[0]], self._ceiling)}
        return self._to_counts(fit_proportional(self._to_pair(wanted), self._ceiling))

    def _limit_step(
        self, current: Counts, fitted: Counts, reason: Reason | None
    ) -> dict[Role, int]:
        """Limit a return into the band to one replica a role and tick.

        Minimums are reached at once.
        """
        if not self._gradual or reason is not Reason.GPU_BUDGET_RECONCILE:
            return dict(fitted)
        return {
            role: max(
                # At most one replica down; up to the minimum at once, else one replica up.
                current[role] - 1,
                min(max(current[role] + 1, self.minimums[role]), fitted[role]),
            )
            for role in self.roles
        }

    def _to_pair(self, counts: Counts) -> Pair:
        """Return counts as (prefill, decode), a single role as the first."""
        if len(self.roles) == 1:
            return counts[self.roles[0]], 0
        return counts[Role.PREFILL], counts[Role.DECODE]

    def _to_counts(self, pair: Pair) -> dict[Role, int]:
        """Return a pair as counts by role."""
        return dict(zip(self.roles, pair, strict=False))
