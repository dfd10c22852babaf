"""What another policy would have chosen, on the numbers of the decisions that were made.

A step walks decisions of the ring that are new, so nobody who decides does anything for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from select_service.core.arrays import Floats
from select_service.core.decide import decision_layout as layout
from select_service.core.decide.decision_ring import DecisionRing, Words
from select_service.core.decide.placement_kernels import CACHED_TOKENS, COST
from select_service.core.decide.policies import POLICIES, PolicyChoice
from select_service.core.decide.recorded import recorded, terms_under
from select_service.core.decide.router_config import RouterConfig

STEP_S = 0.05
"""Between two steps."""
ROWS_MAX = 10
"""Decisions that one step looks at: 200 a second, a tenth of a millisecond each."""
BACKLOG_MAX = 1024
"""Decisions that may wait for a step; of more the oldest are passed over."""


class Compared(NamedTuple):
    """A decision as the shadow sees it; `made` is what was chosen, `shadow` what it would have.

    is_partial: not all candidates were kept, so the shadow might have chosen one of the others
    regret:     its cost of what was chosen above the lowest, 0: it would have chosen the same
    lowest:     that lowest cost
    wait, prefill: work before the prompt, and of the prompt itself, above the least of all
                candidates, in tokens;  of what it finds equally cheap the chosen
                one if it is among them, else the mean
    """

    is_partial: bool
    regret: float
    lowest: float
    wait_made: float
    wait_shadow: float
    prefill_made: float
    prefill_shadow: float


@dataclass(slots=True)
class ShadowTally:
    """Sums over the decisions of one policy.

    no_choice:  a single candidate, or the request named its rank; in no other number
    regret, lowest_cost: in the unit of the shadow's cost, of finite costs
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

    def add(self, found: Compared) -> None:
        self.decisions += 1
        self.others += found.regret > 0.0
        self.partial += found.is_partial
        if np.isfinite(found.regret) and np.isfinite(found.lowest):
            self.regret += found.regret
            self.lowest_cost += found.lowest
        self.wait_made += found.wait_made
        self.wait_shadow += found.wait_shadow
        self.prefill_made += found.prefill_made
        self.prefill_shadow += found.prefill_shadow


class ShadowReport(NamedTuple):
    """skipped: decisions that were passed over;  backlog: that wait;  tallies: by policy"""

    choice: PolicyChoice
    skipped: int
    backlog: int
    tallies: Mapping[str, ShadowTally]


class Shadow:
    """Belongs to the thread that decides."""

    def __init__(self, ring: DecisionRing, choice: PolicyChoice, router: RouterConfig) -> None:
        """router: what counts besides the policy, whatever single requests override"""
        self._ring = ring
        self._choice = choice
        self._policy = POLICIES[choice.policy]
        self._parameters = self._policy.parameters(choice.within(router))
        self._seen = ring.newest
        self._skipped = 0
        self._tallies: dict[str, ShadowTally] = {}

    def step(self, now: float) -> bool:
        """Look at some decisions; never leaves anything for the next turn."""
        newest = self._ring.newest
        from_number = max(self._seen, newest - BACKLOG_MAX)
        self._skipped += from_number - self._seen
        self._seen = min(newest, from_number + ROWS_MAX)
        for number in range(from_number + 1, self._seen + 1):
            self._look_at(self._ring.numbered(number))
        return False

    def report(self) -> ShadowReport:
        tallies = {name: replace(tally) for name, tally in self._tallies.items()}
        return ShadowReport(self._choice, self._skipped, self._ring.newest - self._seen, tallies)

    def _look_at(self, row: Words | None) -> None:
        decided = None if row is None else self._ring.partition(int(row[layout.PARTITION]))
        if row is None or decided is None:
            self._skipped += 1
            return
        found = recorded(row)
        tally = self._tallies.setdefault(found.policy.name, ShadowTally())
        if row[layout.N_ELIGIBLE] == 1 or row[layout.FLAGS] & layout.PINNED:
            tally.no_choice += 1
            return
        terms = terms_under(self._policy, self._parameters, row, found, decided.block_size)
        costs = terms[COST]
        known = np.maximum(terms[CACHED_TOKENS], found.leading * decided.block_size)
        own = np.maximum(1.0, float(row[layout.ISL_TOKENS]) - known)
        wait = (found.left - found.left.min()).astype(np.float64)
        is_partial = bool(row[layout.N_ELIGIBLE] > len(costs))
        tally.add(_compared(costs, wait, own - own.min(), is_partial))


def _compared(costs: Floats, wait: Floats, prefill: Floats, is_partial: bool) -> Compared:
    """All float64[n], costs of the shadow; the first candidate is the one that was chosen."""
    lowest = float(costs.min())
    cheapest = costs == lowest
    made = float(costs[0])
    return Compared(
        is_partial=is_partial,
        regret=0.0 if cheapest[0] else made - lowest,
        lowest=lowest,
        wait_made=float(wait[0]),
        wait_shadow=float(wait[0] if cheapest[0] else wait[cheapest].mean()),
        prefill_made=float(prefill[0]),
        prefill_shadow=float(prefill[0] if cheapest[0] else prefill[cheapest].mean()),
    )
