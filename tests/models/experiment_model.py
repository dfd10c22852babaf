"""Naive twin of experiments: every booking is kept with all reports; sums are made anew."""

from dataclasses import dataclass, field
from statistics import fmean

from select_service.core.analysis.comparison.switchback_experiment import UNMEASURED_S

NEVER = -1.0


@dataclass
class Booked:
    """Booking of a request that an experiment may measure.

    slot: slot of the experiment at the time of the booking
    completed_at, ended_at: time of the first report; NEVER means that the report came too late
    """

    experiment: "ExperimentModel | None"
    slot: int | None
    at: float
    completed_at: float | None = None
    ended_at: float | None = None

    @property
    def is_measured(self):
        experiment = self.experiment
        return experiment is not None and self.at >= experiment.slots[self.slot][0] + UNMEASURED_S

    def record_report(self, field, now):
        """Store the first report; a report after the end of the experiment counts as NEVER."""
        if self.completed_at is None and self.ended_at is None:
            is_late = self.experiment is None or self.experiment.ended_at is not None
            setattr(self, field, NEVER if is_late else now)


@dataclass
class ExperimentModel:
    """Switchback experiment.

    slots: pairs of begin and arm
    """

    scope: tuple
    policies: tuple
    slot_s: float
    slots: list = field(default_factory=list)
    ended_at: float | None = None
    bookings: list = field(default_factory=list)

    @property
    def current(self):
        return self.policies[self.slots[-1][1]]

    def is_due(self, now):
        return self.ended_at is None and now - self.slots[-1][0] >= self.slot_s

    def contains_scope(self, key):
        return all(mine in (None, its) for mine, its in zip(self.scope, key, strict=True))

    def times(self, slot):
        """Return the completion times of the measured bookings of a slot."""
        return [
            b.completed_at - b.at
            for b in self.bookings
            if b.slot == slot and b.is_measured and b.completed_at not in (None, NEVER)
        ]

    def unreported(self):
        return sum(b.is_measured and b.ended_at not in (None, NEVER) for b in self.bookings)

    def pairs(self):
        """Return the means by arm of each finished pair of slots; None means an incomplete pair."""
        found = []
        for first in range(0, len(self.slots) - 2, 2):
            by_arm = {self.slots[at][1]: self.times(at) for at in (first, first + 1)}
            means = [fmean(by_arm[arm]) if by_arm[arm] else None for arm in (0, 1)]
            found.append(None if None in means else means)
        return found
