"""Metrics of health checks, partly under names of the Dynamo document."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric

from select_service.core.duration_histogram import DurationHistogram
from select_service.metrics.series import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    OTHER,
    FamilyRow,
    GrowingSums,
    make_series,
    record_itself,
)

if TYPE_CHECKING:  # imported only if health checks are on
    from select_service.core.health.fleet_health.health_report import HealthReport, WorkerStatus
    from select_service.core.health.migration.migrator import MigrationCounters
    from select_service.core.health.migration.move_cost import MoveMethod

DYNAMO = "dynamo_"

STATUS: Sequence[FamilyRow[int]] = (
    FamilyRow(GAUGE, "worker_status", "State of a worker, 0 to 4.", record_itself, prefix=DYNAMO),
)
BREAKERS: Sequence[FamilyRow[int]] = (
    FamilyRow(
        GAUGE,
        "circuit_breaker_state",
        "0 closed, 1 open, 2 half open.",
        record_itself,
        prefix=DYNAMO,
    ),
)
CHECK_TIMES: Sequence[FamilyRow[DurationHistogram]] = (
    FamilyRow(
        HISTOGRAM,
        "health_check_duration_seconds",
        "Duration of checks including all attempts.",
        record_itself,
        prefix=DYNAMO,
    ),
)
LEVELS: Sequence[FamilyRow[int]] = (
    FamilyRow(
        GAUGE, "degradation_level", "Level of degradation, 0 to 4.", record_itself, prefix=DYNAMO
    ),
)
RATIOS: Sequence[FamilyRow[float]] = (
    FamilyRow(
        GAUGE, "capacity_ratio", "Capacity of the serving ranks divided by the SLO.", record_itself
    ),
)
MOVES: Sequence[FamilyRow[int]] = (
    FamilyRow(
        COUNTER, "migration", "Migrated or released reservations.", record_itself, (), DYNAMO
    ),
)
MOVE_TIMES: Sequence[FamilyRow[DurationHistogram]] = (
    FamilyRow(
        HISTOGRAM,
        "migration_duration_seconds",
        "Duration of migrations as reported by callers.",
        record_itself,
        prefix=DYNAMO,
    ),
)
CHECKS: Sequence[FamilyRow[int]] = (
    FamilyRow(COUNTER, "health_checks", "Checks by result.", record_itself),
)
FAILURES: Sequence[FamilyRow[float]] = (
    FamilyRow(COUNTER, "health_failures", "Failures of workers by reason.", record_itself),
)
TRANSITIONS: Sequence[FamilyRow[int]] = (
    FamilyRow(COUNTER, "health_transitions", "State changes of ranks.", record_itself),
)
RANKS: Sequence[FamilyRow[int]] = (
    FamilyRow(GAUGE, "health_ranks", "Ranks by state.", record_itself),
)
SPARES: Sequence[FamilyRow[int]] = (
    FamilyRow(GAUGE, "spares", "Spare ranks by state.", record_itself),
)
COUNTS: Sequence[FamilyRow["HealthReport"]] = (
    FamilyRow(
        COUNTER,
        "health_withheld",
        "Failed checks of ranks kept in rotation by the ejection limit.",
        lambda h: h.withheld,
    ),
    FamilyRow(COUNTER, "health_flaky", "Checks that passed only after a retry.", lambda h: h.flaky),
    FamilyRow(
        COUNTER,
        "health_common_mode",
        "Slow checks during a simultaneous slowdown of many ranks.",
        lambda h: h.common_mode,
    ),
    FamilyRow(
        COUNTER,
        "canary_reference_changes",
        "Changed reference answers.",
        lambda h: h.reference_changes,
    ),
    FamilyRow(
        COUNTER,
        "canary_disagreements",
        "Comparisons without a majority.",
        lambda h: h.disagreements,
    ),
)
GIVEN_UP: Sequence[FamilyRow[int]] = (
    FamilyRow(
        COUNTER,
        "reservations_given_up",
        "Reservations released because their rank did not recover.",
        record_itself,
    ),
)


def health_metrics(seen: "HealthReport", sums: GrowingSums) -> Iterator[Metric]:
    """Yield the series of health; workers over the limit are summed under `other`."""
    yield from _worker_metrics(seen.workers)
    yield from make_series(
        CHECK_TIMES,
        ("worker_id", "check_type"),
        {(_worker_label(worker), name): held for (worker, name), held in seen.check_times.items()},
    )
    yield from make_series(CHECKS, ("result",), {(name,): n for name, n in seen.checks.items()})
    yield from make_series(FAILURES, ("worker_id", "reason"), _failures_by_worker(seen, sums))
    yield from make_series(TRANSITIONS, ("from", "to"), seen.transitions)
    yield from make_series(RANKS, ("state",), {(state,): n for state, n in seen.ranks.items()})
    yield from make_series(SPARES, ("state",), {(state,): n for state, n in seen.spares.items()})
    yield from make_series(COUNTS, (), {(): seen})
    levels = {(model,): level for model, (level, _) in seen.capacity.items()}
    yield from make_series(LEVELS, ("model_name",), levels)
    ratios = {(model,): ratio for model, (_, ratio) in seen.capacity.items()}
    yield from make_series(RATIOS, ("model_name",), ratios)


def move_metrics(seen: "MigrationCounters") -> Iterator[Metric]:
    """Yield the series of migrations; pairs of workers over the limit are summed under `other`."""
    yield from make_series(
        MOVES, ("source_group", "target_group", "method"), _moves_by_pair(seen.moves)
    )
    times = {(method.value,): held for method, held in seen.durations.items()}
    yield from make_series(MOVE_TIMES, ("method",), times)
    yield from make_series(GIVEN_UP, (), {(): seen.released})


def _worker_metrics(workers: Mapping[int, "WorkerStatus"]) -> Iterator[Metric]:
    states = {(str(w), str(w)): status.state for w, status in workers.items()}
    yield from make_series(STATUS, ("worker_id", "tp_group"), states)
    breakers = {(str(w),): status.breaker for w, status in workers.items()}
    yield from make_series(BREAKERS, ("worker_id",), breakers)


def _failures_by_worker(seen: "HealthReport", sums: GrowingSums) -> dict[tuple[str, str], float]:
    """Return the failures by worker and reason; the sum of all other workers never falls.

    Reasons that start at 0 for the shown workers also start at 0 for the others.
    """
    found: dict[tuple[str, str], float] = {}
    others: dict[str, dict[int, float]] = {}
    # None stands for all workers without their own series.
    if any(worker_id is None for worker_id, _ in seen.check_times):
        others = {reason: {} for (_, reason), n in seen.failures.items() if not n}
    for (worker_id, reason), n in seen.failures.items():
        if worker_id in seen.workers:
            found[str(worker_id), reason] = n
        else:
            others.setdefault(reason, {})[worker_id] = n
    for reason, counts in others.items():
        found[OTHER, reason] = sums.add_growth(("health_failures", reason), counts)
    return found


def _moves_by_pair(
    moves: Mapping[tuple[int | None, int | None, "MoveMethod"], int],
) -> dict[tuple[str, str, str], int]:
    """Return the moves by pair and method; a cancelled move has an empty target."""
    return {
        (OTHER, OTHER, method.value)
        if source is None
        else (str(source), "" if target is None else str(target), method.value): n
        for (source, target, method), n in moves.items()
    }


def _worker_label(worker_id: int | None) -> str:
    return OTHER if worker_id is None else str(worker_id)
