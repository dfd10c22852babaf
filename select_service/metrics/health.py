"""Metrics of health checks, partly under names of the Dynamo document."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric

from select_service.metrics.series import (
    DYNAMO,
    HISTOGRAM,
    OTHER,
    FamilyRow,
    GrowingSums,
    make_family,
    make_process_series,
)

if TYPE_CHECKING:  # imported only if health checks are on
    from select_service.core.health.fleet_health.health_report import HealthReport
    from select_service.core.health.migration.migrator import MigrationCounters
    from select_service.core.health.migration.move_cost import MoveMethod

HEALTH: Sequence[FamilyRow["HealthReport"]] = (
    FamilyRow(
        "worker_status",
        "State of the worst rank of a worker: 0 healthy, 1 suspicious, 2 unhealthy, 3 draining, 4"
        " dead.",
        lambda h: {(str(w), str(w)): status.state for w, status in h.workers.items()},
        ("worker_id", "tp_group"),
        DYNAMO,
    ),
    FamilyRow(
        "circuit_breaker_state",
        "Circuit breaker of a worker: 0 closed (gets requests), 1 open (gets none), 2 half open "
        "(a probe decides).",
        lambda h: {str(w): status.breaker for w, status in h.workers.items()},
        ("worker_id",),
        DYNAMO,
    ),
    FamilyRow(
        "health_check_duration_seconds",
        "Seconds of a health check with all its attempts, by kind of check.",
        lambda h: {(_worker_label(w), name): held for (w, name), held in h.check_times.items()},
        ("worker_id", "check_type"),
        DYNAMO,
        kind=HISTOGRAM,
    ),
    FamilyRow(
        "health_checks_total", "Finished health checks, by result.", lambda h: h.checks, ("result",)
    ),
    FamilyRow(
        "health_transitions_total",
        "Changes of the health state of ranks, by former and new state.",
        lambda h: h.transitions,
        ("from", "to"),
    ),
    FamilyRow("health_ranks", "Ranks in a health state now.", lambda h: h.ranks, ("state",)),
    FamilyRow("spares", "Spare ranks in a health state now.", lambda h: h.spares, ("state",)),
    FamilyRow(
        "capacity_lost_ranks",
        "Ranks of a model that health has taken out, without drains by operators and planners.",
        lambda h: h.lost,
        ("model_name",),
    ),
    FamilyRow(
        "health_withheld_total",
        "Failed checks of ranks that kept getting requests because of --health-max-eject.",
        lambda h: h.withheld,
    ),
    FamilyRow(
        "health_flaky_total",
        "Health checks that passed in a second or later attempt.",
        lambda h: h.flaky,
    ),
    FamilyRow(
        "health_reports_total",
        "Failures of requests reported by callers; false: without a reservation of the rank and "
        "not by --health-reporters, so that at most a check follows.",
        lambda h: h.reports,
        ("trusted",),
    ),
    FamilyRow(
        "health_common_mode_total",
        "Slow checks that blamed no rank, because more than half of the ranks were slow at once.",
        lambda h: h.common_mode,
    ),
    FamilyRow(
        "canary_reference_changes_total",
        "Right answers learned anew after a change of the model.",
        lambda h: h.reference_changes,
    ),
    FamilyRow(
        "canary_disagreements_total",
        "Comparisons of answers in which no answer had a majority.",
        lambda h: h.disagreements,
    ),
    FamilyRow(
        "degradation_level",
        "Degradation level of a model: 0 full capacity to 4 hardly any; 2 and above shed tiers "
        "with --degradation auto.",
        lambda h: {model: level for model, (level, _) in h.capacity.items()},
        ("model_name",),
        DYNAMO,
    ),
    FamilyRow(
        "capacity_ratio",
        "Remaining capacity of a model divided by its promise (--slo); without a promise the "
        "remaining share of weights.",
        lambda h: {model: ratio for model, (_, ratio) in h.capacity.items()},
        ("model_name",),
    ),
)

MOVES: Sequence[FamilyRow["MigrationCounters"]] = (
    FamilyRow(
        "migration_total",
        "Reservations moved from a sick or draining worker to another, by both worker ids and "
        "method; an empty target means a cancelled move.",
        lambda m: _moves_by_pair(m.moves),
        ("source_group", "target_group", "method"),
        DYNAMO,
    ),
    FamilyRow(
        "migration_duration_seconds",
        "Seconds of a migration, as reported by the caller that carried it out.",
        lambda m: {method.value: held for method, held in m.durations.items()},
        ("method",),
        DYNAMO,
        kind=HISTOGRAM,
    ),
    FamilyRow(
        "reservations_given_up_total",
        "Reservations released at the end of a drain, because their rank did not recover in time.",
        lambda m: m.released,
    ),
)


def health_metrics(seen: "HealthReport", sums: GrowingSums) -> Iterator[Metric]:
    """Yield the series of health; workers over the limit are summed under `other`."""
    yield from make_process_series(HEALTH, seen)
    yield make_family(
        "health_failures_total",
        "Failed checks and failure reports of a worker, by reason.",
        ("worker_id", "reason"),
        _failures_by_worker(seen, sums),
    )


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
    """Return the moves by pair and method; a cancelled move has an empty target.

    Pairs of workers over the limit are summed under `other`.
    """
    return {
        (OTHER, OTHER, method.value)
        if source is None
        else (str(source), "" if target is None else str(target), method.value): n
        for (source, target, method), n in moves.items()
    }


def _worker_label(worker_id: int | None) -> str:
    return OTHER if worker_id is None else str(worker_id)
