"""Switchback experiment: all requests of a scope use one policy for a time slot, then the other.

Slots form pairs of neighbours, one of each policy in random order, so that slow drift (traffic,
caches) affects both equally. Single requests of one fleet are never split, since requests of one
policy would meet the queues and caches created by the other. For the same reason bookings at the
beginning of a slot are not measured.

Source of the design: Bojinov, Simchi-Levi, Zhao, Design and Analysis of Switchback Experiments,
Management Science 69 (7), 2023.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal, NamedTuple, TypeAlias

from select_service.core.analysis.comparison.t_interval import (
    ConfidenceInterval,
    compute_t_interval,
)
from select_service.core.duration_histogram import DurationHistogram
from select_service.core.placement.policies.policy_registry import PolicyChoice
from select_service.core.registry.fleet.scoped_policies import PolicyScope

UNMEASURED_S = 30.0
"""Unmeasured time at the beginning of each slot, s."""
SLOTS_MAX = 1024
"""Number of slots after which an experiment ends: 1.4 days of 120 s slots, 3.5 days of 300 s slots.

Listing all of them takes about 3 ms.
"""
TTFT_BUCKETS_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2)

ExperimentEnding: TypeAlias = Literal["deleted", "slots_max"]


@dataclass(slots=True)
class ExperimentSlot:
    """Time slot.

    arm: index of the policy
    total_s: sum of the times of `requests`, s
    """

    arm: int
    began_at: float
    is_over: bool = False
    requests: int = 0
    total_s: float = 0.0

    @property
    def mean_s(self) -> float:
        return self.total_s / self.requests


class SlotPair(NamedTuple):
    """Neighbouring completed slots: the first policy's, the second's, and the arm of the earlier
    one.
    """

    of_first: ExperimentSlot
    of_second: ExperimentSlot
    began: int

    @property
    def is_measured(self) -> bool:
        return bool(self.of_first.requests and self.of_second.requests)


class ExperimentResult(NamedTuple):
    """Result of the measured pairs.

    means_s: means of both policies over their slots, s; None without data
    difference: second policy minus first, s
    """

    pairs: int
    left_out: int
    means_s: tuple[float, float] | None
    difference: ConfidenceInterval | None


@dataclass(slots=True)
class SwitchbackExperiment:
    """Experiment.

    slot_s: length of a slot; the first one begins with the experiment
    unreported: measured bookings that ended without `prefill_complete`
    unfollowed: bookings not measured because of the limit
    """

    id: str
    scope: PolicyScope
    policies: tuple[PolicyChoice, PolicyChoice]
    slot_s: float
    begun_at: float
    slots: list[ExperimentSlot] = field(default_factory=list)
    ended_at: float | None = None
    ending: ExperimentEnding | None = None
    unreported: int = 0
    unfollowed: int = 0
    ttft: tuple[DurationHistogram, DurationHistogram] = field(
        default_factory=lambda: (
            DurationHistogram(TTFT_BUCKETS_S),
            DurationHistogram(TTFT_BUCKETS_S),
        )
    )

    @property
    def is_running(self) -> bool:
        return self.ended_at is None

    @property
    def current_policy(self) -> PolicyChoice:
        """Policy in force while the experiment runs."""
        return self.policies[self.slots[-1].arm]

    def is_due(self, now: float) -> bool:
        """Return whether the current slot has ended."""
        return self.is_running and now - self.slots[-1].began_at >= self.slot_s

    def begin_next_slot(self, now: float, draw: float) -> bool:
        """Begin the next slot; return False after the last.

        draw: uniform in [0, 1), selects the first policy of a pair
        """
        if self.slots:
            self.slots[-1].is_over = True
        if len(self.slots) >= SLOTS_MAX:
            return False
        # The first slot of a pair is random, the second is the other policy.
        arm = 1 - self.slots[-1].arm if len(self.slots) % 2 else int(draw >= 0.5)
        self.slots.append(ExperimentSlot(arm, now))
        return True

    def slot_for_booking(self, now: float) -> ExperimentSlot | None:
        """Return the slot of a booking at this time; None if not measured."""
        slot = self.slots[-1]
        return slot if now - slot.began_at >= UNMEASURED_S else None

    def add_measurement(self, slot: ExperimentSlot, seconds: float) -> None:
        """Add the time from a booking to the end of its prefill, s."""
        slot.requests += 1
        slot.total_s += seconds
        self.ttft[slot.arm].add(seconds)

    def completed_pairs(self) -> list[SlotPair]:
        """Return all completed pairs. O(slots)"""
        found = []
        for one, other in zip(self.slots[::2], self.slots[1::2], strict=False):
            if other.is_over:
                slots = (other, one) if one.arm else (one, other)
                found.append(SlotPair(*slots, one.arm))
        return found

    def compute_result(self) -> ExperimentResult:
        """Return the current result. O(slots)"""
        return result_of_pairs(self.completed_pairs())


def result_of_pairs(pairs: Sequence[SlotPair]) -> ExperimentResult:
    """Return the result of completed pairs."""
    means = [(p.of_first.mean_s, p.of_second.mean_s) for p in pairs if p.is_measured]
    if not means:
        return ExperimentResult(0, len(pairs), None, None)
    firsts, seconds = zip(*means, strict=True)
    difference = compute_t_interval([second - first for first, second in means])
    both = fmean(firsts), fmean(seconds)
    return ExperimentResult(len(means), len(pairs) - len(means), both, difference)
