"""The health of the fleet in numbers, as metrics show it."""

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from typing import NamedTuple

from select_service.core.fitness.check_times import CheckTimes
from select_service.core.fitness.views import CapacityOf
from select_service.core.health.checked import HealthCounts
from select_service.core.health.health_record import HealthRecord
from select_service.core.health.kinds import WRONG_ANSWERS, Kind, State
from select_service.core.health.monitor import HealthMonitor
from select_service.core.histogram import Histogram

RANKS_PER_STEP = 1024
"""Ranks that are counted before others may be served."""


class WorkerStatus(NamedTuple):
    """state, breaker: codes of its worst rank"""

    state: int
    breaker: int


class HealthReport(NamedTuple):
    """All copies.

    workers:     those with numbers of their own
    check_times: by worker (None: the others) and type
    failures:    by worker and kind, of all workers
    transitions: by words of the state before and after
    ranks, spares: how many, by the word of their state
    capacity:    level and ratio by model; empty while degradation is off
    """

    workers: Mapping[int, WorkerStatus]
    check_times: Mapping[tuple[int | None, str], Histogram]
    checks: Mapping[str, int]
    failures: Mapping[tuple[int, str], int]
    transitions: Mapping[tuple[str, str], int]
    ranks: Mapping[str, int]
    spares: Mapping[str, int]
    capacity: Mapping[str, tuple[int, float]]
    withheld: int
    flaky: int
    common_mode: int
    reference_changes: int
    disagreements: int


class _Ranks:
    """Counts ranks by state, some at a time."""

    def __init__(self, shown: Mapping[int, object]) -> None:
        self._shown = shown
        self.workers: dict[int, WorkerStatus] = {}
        self.states = [0] * len(State)
        self.spares = [0] * len(State)

    def look(self, records: Sequence[HealthRecord]) -> None:
        for record in records:
            self.states[record.state] += 1
            self.spares[record.state] += record.is_spare
            worker_id = record.rank.worker_id
            if worker_id in self._shown:
                state, breaker = self.workers.get(worker_id, (0, 0))
                worst = max(state, int(record.state)), max(breaker, int(record.breaker.state))
                self.workers[worker_id] = WorkerStatus(*worst)


def health_report(
    monitor: HealthMonitor, times: CheckTimes, capacity_of: CapacityOf
) -> Generator[None, None, HealthReport]:
    """In steps."""
    ranks, capacity = _Ranks(times.own), {}
    for key, partition in list(monitor.partitions()):
        records = list(partition.health.roster)
        for begin in range(0, len(records), RANKS_PER_STEP):
            ranks.look(records[begin : begin + RANKS_PER_STEP])
            yield
        view = capacity_of(key)
        if view is not None:
            capacity[key.model_name] = view.level, view.ratio
    counts = monitor.counts
    failures = yield from _failures(counts.failures, ranks.workers)
    return HealthReport(
        workers=ranks.workers,
        check_times={
            **{(None, name): held.copy() for name, held in times.others.items()},
            **{(w, name): held.copy() for w, by in times.own.items() for name, held in by.items()},
        },
        checks=_checks(counts),
        failures=failures,
        transitions={(a.word, b.word): n for (a, b), n in counts.transitions.items()},
        ranks={state.word: ranks.states[state] for state in State},
        spares={state.word: ranks.spares[state] for state in State},
        capacity=capacity,
        withheld=counts.withheld,
        flaky=counts.flaky,
        common_mode=counts.common_mode,
        reference_changes=counts.reference_changes,
        disagreements=counts.disagreements,
    )


_FOUND = [kind for kind in Kind if kind not in (Kind.PASSIVE, Kind.FATAL, Kind.OPERATOR)]
"""What a check can find."""


def _checks(counts: HealthCounts) -> dict[str, int]:
    """By what they found; of neutral ones, why they are is known where it is the engine's word."""
    found = {kind.value: counts.checks[kind] for kind in _FOUND}
    found |= {"busy": counts.busy, "misconfigured": counts.misconfigured}
    found[Kind.NEUTRAL] -= counts.busy + counts.misconfigured
    return found


def _failures(
    counts: Counter[tuple[int, Kind]], shown: Mapping[int, object]
) -> Generator[None, None, dict[tuple[int, str], int]]:
    """Wrong answers of those with numbers of their own begin at 0, so that the first is seen.

    In steps: every worker may have failed in every way.
    """
    found = {(worker_id, kind.value): 0 for worker_id in shown for kind in sorted(WRONG_ANSWERS)}
    for number, (worker_id, kind) in enumerate(list(counts), 1):
        found[worker_id, kind.value] = counts[worker_id, kind]
        if number % RANKS_PER_STEP == 0:
            yield
    return found
