"""Health metrics of the fleet."""

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from typing import NamedTuple

from select_service.core.duration_histogram import DurationHistogram
from select_service.core.health.checks.check_state import HealthCounters
from select_service.core.health.fleet_health.check_times import CheckTimes
from select_service.core.health.fleet_health.health_views import CapacityOf
from select_service.core.health.health_kinds import WRONG_ANSWERS, CheckKind, RankHealthState
from select_service.core.health.health_monitor import HealthMonitor
from select_service.core.health.rank_state.health_record import HealthRecord

RANKS_PER_STEP = 1024
"""Ranks counted per step, before the event loop runs other tasks."""


class WorkerStatus(NamedTuple):
    """Status of a worker.

    state, breaker: highest codes among its ranks
    """

    state: int
    breaker: int


class HealthReport(NamedTuple):
    """Snapshot of the health metrics; all values are copies.

    workers: workers with separate metrics
    check_times: by worker (None for all others) and type of check
    failures: by worker and kind, for all workers
    transitions: by names of the old and new state
    ranks, spares: number of ranks by state name
    lost: number of ranks that health has taken out, by model
    capacity: level and ratio by model; empty while degradation is off
    reports: reported failures, by whether they were trusted
    """

    workers: Mapping[int, WorkerStatus]
    check_times: Mapping[tuple[int | None, str], DurationHistogram]
    checks: Mapping[str, int]
    failures: Mapping[tuple[int, str], int]
    transitions: Mapping[tuple[str, str], int]
    ranks: Mapping[str, int]
    spares: Mapping[str, int]
    lost: Mapping[str, int]
    capacity: Mapping[str, tuple[int, float]]
    withheld: int
    flaky: int
    common_mode: int
    reference_changes: int
    disagreements: int
    reports: Mapping[str, int]


class _RankCounter:
    """Counter of ranks by state."""

    def __init__(self, listed_workers: Mapping[int, object]) -> None:
        self._listed_workers = listed_workers
        self.workers: dict[int, WorkerStatus] = {}
        self.states = [0] * len(RankHealthState)
        self.spares = [0] * len(RankHealthState)

    def count_ranks(self, records: Sequence[HealthRecord]) -> None:
        for record in records:
            self.states[record.state] += 1
            self.spares[record.state] += record.is_spare
            worker_id = record.rank.worker_id
            if worker_id in self._listed_workers:
                state, breaker = self.workers.get(worker_id, (0, 0))
                worst = max(state, int(record.state)), max(breaker, int(record.breaker.state))
                self.workers[worker_id] = WorkerStatus(*worst)


def build_health_report(
    monitor: HealthMonitor, times: CheckTimes, capacity_of: CapacityOf
) -> Generator[None, None, HealthReport]:
    """Build the report in steps."""
    ranks, capacity, lost = _RankCounter(times.own), {}, Counter[str]()
    for key, partition in list(monitor.iterate_partitions()):
        lost[key.model_name] += partition.health.registry.count_lost()
        records = list(partition.health.registry)
        for begin in range(0, len(records), RANKS_PER_STEP):
            ranks.count_ranks(records[begin : begin + RANKS_PER_STEP])
            yield
        view = capacity_of(key)
        if view is not None:
            capacity[key.model_name] = view.level, view.ratio
    counts = monitor.counters
    failures = yield from _failures_by_worker(counts.failures, ranks.workers)
    return HealthReport(
        workers=ranks.workers,
        check_times={
            **{(None, name): held.copy() for name, held in times.others.items()},
            **{(w, name): held.copy() for w, by in times.own.items() for name, held in by.items()},
        },
        checks=_checks_by_result(counts),
        failures=failures,
        transitions={(a.label, b.label): n for (a, b), n in counts.transitions.items()},
        ranks={state.label: ranks.states[state] for state in RankHealthState},
        spares={state.label: ranks.spares[state] for state in RankHealthState},
        lost=lost,
        capacity=capacity,
        withheld=counts.withheld,
        flaky=counts.flaky,
        common_mode=counts.common_mode,
        reference_changes=counts.reference_changes,
        disagreements=counts.disagreements,
        reports={"true": counts.trusted_reports, "false": counts.untrusted_reports},
    )


_CHECK_FINDINGS = [
    kind
    for kind in CheckKind
    if kind not in (CheckKind.PASSIVE, CheckKind.FATAL, CheckKind.OPERATOR)
]
"""Kinds that a check can find."""


def _checks_by_result(counts: HealthCounters) -> dict[str, int]:
    """Return checks by result; neutral checks are split into busy, misconfigured and the rest."""
    found = {kind.value: counts.checks[kind] for kind in _CHECK_FINDINGS}
    found |= {"busy": counts.busy, "misconfigured": counts.misconfigured}
    # Subtracted, so that the sum over all results stays the number of checks.
    found[CheckKind.NEUTRAL] -= counts.busy + counts.misconfigured
    return found


def _failures_by_worker(
    counts: Counter[tuple[int, CheckKind]], listed_workers: Mapping[int, object]
) -> Generator[None, None, dict[tuple[int, str], int]]:
    """Return failures by worker and kind, in steps, since every worker may have failed in every
    way.

    Wrong answers of workers with separate metrics start at 0, so that rate() sees the first.
    """
    found = {
        (worker_id, kind.value): 0 for worker_id in listed_workers for kind in sorted(WRONG_ANSWERS)
    }
    for number, (worker_id, kind) in enumerate(list(counts), 1):
        found[worker_id, kind.value] = counts[worker_id, kind]
        if number % RANKS_PER_STEP == 0:
            yield
    return found
