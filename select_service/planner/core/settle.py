"""From what was merged to what is done: stabiliser, pending replicas, unknowns, budgets."""

from collections.abc import Mapping
from typing import NamedTuple

from select_service.planner.core.allowance import Allowance, Counts
from select_service.planner.core.diagnostics import Stabilised
from select_service.planner.core.inputs import (
    REPLICAS_MAX,
    Role,
)
from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import Settings
from select_service.planner.core.stabilise import Stabiliser, StabiliserSettings, Standing
from select_service.planner.core.standing import RoleNow
from select_service.planner.core.standing import Standing as Deployed
from select_service.planner.core.throughput import SPARE


class Wish(NamedTuple):
    """targets None: nobody has an opinion.

    spare: what a step down must leave, of the forecast
    exact: what the forecast needs, not rounded
    unknown: why it is not known what is needed: then nothing goes down
    """

    targets: Mapping[Role, int] | None
    spare: Mapping[Role, int]
    exact: Mapping[Role, float]
    unknown: Reason | None


class Settled(NamedTuple):
    """counts: what shall be there;  reasons: why, where it is not what was wished"""

    counts: dict[Role, int]
    reasons: tuple[Reason, ...]
    stabilised: dict[Role, Stabilised]


class Settler:
    """With the stabilisers of all roles."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.allowance = Allowance(settings)
        of = StabiliserSettings(
            down_window=settings.down_window_s,
            down_cooldown=settings.down_cooldown_s,
            max_up=settings.max_throughput_scaling_replicas,
        )
        self._stabilisers = {role: Stabiliser(of) for role in self.allowance.roles}

    def settle(self, now_s: float, wish: Wish, deployed: Deployed) -> Settled:
        """Against replicas that are there or on their way."""
        have = deployed.have
        reasons: list[Reason]
        if deployed.moving and not deployed.only_starting:
            self.note(now_s, wish, deployed)
            reasons = [Reason.SCALING_IN_PROGRESS]
            counts = _unstuck(have, deployed, self.allowance.minimums, reasons)
            return Settled(counts, tuple(reasons), {})
        reasons = []
        counts, stabilised = self._stabilised(now_s, wish, deployed)
        reasons += [step.reason for step in stabilised.values() if step.target is None]
        counts = self._known(counts, have, wish, reasons)
        counts = self._budgeted(counts, deployed, reasons)
        counts = _unstuck(counts, deployed, self.allowance.minimums, reasons)
        return Settled(counts, tuple(dict.fromkeys(reasons)), stabilised)

    def note(self, now_s: float, wish: Wish, deployed: Deployed) -> None:
        """Nothing is done now, but what was wished counts for its window."""
        for role, wanted in _real(wish, deployed).items():
            self._stabilisers[role].note(now_s, wanted)

    def _stabilised(
        self, now_s: float, wish: Wish, deployed: Deployed
    ) -> tuple[dict[Role, int], dict[Role, Stabilised]]:
        counts = deployed.have
        steps: dict[Role, Stabilised] = {}
        for role, wanted in _real(wish, deployed).items():
            now, low = deployed.roles[role], self.allowance.minimums[role]
            at = Standing(now.ready, now.starting, low, REPLICAS_MAX)
            step = self._stabilisers[role].step(now_s, at, wanted)
            steps[role] = Stabilised(wanted=wanted, target=step.target, reason=step.reason)
            counts[role] = now.have if step.target is None else step.target
        return counts, steps

    def _known(
        self, counts: dict[Role, int], have: Counts, wish: Wish, reasons: list[Reason]
    ) -> dict[Role, int]:
        """Nothing goes down on what is not known."""
        if wish.unknown is None or all(counts[role] >= have[role] for role in counts):
            return counts
        reasons.append(wish.unknown)
        return {role: max(counts[role], have[role]) for role in counts}

    def _budgeted(
        self, counts: dict[Role, int], deployed: Deployed, reasons: list[Reason]
    ) -> dict[Role, int]:
        """Below a minimum, or outside of the band, something is done without any wish."""
        have = deployed.have
        outside = not self.allowance.inside(have)
        if self.allowance.below_minimum(have):
            reasons.append(Reason.BELOW_MINIMUM)
        elif counts == have and not outside:
            return counts
        allowed = self.allowance.step(have, counts)
        if allowed.reason is not None:
            reasons.append(allowed.reason)
        if deployed.moving:
            return {role: max(allowed.counts[role], now.ready) for role, now in _of(deployed)}
        return allowed.counts

    def check_invariants(self) -> None:
        """For tests."""
        for stabiliser in self._stabilisers.values():
            stabiliser.check_invariants()


def _of(deployed: Deployed) -> list[tuple[Role, RoleNow]]:
    return list(deployed.roles.items())


def _real(wish: Wish, deployed: Deployed) -> dict[Role, float]:
    """Of roles that somebody has an opinion on."""
    return {
        role: _wanted(target, wish.spare[role], wish.exact[role], deployed.roles[role].have)
        for role in deployed.roles
        if (target := (wish.targets or {}).get(role)) is not None
    }


def _wanted(target: int, spare: int, exact: float, have: int) -> float:
    """As a real number: a little more than there is, is no reason for one more replica.

    A step down has had its margin already: it is not asked for twice.
    """
    if target > have and target - 1 < exact <= target:
        return exact
    if target >= have:
        return float(target)
    return min(float(have), SPARE * max(target, spare))


def _unstuck(
    counts: dict[Role, int], deployed: Deployed, least: Counts, reasons: list[Reason]
) -> dict[Role, int]:
    """A start-up that makes no progress is given up, and not begun again for a while.

    Only what is verified to be one: replicas that have failed or roll come back by themselves.
    """
    found = dict(counts)
    for role, now in deployed.roles.items():
        if now.waiting.stuck:
            reasons.append(Reason.PENDING_STUCK)
            if now.verified:
                kept = max(now.ready, now.waiting.base, least[role])
                found[role] = min(found[role], kept)
        elif now.waiting.ceiling is not None and found[role] > now.waiting.ceiling:
            reasons.append(Reason.STUCK_CEILING)
            found[role] = max(now.waiting.ceiling, min(now.have, found[role]))
    return found


def settle_plainly(
    allowance: Allowance, targets: Mapping[Role, int], deployed: Deployed
) -> Settled:
    """Without a stabiliser, as the reference does: minima and the band, against what is ready."""
    ready = deployed.ready
    counts = {role: targets.get(role, ready[role]) for role in ready}
    reasons: list[Reason] = []
    if not deployed.moving:
        if allowance.below_minimum(ready):
            counts = allowance.with_minimums(counts)
            reasons.append(Reason.BELOW_MINIMUM)
        if not allowance.inside(ready) or reasons:
            allowed = allowance.step(ready, counts)
            reasons += [allowed.reason] if allowed.reason is not None else []
            counts = allowed.counts
    if not allowance.inside(counts) and allowance.total(counts) > allowance.total(ready):
        counts = allowance.clamped(counts)
        reasons.append(Reason.GPU_BUDGET_HOLD)
    return Settled(counts, tuple(reasons), {})
