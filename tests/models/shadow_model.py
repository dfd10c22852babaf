"""Naive twin of the shadow: every decision made twice, by the policy and by the shadow."""

from dataclasses import dataclass, field

from select_service.core.analysis.comparison import shadow_policy


@dataclass
class Expected:
    """Expected results of a policy.

    waits, prefills: pairs by decision: value of the chosen rank, value of the shadow's choice
    """

    no_choice: int = 0
    partial: int = 0
    regrets: list = field(default_factory=list)
    lowest: list = field(default_factory=list)
    waits: list = field(default_factory=list)
    prefills: list = field(default_factory=list)


class ShadowModel:
    """Shadow of all policies.

    waiting: pairs of the real decision, which names its policy, and the decision of the shadow
    """

    def __init__(self):
        self.waiting, self.skipped, self.by_policy = [], 0, {}

    def step(self):
        too_many = max(0, len(self.waiting) - shadow_policy.BACKLOG_MAX)
        self.skipped += too_many
        del self.waiting[:too_many]
        for made, other in self.waiting[: shadow_policy.ROWS_MAX]:
            compare(self.by_policy.setdefault(made.policy, Expected()), made, other)
        del self.waiting[: shadow_policy.ROWS_MAX]


def compare(expected, made, other):
    """Compare two decisions with the same candidates."""
    if len(other.candidates) == 1 or made.choice == "pinned":
        expected.no_choice += 1
        return
    chosen = next(c.worker_id for c in made.candidates if c.chosen)
    costs = {c.worker_id: c.terms["cost"] for c in other.candidates}
    lowest = min(costs.values())
    cheapest = [name for name, cost in costs.items() if cost == lowest]
    if chosen in cheapest:
        cheapest = [chosen]
    expected.regrets.append(costs[chosen] - lowest)
    expected.lowest.append(lowest)
    # The shadow reads the numbers of the real decision: `work` updates the progress of prefills
    # when it places, `reference` does not, so the waits of `other` may be older.
    for sums, extra in ((expected.waits, waits_of(made)), (expected.prefills, own_of(other))):
        sums.append((extra[chosen], sum(extra[name] for name in cheapest) / len(cheapest)))


def waits_of(view):
    return {c.worker_id: c.extra_wait_tokens for c in view.candidates}


def own_of(view):
    """Return the own work of each candidate above the least of all candidates."""
    own = {}
    for c in view.candidates:
        there = max(c.terms["cached_tokens"], c.leading_run * view.block_size)
        own[c.worker_id] = max(1, view.isl_tokens - there)
    return {name: tokens - min(own.values()) for name, tokens in own.items()}
