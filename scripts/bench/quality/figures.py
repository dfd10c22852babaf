"""What a run brought, in numbers, and how choosers compare over cells and seeds."""

from collections.abc import Callable, Iterable, Sequence
from math import exp, log, nan, sqrt
from typing import NamedTuple

import numpy as np

from select_service.replaying.world import Record

WARM_SHARE = 0.2
"""First requests of a run that do not count: caches are cold, and sessions still few."""
T_95 = (0.0, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Two-sided 95 % quantiles of Student's distribution, by degrees of freedom."""


class Outcome(NamedTuple):
    """One run.  Times in seconds, of requests; hit_rate: tokens of prompts that were cached."""

    ttft_mean: float
    ttft_p99: float
    e2e_mean: float
    tpot_mean: float
    hit_rate: float
    preemptions: int


class Key(NamedTuple):
    """Which run it was.  load: share of the capacity"""

    workload: str
    load: float
    seed: int
    chooser: str

    @property
    def cell(self) -> tuple[str, float]:
        return self.workload, self.load


Results = dict[Key, Outcome]


def outcome_of(record: Record) -> Outcome:
    """Of all requests but the first."""
    lives = record.lives[int(WARM_SHARE * len(record.lives)) :]
    ttft = np.array([life.first_s - life.asked_s for life in lives])
    decoded = [(life.end_s - life.first_s, life.turn.output_tokens - 1) for life in lives]
    return Outcome(
        ttft_mean=float(ttft.mean()),
        ttft_p99=float(np.quantile(ttft, 0.99)),
        e2e_mean=float(np.mean([life.end_s - life.asked_s for life in lives])),
        tpot_mean=float(np.mean([seconds / n for seconds, n in decoded if n > 0])),
        hit_rate=sum(x.cached for x in lives) / sum(x.turn.prompt_tokens for x in lives),
        preemptions=sum(work.preemptions for work in record.work),
    )


class Ratio(NamedTuple):
    """A geometric mean and the 95 % interval of it over seeds; the mean itself for one seed."""

    mean: float
    low: float
    high: float


Metric = Callable[[Outcome], float]


def ratio(
    results: Results, cells: Iterable[tuple[str, float]], chooser: str, base: str, metric: Metric
) -> Ratio:
    """Of a metric of `chooser` to that of `base`, by equal seeds.

    Only seeds count by which both have done as many of the cells as by any other.  Not a number
    where there is none.
    """
    by_seed: dict[int, list[float]] = {}
    wanted = set(cells)
    for key, found in results.items():
        if key.chooser == chooser and key.cell in wanted:
            other = results.get(key._replace(chooser=base))
            if other is not None:
                quotient = log(metric(found) / metric(other))
                by_seed.setdefault(key.seed, []).append(quotient)
    if not by_seed:
        return Ratio(nan, nan, nan)
    most = max(map(len, by_seed.values()))
    return interval([sum(logs) / most for logs in by_seed.values() if len(logs) == most])


def interval(logs: Sequence[float]) -> Ratio:
    """From logarithms, one for each seed."""
    n, mean = len(logs), sum(logs) / len(logs)
    if n == 1:
        return Ratio(exp(mean), exp(mean), exp(mean))
    deviation = sqrt(sum((x - mean) ** 2 for x in logs) / (n - 1))
    half = T_95[min(n - 1, len(T_95) - 1)] * deviation / sqrt(n)
    return Ratio(exp(mean), exp(mean - half), exp(mean + half))


def cells_of(results: Results) -> list[tuple[str, float]]:
    """In the order in which they were run."""
    return list(dict.fromkeys(key.cell for key in results))


def choosers_of(results: Results) -> list[str]:
    """In the order in which they were run."""
    return list(dict.fromkeys(key.chooser for key in results))
