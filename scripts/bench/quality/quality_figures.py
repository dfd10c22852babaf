"""Figures of runs, and comparisons of routers over cells and seeds."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import exp, log, nan, sqrt
from typing import NamedTuple

import numpy as np

from select_service.sim.engine.gpu_hardware import Fleet
from select_service.sim.engine.replay_world import RunRecord
from select_service.sim.engine.service_goal import share_in_time

WARM_SHARE = 0.2
"""Share of first requests that are not counted: caches are cold and sessions are few."""
T_95 = (0.0, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Two-sided 95 % quantiles of Student's distribution, by degrees of freedom."""


class RunOutcome(NamedTuple):
    """Result of a run. Times in seconds, of requests; hit_rate: share of cached prompt tokens.

    objective_share: share of requests that keep their goal (service_goal)
    over_claimed, under_claimed: share of prompt tokens that the selector, wrongly, took for cached
        or for not cached; None for routers without claims
    """

    ttft_mean: float
    ttft_p99: float
    e2e_mean: float
    tpot_mean: float
    hit_rate: float
    preemptions: int
    objective_share: float = nan
    over_claimed: float | None = None
    under_claimed: float | None = None


class RunKey(NamedTuple):
    """Identity of a run.  load: share of the capacity"""

    workload: str
    load: float
    seed: int
    chooser: str

    @property
    def cell(self) -> tuple[str, float]:
        return self.workload, self.load


Results = dict[RunKey, RunOutcome]


def compute_outcome(
    record: RunRecord, fleet: Fleet, claimed: Mapping[int, int] | None = None
) -> RunOutcome:
    """Return the result of all requests except the first.

    claimed: prompt tokens that the selector took for cached, by request
    """
    warm = int(WARM_SHARE * len(record.histories))
    lives = record.histories[warm:]
    ttft = np.array([life.first_s - life.arrived_s for life in lives])
    decoded = [(life.end_s - life.first_s, life.turn.output_tokens - 1) for life in lives]
    prompts = np.array([life.turn.prompt_tokens for life in lives])
    wrong = [n - record.histories[i].cached for i, n in (claimed or {}).items() if i >= warm]
    return RunOutcome(
        ttft_mean=float(ttft.mean()),
        ttft_p99=float(np.quantile(ttft, 0.99)),
        e2e_mean=float(np.mean([life.end_s - life.arrived_s for life in lives])),
        tpot_mean=float(np.mean([seconds / n for seconds, n in decoded if n > 0])),
        hit_rate=sum(x.cached for x in lives) / float(prompts.sum()),
        preemptions=sum(work.preemptions for work in record.work),
        objective_share=share_in_time(lives, fleet),
        over_claimed=sum(n for n in wrong if n > 0) / float(prompts.sum()) if wrong else None,
        under_claimed=-sum(n for n in wrong if n < 0) / float(prompts.sum()) if wrong else None,
    )


class RatioEstimate(NamedTuple):
    """Geometric mean with its 95 % interval over seeds; for one seed the mean alone."""

    mean: float
    low: float
    high: float


Metric = Callable[[RunOutcome], float]


def compute_ratio(
    results: Results, cells: Iterable[tuple[str, float]], chooser: str, base: str, metric: Metric
) -> RatioEstimate:
    """Return the ratio of a metric of `chooser` to that of `base`, by equal seeds.

    Only seeds with the largest number of common cells count. NaN if there is none.
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
        return RatioEstimate(nan, nan, nan)
    most = max(map(len, by_seed.values()))
    return interval([sum(logs) / most for logs in by_seed.values() if len(logs) == most])


def interval(logs: Sequence[float]) -> RatioEstimate:
    """Return mean and interval of logarithms, one for each seed."""
    n, mean = len(logs), sum(logs) / len(logs)
    if n == 1:
        return RatioEstimate(exp(mean), exp(mean), exp(mean))
    deviation = sqrt(sum((x - mean) ** 2 for x in logs) / (n - 1))
    half = T_95[min(n - 1, len(T_95) - 1)] * deviation / sqrt(n)
    return RatioEstimate(exp(mean), exp(mean - half), exp(mean + half))


def cells_of(results: Results) -> list[tuple[str, float]]:
    """Return the cells in order of their runs."""
    return list(dict.fromkeys(key.cell for key in results))


def routers_of(results: Results) -> list[str]:
    """Return the routers in order of their runs."""
    return list(dict.fromkeys(key.chooser for key in results))
