"""Health of the engines: under the names of the document that it follows, and our own."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric

from select_service.core.histogram import Histogram
from select_service.metrics.series import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    OTHER,
    Family,
    GrowingSums,
    itself,
    series_of,
)

if TYPE_CHECKING:  # where health is off, nothing of it is imported
    from select_service.core.fitness.report import HealthReport, WorkerStatus
    from select_service.core.health.move_cost import Method
    from select_service.core.moving.mover import MoveCounts

DYNAMO = "dynamo_"

STATUS: Sequence[Family[int]] = (
    Family(GAUGE, "worker_status", "State of a worker, 0 to 4.", itself, prefix=DYNAMO),
)
BREAKERS: Sequence[Family[int]] = (
    Family(GAUGE, "circuit_breaker_state", "0 closed, 1 open, 2 half open.", itself, prefix=DYNAMO),
)
CHECK_TIMES: Sequence[Family[Histogram]] = (
    Family(
        HISTOGRAM,
        "health_check_duration_seconds",
        "How long checks took, with all their attempts.",
        itself,
        prefix=DYNAMO,
    ),
)
LEVELS: Sequence[Family[int]] = (
    Family(GAUGE, "degradation_level", "Level of degradation, 0 to 4.", itself, prefix=DYNAMO),
)
RATIOS: Sequence[Family[float]] = (
    Family(GAUGE, "capacity_ratio", "Capacity of the ranks that serve over promise.", itself),
)
MOVES: Sequence[Family[int]] = (
    Family(COUNTER, "migration", "Reservations that were moved or given up.", itself, (), DYNAMO),
)
MOVE_TIMES: Sequence[Family[Histogram]] = (
    Family(
        HISTOGRAM,
        "migration_duration_seconds",
        "How long moves took, as callers say.",
        itself,
        prefix=DYNAMO,
    ),
)
CHECKS: Sequence[Family[int]] = (
    Family(COUNTER, "health_checks", "Checks by what they found.", itself),
)
FAILURES: Sequence[Family[float]] = (
    Family(COUNTER, "health_failures", "What was held against workers.", itself),
)
TRANSITIONS: Sequence[Family[int]] = (
    Family(COUNTER, "health_transitions", "Changes of the state of ranks.", itself),
)
RANKS: Sequence[Family[int]] = (Family(GAUGE, "health_ranks", "Ranks by state.", itself),)
SPARES: Sequence[Family[int]] = (Family(GAUGE, "spares", "Spare ranks by state.", itself),)
COUNTS: Sequence[Family["HealthReport"]] = (
    Family(
        COUNTER,
        "health_withheld",
        "Failing checks of ranks that stayed because too many were out.",
        lambda h: h.withheld,
    ),
    Family(COUNTER, "health_flaky", "Checks that needed a second attempt.", lambda h: h.flaky),
    Family(
        COUNTER,
        "health_common_mode",
        "Checks that were slow together with many others.",
        lambda h: h.common_mode,
    ),
    Family(
        COUNTER,
        "canary_reference_changes",
        "Right answers that have changed.",
        lambda h: h.reference_changes,
    ),
    Family(
        COUNTER,
        "canary_disagreements",
        "Rounds in which nobody knew who was right.",
        lambda h: h.disagreements,
    ),
)
GIVEN_UP: Sequence[Family[int]] = (
    Family(
        COUNTER,
        "reservations_given_up",
        "Reservations released because their rank did not come back.",
        itself,
    ),
)


def of_health(seen: "HealthReport", sums: GrowingSums) -> Iterator[Metric]:
    """Workers beyond the first have only sums, under `other`."""
    yield from _of_workers(seen.workers)
    yield from series_of(
        CHECK_TIMES,
        ("worker_id", "check_type"),
        {(_named(worker), name): held for (worker, name), held in seen.check_times.items()},
    )
    yield from series_of(CHECKS, ("result",), {(name,): n for name, n in seen.checks.items()})
    yield from series_of(FAILURES, ("worker_id", "reason"), _failures(seen, sums))
    yield from series_of(TRANSITIONS, ("from", "to"), seen.transitions)
    yield from series_of(RANKS, ("state",), {(state,): n for state, n in seen.ranks.items()})
    yield from series_of(SPARES, ("state",), {(state,): n for state, n in seen.spares.items()})
    yield from series_of(COUNTS, (), {(): seen})
    levels = {(model,): level for model, (level, _) in seen.capacity.items()}
    yield from series_of(LEVELS, ("model_name",), levels)
    ratios = {(model,): ratio for model, (_, ratio) in seen.capacity.items()}
    yield from series_of(RATIOS, ("model_name",), ratios)


def of_moves(seen: "MoveCounts") -> Iterator[Metric]:
    """The first pairs of workers have series of their own."""
    yield from series_of(MOVES, ("source_group", "target_group", "method"), _moves(seen.moves))
    times = {(method.value,): held for method, held in seen.durations.items()}
    yield from series_of(MOVE_TIMES, ("method",), times)
    yield from series_of(GIVEN_UP, (), {(): seen.given_up})


def _of_workers(workers: Mapping[int, "WorkerStatus"]) -> Iterator[Metric]:
    states = {(str(w), str(w)): status.state for w, status in workers.items()}
    yield from series_of(STATUS, ("worker_id", "tp_group"), states)
    breakers = {(str(w),): status.breaker for w, status in workers.items()}
    yield from series_of(BREAKERS, ("worker_id",), breakers)


def _failures(seen: "HealthReport", sums: GrowingSums) -> dict[tuple[str, str], float]:
    """By worker and reason; what the others have is summed, and never falls.

    What begins at 0 for the workers that are shown does so for the others.
    """
    found: dict[tuple[str, str], float] = {}
    others: dict[str, dict[int, float]] = {}
    if any(worker_id is None for worker_id, _ in seen.check_times):
        others = {reason: {} for (_, reason), n in seen.failures.items() if not n}
    for (worker_id, reason), n in seen.failures.items():
        if worker_id in seen.workers:
            found[str(worker_id), reason] = n
        else:
            others.setdefault(reason, {})[worker_id] = n
    for reason, counts in others.items():
        found[OTHER, reason] = sums.grow(("health_failures", reason), counts)
    return found


def _moves(
    moves: Mapping[tuple[int | None, int | None, "Method"], int],
) -> dict[tuple[str, str, str], int]:
    """Pairs beyond the first are one; who went nowhere has an empty target."""
    return {
        (OTHER, OTHER, method.value)
        if source is None
        else (str(source), "" if target is None else str(target), method.value): n
        for (source, target, method), n in moves.items()
    }


def _named(worker_id: int | None) -> str:
    return OTHER if worker_id is None else str(worker_id)
