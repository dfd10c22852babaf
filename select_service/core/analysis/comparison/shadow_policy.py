"""Shadow policy: choices of another policy, computed from the recorded numbers of real decisions.

Each step reads new decisions of the ring, so placements pay nothing for the comparison.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from select_service.core.array_types import Floats
from select_service.core.placement import decision_ring_layout as layout
from select_service.core.placement.decision_decoder import decode_row, terms_under_policy
from select_service.core.placement.decision_ring import DecisionRing, Words
from select_service.core.placement.placement_kernels import CACHED_TOKENS, COST
from select_service.core.placement.policies.policy_registry import POLICIES, PolicyChoice
from select_service.core.placement.router_config import RouterConfig

STEP_S = 0.05
"""Time between two steps, s."""
ROWS_MAX = 10
"""Maximum decisions per step: 200 per second, a tenth of a millisecond each."""
BACKLOG_MAX = 1024
"""Maximum number of waiting decisions; older decisions are skipped."""


class ShadowComparison(NamedTuple):
    """Decision compared with the shadow; `made` is the real choice, `shadow` the shadow's.

    is_partial: some candidates were not recorded, so the shadow might have chosen another
    regret: shadow's cost of the real choice above the lowest cost; 0 means the same choice
    lowest: lowest cost
    wait, prefill: work before the prompt, and work of the prompt, above the minimum over all
        candidates, in tokens; for equal costs that of the real choice if among them, else the mean
    """

    is_partial: bool
    regret: float
    lowest: float
    wait_made: float
    wait_shadow: float
    prefill_made: float
    prefill_shadow: float


@dataclass(slots=True)
class ShadowSums:
    """Sums over the decisions of a policy.

    no_choice: decisions with a single candidate or a given rank, excluded from all other numbers
    regret, lowest_cost: in the unit of the shadow's cost, over finite costs
    """

    decisions: int = 0
    others: int = 0
    no_choice: int = 0
    partial: int = 0
    regret: float = 0.0
    lowest_cost: float = 0.0
    wait_made: float = 0.0
    wait_shadow: float = 0.0
    prefill_made: float = 0.0
    prefill_shadow: float = 0.0

    def add_comparison(self, comparison: ShadowComparison) -> None:
        self.decisions += 1
        self.others += comparison.regret > 0.0
        self.partial += comparison.is_partial
        # Costs are infinite for ranks that the shadow would exclude.
        if np.isfinite(comparison.regret) and np.isfinite(comparison.lowest):
            self.regret += comparison.regret
            self.lowest_cost += comparison.lowest
        self.wait_made += comparison.wait_made
        self.wait_shadow += comparison.wait_shadow
        self.prefill_made += comparison.prefill_made
        self.prefill_shadow += comparison.prefill_shadow


class ShadowReport(NamedTuple):
    """Report of the comparison.

    skipped: number of skipped decisions
    backlog: number of waiting decisions
    tallies: sums by policy
    """

    choice: PolicyChoice
    skipped: int
    backlog: int
    tallies: Mapping[str, ShadowSums]


class ShadowPolicy:
    """Comparison with a shadow policy; used by the event loop thread only."""

    def __init__(self, ring: DecisionRing, choice: PolicyChoice, router: RouterConfig) -> None:
        """Create the comparison; router holds the other settings, without overrides of requests."""
        self._ring = ring
        self._choice = choice
        self._policy = POLICIES[choice.policy]
        self._parameters = self._policy.make_parameters(choice.apply_to(router))
        self._last_number = ring.newest_number
        self._skipped = 0
        self._tallies: dict[str, ShadowSums] = {}

    def run_turn(self, now: float) -> bool:
        """Process some decisions. Return False: no work is left for the next turn."""
        newest = self._ring.newest_number
        # The ring overwrites old rows; a bounded backlog keeps clear of them.
        from_number = max(self._last_number, newest - BACKLOG_MAX)
        self._skipped += from_number - self._last_number
        self._last_number = min(newest, from_number + ROWS_MAX)
        for number in range(from_number + 1, self._last_number + 1):
            self._compare_decision(self._ring.find_by_number(number))
        return False

    def make_report(self) -> ShadowReport:
        tallies = {name: replace(tally) for name, tally in self._tallies.items()}
        return ShadowReport(
            self._choice, self._skipped, self._ring.newest_number - self._last_number, tallies
        )

    def _compare_decision(self, row: Words | None) -> None:
        decided = None if row is None else self._ring.find_partition(int(row[layout.PARTITION]))
        if row is None or decided is None:
            self._skipped += 1
            return
        found = decode_row(row)
        tally = self._tallies.setdefault(found.policy.name, ShadowSums())
        if row[layout.N_ELIGIBLE] == 1 or row[layout.FLAGS] & layout.IS_PINNED:
            tally.no_choice += 1
            return
        terms = terms_under_policy(self._policy, self._parameters, row, found, decided.block_size)
        costs = terms[COST]
        cached_tokens = np.maximum(terms[CACHED_TOKENS], found.leading * decided.block_size)
        own = np.maximum(1.0, float(row[layout.ISL_TOKENS]) - cached_tokens)
        wait = (found.work_left - found.work_left.min()).astype(np.float64)
        is_partial = bool(row[layout.N_ELIGIBLE] > len(costs))
        tally.add_comparison(_compare_costs(costs, wait, own - own.min(), is_partial))


def _compare_costs(
    costs: Floats, wait: Floats, prefill: Floats, is_partial: bool
) -> ShadowComparison:
    """Compare the costs, float64[n]; the first candidate is the real choice."""
    lowest = float(costs.min())
    cheapest = costs == lowest
    made = float(costs[0])
    return ShadowComparison(
        is_partial=is_partial,
        regret=0.0 if cheapest[0] else made - lowest,
        lowest=lowest,
        wait_made=float(wait[0]),
        wait_shadow=float(wait[0] if cheapest[0] else wait[cheapest].mean()),
        prefill_made=float(prefill[0]),
        prefill_shadow=float(prefill[0] if cheapest[0] else prefill[cheapest].mean()),
    )
