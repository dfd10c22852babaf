"""The experiments of one process: they switch policies by time, and measure what was booked.

While one runs they follow the ledger; without one they cost nothing.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from select_service.core.comparing.experiment import Ending, Experiment, Slot
from select_service.core.decide.policies import PolicyChoice
from select_service.core.fleet.scoped_policies import PolicyScope, ScopedPolicies
from select_service.core.histogram import Histogram
from select_service.core.identity import PartitionKey
from select_service.core.load.booking import NewBooking
from select_service.core.load.held_booking import Booking
from select_service.core.load.ledger import Cause, Ledger
from select_service.errors import CapacityExceeded, Conflict, NotFound
from select_service.spelling import shown

EXPERIMENTS_MAX = 16
"""That run or can still be read; for a new one the oldest that has ended is forgotten."""
FOLLOWED_MAX = 65_536
"""Bookings that are measured at one time."""
PARTITIONS_PER_STEP = 64


class _Followed(NamedTuple):
    experiment: Experiment
    slot: Slot
    booked_at: float


class ArmReport(NamedTuple):
    """is_measured: is what is booked now, by this policy, measured?"""

    policy: str
    is_measured: bool
    ttft: Histogram


class ExperimentReport(NamedTuple):
    """What metrics show of one."""

    id: str
    scope: PolicyScope
    arms: tuple[ArmReport, ArmReport]


class Experiments:
    """A follower of the ledger (LoadFollower)."""

    def __init__(
        self, policies: ScopedPolicies, ledger: Ledger, random: Callable[[], float]
    ) -> None:
        self._policies = policies
        self._ledger = ledger
        self._random = random
        self._begun = 0
        self._all: dict[str, Experiment] = {}
        self._by_scope: dict[PolicyScope, Experiment] = {}
        """Those that run."""
        self._followed: dict[str, _Followed] = {}
        """By reservation id, while the prefill goes on."""
        self._following: Iterator[None] = iter(())

    # --- what clients ask for

    def begin(
        self,
        policies: tuple[PolicyChoice, PolicyChoice],
        slot_s: float,
        scope: PolicyScope,
        now: float,
    ) -> Experiment:
        """Its first policy counts for `following` of the policies.

        Raises Conflict, CapacityExceeded, and then has changed nothing.
        """
        self._refuse_unless_apart(scope)
        self._make_room()
        self._begun += 1
        experiment = Experiment(str(self._begun), scope, policies, slot_s, now)
        self._all[experiment.id] = experiment
        if not self._by_scope:
            self._ledger.follow(self)
        self._by_scope[scope] = experiment
        self._go_on(experiment, now)
        return experiment

    def end(self, experiment_id: str, now: float) -> Experiment:
        """The rule that was there before counts again, for `following` of the policies.

        Raises NotFound.
        """
        experiment = self.get(experiment_id)
        if experiment.is_running:
            self._end(experiment, "deleted", now)
        return experiment

    def get(self, experiment_id: str) -> Experiment:
        """Raises NotFound."""
        if experiment_id not in self._all:
            raise NotFound(f"experiment `{shown(experiment_id)}` not found")
        return self._all[experiment_id]

    def __iter__(self) -> Iterator[Experiment]:
        """The oldest first."""
        return iter(self._all.values())

    def report(self, now: float) -> list[ExperimentReport]:
        """Copies.  O(experiments)"""
        return [
            ExperimentReport(each.id, each.scope, (_arm(each, 0, now), _arm(each, 1, now)))
            for each in self
        ]

    def _refuse_unless_apart(self, scope: PolicyScope) -> None:
        for other in self._by_scope.values():
            if scope.overlaps(other.scope):
                raise Conflict(
                    f"experiment {other.id} runs for {other.scope}, which overlaps: two "
                    "experiments would switch the same requests"
                )

    def _make_room(self) -> None:
        if len(self._all) < EXPERIMENTS_MAX:
            return
        oldest = next((each for each in self._all.values() if not each.is_running), None)
        if oldest is None:
            raise CapacityExceeded(f"{EXPERIMENTS_MAX} experiments run, the most there may be")
        del self._all[oldest.id]

    # --- time

    def step(self, now: float) -> bool:
        """Begin slots that are due, and let some partitions follow; is there more to do?"""
        due = [each for each in self._by_scope.values() if each.is_due(now)]
        for experiment in due:
            self._go_on(experiment, now)
        if due:
            self._following = self._policies.following()
        return sum(1 for _ in islice(self._following, PARTITIONS_PER_STEP)) == PARTITIONS_PER_STEP

    def _go_on(self, experiment: Experiment, now: float) -> None:
        if experiment.go_on(now, self._random()):
            self._policies.try_out(experiment.scope, experiment.current)
        else:
            self._end(experiment, "slots_max", now)

    def _end(self, experiment: Experiment, ending: Ending, now: float) -> None:
        experiment.ended_at, experiment.ending = now, ending
        del self._by_scope[experiment.scope]
        self._policies.end_trial(experiment.scope)
        if not self._by_scope:
            self._ledger.unfollow(self)
            self._followed = {}

    # --- what is told by the ledger

    def booked(self, booking: NewBooking, cause: Cause, now: float) -> None:
        """Follow it to the end of its prefill, if it is to be measured."""
        experiment = self._of(booking.account.key)
        slot = None if experiment is None else experiment.measured_slot(booking.booked_at)
        if experiment is None or slot is None or cause != "client":
            return
        if len(self._followed) >= FOLLOWED_MAX:
            experiment.unfollowed += 1
            return
        followed = _Followed(experiment, slot, booking.booked_at)
        self._followed[booking.reservation_id] = followed

    def prefill_completed(self, booking: Booking, cause: Cause, now: float) -> None:
        """Only the first time counts; those of experiments that have ended do not."""
        followed = self._followed.pop(booking.reservation_id, None)
        if followed is not None and followed.experiment.is_running:
            followed.experiment.measured(followed.slot, now - followed.booked_at)

    def released(self, booking: Booking, cause: Cause, now: float) -> None:
        followed = self._followed.pop(booking.reservation_id, None)
        if followed is not None and followed.experiment.is_running:
            followed.experiment.unreported += 1

    def _of(self, key: PartitionKey) -> Experiment | None:
        """The experiment that a partition takes part in."""
        scopes = PolicyScope.of(key)
        return next((self._by_scope[s] for s in scopes if s in self._by_scope), None)

    def check_invariants(self) -> None:
        """For tests."""
        assert len(self._all) <= EXPERIMENTS_MAX
        running = [each for each in self._all.values() if each.is_running]
        assert {each.scope: each for each in running} == self._by_scope
        assert self._policies.trials == {each.scope: each.current for each in running}
        assert (self in self._ledger.followers) == bool(running)
        assert running or not self._followed
        assert len(self._followed) <= FOLLOWED_MAX


def _arm(experiment: Experiment, arm: int, now: float) -> ArmReport:
    slot = experiment.measured_slot(now) if experiment.is_running else None
    is_measured = slot is not None and slot.arm == arm
    return ArmReport(str(experiment.policies[arm]), is_measured, experiment.ttft[arm].copy())
