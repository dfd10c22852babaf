"""A switchback: all of a scope follows one policy for a slot of time, then another.

Slots come in pairs of neighbours, one of each policy in random order, so that what drifts slowly
(traffic, caches) meets both alike.  Single requests of one fleet are never split: those of one
policy would meet the queues and caches that the other has made.  For the same reason what is booked
at the beginning of a slot is not measured.

Source of the design: Bojinov, Simchi-Levi, Zhao, Design and Analysis of Switchback Experiments,
Management Science 69 (7), 2023.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal, NamedTuple, TypeAlias

from select_service.core.comparing.t_interval import Interval, t_interval
from select_service.core.decide.policies import PolicyChoice
from select_service.core.fleet.scoped_policies import PolicyScope
from select_service.core.histogram import Histogram

DROPPED_S = 30.0
"""Of each slot, its beginning: what is booked then is not measured."""
SLOTS_MAX = 1024
"""After so many an experiment ends by itself: 1.4 days of 120 s, 3.5 of 300 s.  Showing all of them
takes some 3 ms."""
TTFT_BUCKETS_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2)

Ending: TypeAlias = Literal["deleted", "slots_max"]


@dataclass(slots=True)
class Slot:
    """arm: which of the two policies;  total_s: sum of the times of `requests`"""

    arm: int
    began_at: float
    is_over: bool = False
    requests: int = 0
    total_s: float = 0.0

    @property
    def mean_s(self) -> float:
        return self.total_s / self.requests


class Pair(NamedTuple):
    """Neighbouring slots that are over; the first policy's, the second's, and who began."""

    of_first: Slot
    of_second: Slot
    began: int

    @property
    def is_measured(self) -> bool:
        return bool(self.of_first.requests and self.of_second.requests)


class Result(NamedTuple):
    """What the measured pairs say.

    means_s: of both policies, means over their slots;  None: of nothing
    difference: of the second policy less the first, in seconds
    """

    pairs: int
    left_out: int
    means_s: tuple[float, float] | None
    difference: Interval | None


@dataclass(slots=True)
class Experiment:
    """slot_s: how long a slot is;  the first one begins with the experiment

    unreported: measured bookings that ended without `prefill_complete`
    unfollowed: bookings that would have been measured, but too many were under way
    """

    id: str
    scope: PolicyScope
    policies: tuple[PolicyChoice, PolicyChoice]
    slot_s: float
    begun_at: float
    slots: list[Slot] = field(default_factory=list)
    ended_at: float | None = None
    ending: Ending | None = None
    unreported: int = 0
    unfollowed: int = 0
    ttft: tuple[Histogram, Histogram] = field(
        default_factory=lambda: (Histogram(TTFT_BUCKETS_S), Histogram(TTFT_BUCKETS_S))
    )

    @property
    def is_running(self) -> bool:
        return self.ended_at is None

    @property
    def current(self) -> PolicyChoice:
        """The policy that counts in its scope while it runs."""
        return self.policies[self.slots[-1].arm]

    def is_due(self, now: float) -> bool:
        """Is it time for the next slot?"""
        return self.is_running and now - self.slots[-1].began_at >= self.slot_s

    def go_on(self, now: float, draw: float) -> bool:
        """End the slot and begin the next one; False: it was the last.

        draw: uniform in [0, 1), says who begins where a pair begins
        """
        if self.slots:
            self.slots[-1].is_over = True
        if len(self.slots) >= SLOTS_MAX:
            return False
        arm = 1 - self.slots[-1].arm if len(self.slots) % 2 else int(draw >= 0.5)
        self.slots.append(Slot(arm, now))
        return True

    def measured_slot(self, now: float) -> Slot | None:
        """Of a booking that is made now; None: it is not measured."""
        slot = self.slots[-1]
        return slot if now - slot.began_at >= DROPPED_S else None

    def measured(self, slot: Slot, seconds: float) -> None:
        """Enter the time from a booking in a slot to the end of its prefill."""
        slot.requests += 1
        slot.total_s += seconds
        self.ttft[slot.arm].add(seconds)

    def pairs(self) -> list[Pair]:
        """All that are over.  O(slots)"""
        found = []
        for one, other in zip(self.slots[::2], self.slots[1::2], strict=False):
            if other.is_over:
                slots = (other, one) if one.arm else (one, other)
                found.append(Pair(*slots, one.arm))
        return found

    def result(self) -> Result:
        """O(slots)"""
        return result_of(self.pairs())


def result_of(pairs: Sequence[Pair]) -> Result:
    """What pairs say that are over."""
    means = [(p.of_first.mean_s, p.of_second.mean_s) for p in pairs if p.is_measured]
    if not means:
        return Result(0, len(pairs), None, None)
    firsts, seconds = zip(*means, strict=True)
    difference = t_interval([second - first for first, second in means])
    both = fmean(firsts), fmean(seconds)
    return Result(len(means), len(pairs) - len(means), both, difference)
