"""Experiments of this process: switching of policies by time, and measurement of bookings.

Running experiments follow the ledger; without any there is no cost.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from select_service.base.errors import CapacityExceeded, Conflict, NotFound
from select_service.base.suggestions import printable_name
from select_service.core.analysis.comparison.switchback_experiment import (
    ExperimentEnding,
    ExperimentSlot,
    SwitchbackExperiment,
)
from select_service.core.duration_histogram import DurationHistogram
from select_service.core.identity import PartitionKey
from select_service.core.load.ledger import Cause, Ledger
from select_service.core.load.new_reservation import NewReservation
from select_service.core.load.reservation_view import ReservationView
from select_service.core.placement.policies.policy_registry import PolicyChoice
from select_service.core.registry.fleet.scoped_policies import PolicyScope, ScopedPolicies

EXPERIMENTS_MAX = 16
"""Maximum number of experiments kept; a new experiment replaces the oldest ended."""
MEASURED_BOOKINGS_MAX = 65_536
"""Maximum number of bookings measured at the same time."""
PARTITIONS_PER_STEP = 64


class _MeasuredBooking(NamedTuple):
    experiment: SwitchbackExperiment
    slot: ExperimentSlot
    booked_at: float


class ArmReport(NamedTuple):
    """Metrics of a policy.

    is_measured: whether a booking at this time, by this policy, is measured
    """

    policy: str
    is_measured: bool
    ttft: DurationHistogram


class ExperimentReport(NamedTuple):
    """Metrics of an experiment."""

    id: str
    scope: PolicyScope
    arms: tuple[ArmReport, ArmReport]


class Experiments:
    """All experiments; listener of the ledger (LoadListener)."""

    def __init__(
        self, policies: ScopedPolicies, ledger: Ledger, random: Callable[[], float]
    ) -> None:
        self._policies = policies
        self._ledger = ledger
        self._random = random
        self._begun = 0
        self._all: dict[str, SwitchbackExperiment] = {}
        self._by_scope: dict[PolicyScope, SwitchbackExperiment] = {}
        """Running experiments."""
        self._followed: dict[str, _MeasuredBooking] = {}
        """Measured bookings in prefill, by reservation id."""
        self._following: Iterator[None] = iter(())

    def begin_experiment(
        self,
        policies: tuple[PolicyChoice, PolicyChoice],
        slot_s: float,
        scope: PolicyScope,
        now: float,
    ) -> SwitchbackExperiment:
        """Start an experiment; its first policy is applied by `apply_to_partitions` of the
        policies.

        Raises Conflict, CapacityExceeded without changes.
        """
        self._refuse_unless_apart(scope)
        self._make_room()
        self._begun += 1
        experiment = SwitchbackExperiment(str(self._begun), scope, policies, slot_s, now)
        self._all[experiment.id] = experiment
        if not self._by_scope:
            self._ledger.add_listener(self)
        self._by_scope[scope] = experiment
        self._begin_next_slot(experiment, now)
        return experiment

    def end_experiment(self, experiment_id: str, now: float) -> SwitchbackExperiment:
        """End an experiment; earlier rules are applied by `apply_to_partitions`.

        Raises NotFound.
        """
        experiment = self.get_experiment(experiment_id)
        if experiment.is_running:
            self._end_experiment(experiment, "deleted", now)
        return experiment

    def get_experiment(self, experiment_id: str) -> SwitchbackExperiment:
        """Return an experiment. Raises NotFound."""
        if experiment_id not in self._all:
            raise NotFound(f"experiment `{printable_name(experiment_id)}` not found")
        return self._all[experiment_id]

    def __iter__(self) -> Iterator[SwitchbackExperiment]:
        """Iterate from the oldest."""
        return iter(self._all.values())

    def report_experiments(self, now: float) -> list[ExperimentReport]:
        """Return copies of the metrics. O(experiments)"""
        return [
            ExperimentReport(
                each.id, each.scope, (_arm_report(each, 0, now), _arm_report(each, 1, now))
            )
            for each in self
        ]

    def _refuse_unless_apart(self, scope: PolicyScope) -> None:
        for other in self._by_scope.values():
            if scope.overlaps_scope(other.scope):
                raise Conflict(
                    f"experiment {other.id} runs for {other.scope}, which overlaps: end it "
                    "first, or choose another scope"
                )

    def _make_room(self) -> None:
        if len(self._all) < EXPERIMENTS_MAX:
            return
        oldest = next((each for each in self._all.values() if not each.is_running), None)
        if oldest is None:
            raise CapacityExceeded(f"experiment limit reached ({EXPERIMENTS_MAX}); end one first")
        del self._all[oldest.id]

    def run_turn(self, now: float) -> bool:
        """Begin due slots and apply policies to some partitions; return whether more is left."""
        due = [each for each in self._by_scope.values() if each.is_due(now)]
        for experiment in due:
            self._begin_next_slot(experiment, now)
        if due:
            self._following = self._policies.apply_to_partitions()
        return sum(1 for _ in islice(self._following, PARTITIONS_PER_STEP)) == PARTITIONS_PER_STEP

    def _begin_next_slot(self, experiment: SwitchbackExperiment, now: float) -> None:
        if experiment.begin_next_slot(now, self._random()):
            self._policies.begin_trial(experiment.scope, experiment.current_policy)
        else:
            self._end_experiment(experiment, "slots_max", now)

    def _end_experiment(
        self, experiment: SwitchbackExperiment, ending: ExperimentEnding, now: float
    ) -> None:
        experiment.ended_at, experiment.ending = now, ending
        del self._by_scope[experiment.scope]
        self._policies.end_trial(experiment.scope)
        if not self._by_scope:
            self._ledger.remove_listener(self)
            self._followed = {}

    def on_booked(self, booking: NewReservation, cause: Cause, now: float) -> None:
        """Begin to measure a booking."""
        experiment = self._experiment_of(booking.account.key)
        # By the time of booking: a prefill may end in a later slot of the other policy.
        slot = None if experiment is None else experiment.slot_for_booking(booking.booked_at)
        if experiment is None or slot is None or cause != "client":
            return
        if len(self._followed) >= MEASURED_BOOKINGS_MAX:
            experiment.unfollowed += 1
            return
        followed = _MeasuredBooking(experiment, slot, booking.booked_at)
        self._followed[booking.reservation_id] = followed

    def on_prefill_completed(self, booking: ReservationView, cause: Cause, now: float) -> None:
        """Record the end of a prefill; only the first of a running experiment counts."""
        followed = self._followed.pop(booking.reservation_id, None)
        if followed is not None and followed.experiment.is_running:
            followed.experiment.add_measurement(followed.slot, now - followed.booked_at)

    def on_released(self, booking: ReservationView, cause: Cause, now: float) -> None:
        followed = self._followed.pop(booking.reservation_id, None)
        if followed is not None and followed.experiment.is_running:
            followed.experiment.unreported += 1

    def _experiment_of(self, key: PartitionKey) -> SwitchbackExperiment | None:
        """Return the experiment of a partition, or None."""
        scopes = PolicyScope.scopes_of(key)
        return next((self._by_scope[s] for s in scopes if s in self._by_scope), None)

    def check_invariants(self) -> None:
        """Assert internal consistency; used by tests."""
        assert len(self._all) <= EXPERIMENTS_MAX
        running = [each for each in self._all.values() if each.is_running]
        assert {each.scope: each for each in running} == self._by_scope
        assert self._policies.trial_policies == {
            each.scope: each.current_policy for each in running
        }
        assert (self in self._ledger.listeners) == bool(running)
        assert running or not self._followed
        assert len(self._followed) <= MEASURED_BOOKINGS_MAX


def _arm_report(experiment: SwitchbackExperiment, arm: int, now: float) -> ArmReport:
    slot = experiment.slot_for_booking(now) if experiment.is_running else None
    is_measured = slot is not None and slot.arm == arm
    return ArmReport(str(experiment.policies[arm]), is_measured, experiment.ttft[arm].copy())
