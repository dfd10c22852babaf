"""Path from reconciled to final counts: stabiliser, pending replicas, unknowns, budgets."""

from collections.abc import Mapping
from typing import NamedTuple

from select_service.planner.core.budgets.role_budget import Counts, RoleBudget
from select_service.planner.core.diagnostics import StabiliserRecord
from select_service.planner.core.proposers.throughput_proposer import SCALE_DOWN_SLACK
from select_service.planner.core.reasons import Reason
from select_service.planner.core.replicas.replica_counts import ReplicaCounts as Deployed
from select_service.planner.core.replicas.stabiliser import (
    Stabiliser,
    StabiliserInput,
    StabiliserSettings,
)
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import REPLICAS_MAX, Role


class DesiredScale(NamedTuple):
    """Desired scale of a tick. targets None means no opinion.

    spare:   replicas that a step down must leave, by the forecast
    exact:   replicas that the forecast needs, not rounded
    unknown: reason why the need is unknown; then no role goes down
    floors:   counts that plugins require at least
    restored: replicas to be restored after a loss, by role
    """

    targets: Mapping[Role, int] | None
    spare: Mapping[Role, int]
    exact: Mapping[Role, float]
    unknown: Reason | None
    floors: Mapping[Role, int] = {}
    restored: Mapping[Role, int] = {}


class FinalCounts(NamedTuple):
    """Final counts, with the reasons of any difference from the desired scale."""

    counts: dict[Role, int]
    reasons: tuple[Reason, ...]
    stabilised: dict[Role, StabiliserRecord]


class CountSettler:
    """Stabilisers and budget of a deployment."""

    def __init__(self, settings: DeploymentSettings) -> None:
        self.settings = settings
        self.allowance = RoleBudget(settings)
        of = StabiliserSettings(
            down_window=settings.down_window_s,
            down_cooldown=settings.down_cooldown_s,
            max_up=settings.max_throughput_scaling_replicas,
        )
        self._step_max = of.max_up
        self._stabilisers = {role: Stabiliser(of) for role in self.allowance.roles}

    def settle_counts(self, now_s: float, desired: DesiredScale, deployed: Deployed) -> FinalCounts:
        """Return the final counts, compared with replicas that run or start."""
        have = deployed.running_or_starting
        reasons: list[Reason]
        # During drains and rollouts the counts change by themselves, so a new decision would be
        # made on numbers that are outdated at its execution.
        if deployed.is_changing and not deployed.is_only_starting:
            self.note_desired(now_s, desired, deployed)
            reasons = [Reason.SCALING_IN_PROGRESS]
            counts = _give_up_stuck(have, deployed, self.allowance.minimums, reasons)
            return FinalCounts(counts, tuple(reasons), {})
        reasons = []
        counts, stabilised = self._stabilise_roles(now_s, desired, deployed)
        reasons += [step.reason for step in stabilised.values() if step.target is None]
        counts = self._undo_unknown_steps(counts, have, desired, reasons)
        counts = _restore_lost(counts, desired.restored, reasons)
        counts = self._apply_budget(counts, deployed, reasons)
        counts = _give_up_stuck(counts, deployed, self.allowance.minimums, reasons)
        return FinalCounts(counts, tuple(dict.fromkeys(reasons)), stabilised)

    def note_desired(self, now_s: float, desired: DesiredScale, deployed: Deployed) -> None:
        """Record the desired scale in the windows of the stabilisers, without an action now."""
        for role, wanted in _desired_replicas(desired, deployed).items():
            self._stabilisers[role].note_desired(now_s, wanted)

    def _stabilise_roles(
        self, now_s: float, desired: DesiredScale, deployed: Deployed
    ) -> tuple[dict[Role, int], dict[Role, StabiliserRecord]]:
        """Return the counts after the stabiliser of each role, and its steps."""
        counts = deployed.running_or_starting
        steps: dict[Role, StabiliserRecord] = {}
        for role, wanted in _desired_replicas(desired, deployed).items():
            now = deployed.roles[role]
            # The tolerance must not undercut a floor of a plugin, and the step limit still applies.
            floor = min(desired.floors.get(role, 0), now.running_or_starting + self._step_max)
            low = max(self.allowance.minimums[role], floor)
            at = StabiliserInput(now.ready, now.starting, low, REPLICAS_MAX)
            step = self._stabilisers[role].next_step(now_s, at, wanted)
            steps[role] = StabiliserRecord(wanted=wanted, target=step.target, reason=step.reason)
            counts[role] = now.running_or_starting if step.target is None else step.target
        return counts, steps

    def _undo_unknown_steps(
        self, counts: dict[Role, int], have: Counts, desired: DesiredScale, reasons: list[Reason]
    ) -> dict[Role, int]:
        """Undo steps down while the need is unknown."""
        if desired.unknown is None or all(counts[role] >= have[role] for role in counts):
            return counts
        reasons.append(desired.unknown)
        return {role: max(counts[role], have[role]) for role in counts}

    def _apply_budget(
        self, counts: dict[Role, int], deployed: Deployed, reasons: list[Reason]
    ) -> dict[Role, int]:
        """Apply the budget.

        Below a minimum or outside of the band it changes counts even without a desired change.
        """
        have = deployed.running_or_starting
        outside = not self.allowance.is_within_budget(have)
        if self.allowance.is_below_minimum(have):
            reasons.append(Reason.BELOW_MINIMUM)
        elif counts == have and not outside:
            return counts
        allowed = self.allowance.fit_step(have, counts)
        if allowed.reason is not None:
            reasons.append(allowed.reason)
        # A budget must not end running replicas while others still start.
        if deployed.is_changing:
            return {role: max(n, deployed.roles[role].ready) for role, n in allowed.counts.items()}
        return allowed.counts


def _desired_replicas(desired: DesiredScale, deployed: Deployed) -> dict[Role, float]:
    """Return the desired replicas as real numbers, of roles with a target.

    A slight excess is no reason for a new replica. A step down has had its margin already, so the
    margin is not applied twice.
    """
    found: dict[Role, float] = {}
    for role, now in deployed.roles.items():
        have, exact = now.running_or_starting, desired.exact[role]
        target = None if desired.targets is None else desired.targets.get(role)
        if target is None:
            continue
        # The rounded target would always look a whole replica higher; the exact value lets the
        # stabiliser apply its tolerance.
        if target > have and target - 1 < exact <= target:
            found[role] = exact
        elif target >= have:
            found[role] = float(target)
        else:
            # The slack is in `spare` already. The factor cancels the stabiliser's own tolerance.
            found[role] = min(float(have), SCALE_DOWN_SLACK * max(target, desired.spare[role]))
    return found


def _restore_lost(
    counts: dict[Role, int], restored: Mapping[Role, int], reasons: list[Reason]
) -> dict[Role, int]:
    """Return the counts raised to those before a loss: one of many is within any tolerance."""
    short = {role: n for role, n in restored.items() if counts[role] < n}
    if short:
        reasons.append(Reason.CAPACITY_LOST)
    return counts | short


def _give_up_stuck(
    counts: dict[Role, int], deployed: Deployed, least: Counts, reasons: list[Reason]
) -> dict[Role, int]:
    """Give up a start-up that makes no progress, and block a new attempt for a while.

    Only verified start-ups are given up: replicas that failed or roll return without help.
    """
    found = dict(counts)
    for role, now in deployed.roles.items():
        if now.waiting.stuck:
            reasons.append(Reason.PENDING_STUCK)
            # Unready replicas of a failed node or a rolling update are not surplus, and must not be
            # removed.
            if now.verified:
                kept = max(now.ready, now.waiting.base, least[role])
                found[role] = min(found[role], kept)
        elif now.waiting.ceiling is not None and found[role] > now.waiting.ceiling:
            reasons.append(Reason.STUCK_CEILING)
            found[role] = max(now.waiting.ceiling, min(now.running_or_starting, found[role]))
    return found


def settle_without_stabiliser(
    allowance: RoleBudget, targets: Mapping[Role, int], deployed: Deployed
) -> FinalCounts:
    """Return the final counts without a stabiliser, as Dynamo's planner does.

    Minimums and the band are compared with ready replicas.
    """
    ready = deployed.ready
    counts = {role: targets.get(role, ready[role]) for role in ready}
    reasons: list[Reason] = []
    if not deployed.is_changing:
        if allowance.is_below_minimum(ready):
            counts = allowance.with_minimums(counts)
            reasons.append(Reason.BELOW_MINIMUM)
        if not allowance.is_within_budget(ready) or reasons:
            allowed = allowance.fit_step(ready, counts)
            reasons += [allowed.reason] if allowed.reason is not None else []
            counts = allowed.counts
    # Targets within the budget that only shrink are left alone, as in Dynamo's planner.
    if not allowance.is_within_budget(counts) and allowance.total_gpus(
        counts
    ) > allowance.total_gpus(ready):
        counts = allowance.clamp_counts(counts)
        reasons.append(Reason.GPU_BUDGET_HOLD)
    return FinalCounts(counts, tuple(reasons), {})
