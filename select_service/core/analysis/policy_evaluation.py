"""Evaluation of the placement policy by past decisions and bookings.

* predictions: comparison of estimated with observed work, and of believed with present blocks
* shadow: choices of another policy for the same requests
* experiments: effects of switching a scope between two policies

The steps read the ring of decisions, and experiments also follow the ledger while running.
Placement and booking therefore neither call nor wait for the evaluation.  Only experiments change
state: the policy of their scope.
"""

from collections.abc import Callable
from typing import NamedTuple

from select_service.core.analysis.accuracy import prediction_checks
from select_service.core.analysis.accuracy.prediction_checks import AccuracyReport, PredictionChecks
from select_service.core.analysis.comparison import shadow_policy as shadow
from select_service.core.analysis.comparison.experiments import ExperimentReport, Experiments
from select_service.core.analysis.comparison.shadow_policy import ShadowPolicy, ShadowReport
from select_service.core.load.ledger import Ledger
from select_service.core.periodic_task import SECOND_S, PeriodicTask
from select_service.core.placement.decision_ring import DecisionRing
from select_service.core.placement.policies.policy_registry import PolicyChoice
from select_service.core.placement.router_config import RouterConfig
from select_service.core.registry.fleet.fleet import WorkerFleet


class EvaluationConfig(NamedTuple):
    """Settings of the evaluation.

    checks_predictions: whether KV events can verify predictions
    shadow: policy compared with the real decisions, or None
    router: configuration of the shadow policy
    """

    checks_predictions: bool
    shadow: PolicyChoice | None
    router: RouterConfig


class EvaluationReport(NamedTuple):
    """Results of the evaluation, for metrics.

    predictions: None means not checked
    shadow: None means no shadow policy
    """

    predictions: AccuracyReport | None
    shadow: ShadowReport | None
    experiments: list[ExperimentReport]


class PolicyEvaluation:
    """Evaluation of the policy, owned by the deciding thread."""

    def __init__(
        self,
        config: EvaluationConfig,
        ring: DecisionRing | None,
        fleet: WorkerFleet,
        ledger: Ledger,
        random: Callable[[], float],
    ) -> None:
        """Build the parts of the evaluation.

        ring: ring of decisions; None leaves only experiments
        """
        self.experiments = Experiments(fleet.policies, ledger, random)
        self.predictions: PredictionChecks | None = None
        """Unset without recorded decisions, or without KV events for verification."""
        if ring is not None and config.checks_predictions:
            self.predictions = PredictionChecks(ring, ledger.reservations, fleet.partitions)
        self.shadow: ShadowPolicy | None = None
        """Unset without a shadow policy."""
        if ring is not None and config.shadow is not None:
            self.shadow = ShadowPolicy(ring, config.shadow, config.router)

    def periodic_tasks(self) -> list[PeriodicTask]:
        """Return the periodic tasks that do all the work."""
        # Experiments may start at any time, so their task always runs.
        tasks = [PeriodicTask("experiments", SECOND_S, self.experiments.run_turn)]
        if self.predictions is not None:
            tasks.append(
                PeriodicTask("predictions", prediction_checks.STEP_S, self.predictions.run_turn)
            )
        if self.shadow is not None:
            tasks.append(PeriodicTask("shadow", shadow.STEP_S, self.shadow.run_turn))
        return tasks

    def make_report(self, now: float, ranks_max: int) -> EvaluationReport:
        """Return a copy of the results.  O(ranks)

        ranks_max: maximum number of ranks with predictions
        """
        return EvaluationReport(
            None if self.predictions is None else self.predictions.make_report(ranks_max),
            None if self.shadow is None else self.shadow.make_report(),
            self.experiments.report_experiments(now),
        )

    def check_invariants(self) -> None:
        """Check the invariants, for tests."""
        self.experiments.check_invariants()
