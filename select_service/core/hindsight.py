"""What looks at decisions and bookings after they were made.

* predictions: did the work that was left take as long as believed, and are the blocks there?
* shadow: what would another policy have chosen?
* experiments: what changes when a scope is switched between two policies?

What happened reaches them by two ways that are there without them: the ring of decisions, which
their steps read, and the ledger, which experiments follow while one runs.  So nobody who decides or
books calls them or waits for them.  What they change: experiments say which policy counts in their
scope.
"""

from collections.abc import Callable
from typing import NamedTuple

from select_service.core.comparing import shadow
from select_service.core.comparing.experiments import ExperimentReport, Experiments
from select_service.core.comparing.shadow import Shadow, ShadowReport
from select_service.core.decide.decision_ring import DecisionRing
from select_service.core.decide.policies import PolicyChoice
from select_service.core.decide.router_config import RouterConfig
from select_service.core.due_task import SECOND_S, DueTask
from select_service.core.fleet.fleet import Fleet
from select_service.core.load.ledger import Ledger
from select_service.core.trust import checks
from select_service.core.trust.checks import Checks, TrustReport


class HindsightConfig(NamedTuple):
    """What is looked at, where decisions are kept.

    checks_predictions: there are events that could prove them
    shadow:             the policy that looks on, if one does
    router:             what counts for it besides the policy
    """

    checks_predictions: bool
    shadow: PolicyChoice | None
    router: RouterConfig


class HindsightReport(NamedTuple):
    """What metrics show.

    predictions: None: they are not checked;  shadow: None: no policy looks on
    """

    predictions: TrustReport | None
    shadow: ShadowReport | None
    experiments: list[ExperimentReport]


class Hindsight:
    """Belongs to the thread that decides."""

    def __init__(
        self,
        config: HindsightConfig,
        ring: DecisionRing | None,
        fleet: Fleet,
        ledger: Ledger,
        random: Callable[[], float],
    ) -> None:
        """ring: None: no decisions are kept, so only experiments can look"""
        self.experiments = Experiments(fleet.policies, ledger, random)
        self.predictions: Checks | None = None
        """None: no decisions are kept, or no events that could prove them."""
        if ring is not None and config.checks_predictions:
            self.predictions = Checks(ring, ledger.held, fleet.partitions)
        self.shadow: Shadow | None = None
        """None: no policy looks on."""
        if ring is not None and config.shadow is not None:
            self.shadow = Shadow(ring, config.shadow, config.router)

    def upkeep(self) -> list[DueTask]:
        """The steps in which everything here happens."""
        tasks = [DueTask("experiments", SECOND_S, self.experiments.step)]
        if self.predictions is not None:
            tasks.append(DueTask("predictions", checks.STEP_S, self.predictions.step))
        if self.shadow is not None:
            tasks.append(DueTask("shadow", shadow.STEP_S, self.shadow.step))
        return tasks

    def report(self, now: float, ranks_max: int) -> HindsightReport:
        """Copies.  O(ranks)

        ranks_max: of which predictions are shown
        """
        return HindsightReport(
            None if self.predictions is None else self.predictions.report(ranks_max),
            None if self.shadow is None else self.shadow.report(),
            self.experiments.report(now),
        )

    def check_invariants(self) -> None:
        """For tests."""
        self.experiments.check_invariants()
