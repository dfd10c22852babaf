"""Results of an overload simulation by minute, and figures computed from the results."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tests.simulation.overload_traffic import TIERS

WARM_MINUTES = 2
"""Minutes at the start until the fleet is full, which are not measured."""
WAVE_S = 10
"""Length in s of the windows in which attempts are counted, to find waves of retries."""


def _per_tier() -> dict[str, int]:
    return dict.fromkeys(TIERS, 0)


@dataclass(slots=True)
class Minute:
    """Results of a minute of virtual time.

    attempts, accepted, refused: numbers by tier; a request makes several attempts
    answered, lost: numbers of requests with a whole answer in time, and with a failed last
    attempt
    waits_s: times in s of the attempts accepted in this minute, from acceptance to the first
    token or until the client gave up
    """

    attempts: dict[str, int] = field(default_factory=_per_tier)
    accepted: dict[str, int] = field(default_factory=_per_tier)
    refused: dict[str, int] = field(default_factory=_per_tier)
    lost: dict[str, int] = field(default_factory=_per_tier)
    answered: dict[str, int] = field(default_factory=_per_tier)
    answered_tokens: int = 0
    timed_out: int = 0
    waits_s: list[float] = field(default_factory=list)
    queued_s: list[float] = field(default_factory=list)

    @property
    def answers(self) -> int:
        return sum(self.answered.values())

    @property
    def wait_p99_s(self) -> float:
        return percentile(self.waits_s, 99)


class Sample(NamedTuple):
    """State of the fleet at one second.

    prefill_tokens, active_blocks: booked amounts per rank
    running, waiting: numbers of requests in the engines
    """

    at: float
    prefill_tokens: tuple[int, ...]
    active_blocks: tuple[int, ...]
    running: int
    waiting: int
    queue_length: int
    busy_ranks: int
    shed_tier: str | None
    attempts: int


@dataclass
class Record:
    """All measurements of a run."""

    minutes: list[Minute] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    arrivals: int = 0
    attempts: int = 0
    preemptions: int = 0

    def minute(self, now: float) -> Minute:
        while len(self.minutes) <= now // 60:
            self.minutes.append(Minute())
        return self.minutes[int(now // 60)]


class Figures(NamedTuple):
    """Figures of some minutes of a run.

    acceptance: share of accepted attempts, by tier
    served: share of answered requests, by tier
    load_cv: standard deviation of the blocks booked on a rank, divided by the mean; the largest of
    all ranks
    goodput_cv: standard deviation of the answers per minute, divided by the mean
    wave: most attempts in WAVE_S, divided by the mean
    shed_share: share of the time in which a tier was shed
    """

    answers_per_s: float
    tokens_per_s: float
    attempts_per_s: float
    wait_p50_s: float
    wait_p99_s: float
    wait_max_s: float
    queued_p99_s: float
    timed_out_per_s: float
    acceptance: dict[str, float]
    served: dict[str, float]
    load_cv: float
    goodput_cv: float
    wave: float
    shed_share: float
    shed_changes: int


def figures(record: Record, first: int, end: int) -> Figures:
    """Return the figures of the minutes from `first` until before `end`."""
    minutes, seconds = record.minutes[first:end], 60 * (end - first)
    samples = [sample for sample in record.samples if 60 * first <= sample.at < 60 * end]
    waits = [wait for minute in minutes for wait in minute.waits_s]
    shed = [sample.shed_tier is not None for sample in samples]
    return Figures(
        answers_per_s=sum(minute.answers for minute in minutes) / seconds,
        tokens_per_s=sum(minute.answered_tokens for minute in minutes) / seconds,
        attempts_per_s=sum(sum(minute.attempts.values()) for minute in minutes) / seconds,
        wait_p50_s=percentile(waits, 50),
        wait_p99_s=percentile(waits, 99),
        wait_max_s=percentile(waits, 100),
        queued_p99_s=percentile([wait for minute in minutes for wait in minute.queued_s], 99),
        timed_out_per_s=sum(minute.timed_out for minute in minutes) / seconds,
        acceptance={tier: _acceptance(minutes, tier) for tier in TIERS},
        served={tier: _served(minutes, tier) for tier in TIERS},
        load_cv=max(_cv(rank) for rank in zip(*(s.active_blocks for s in samples), strict=True)),
        goodput_cv=_cv([minute.answers for minute in minutes]),
        wave=_wave([sample.attempts for sample in samples]),
        shed_share=sum(shed) / len(shed),
        shed_changes=sum(before != after for before, after in pairwise(shed)),
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile; 0 if there are no values."""
    return float(np.percentile(values, percent)) if values else 0.0


def _acceptance(minutes: Iterable[Minute], tier: str) -> float:
    attempts = sum(minute.attempts[tier] for minute in minutes)
    return sum(minute.accepted[tier] for minute in minutes) / max(1, attempts)


def _served(minutes: Iterable[Minute], tier: str) -> float:
    answered = sum(minute.answered[tier] for minute in minutes)
    return answered / max(1, answered + sum(minute.lost[tier] for minute in minutes))


def _cv(values: Sequence[float]) -> float:
    return float(np.std(values) / np.mean(values))


def _wave(attempts: Sequence[int]) -> float:
    """Return the largest increase in WAVE_S divided by the mean.

    attempts: running sum at every second
    """
    counts = np.diff(attempts[::WAVE_S])
    return float(counts.max() / counts.mean())
