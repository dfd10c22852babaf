"""Metrics counted per request, and failures of callbacks."""

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.metrics_core import Metric

from select_service.core.duration_histogram import DurationHistogram
from select_service.metrics.series import COUNTER, HISTOGRAM, FamilyRow, make_series, record_itself

ANSWERED: Sequence[FamilyRow[int]] = (
    FamilyRow(COUNTER, "requests", "Answered requests.", record_itself),
)

WARNED: Sequence[FamilyRow[int]] = (
    FamilyRow(
        COUNTER,
        "request_warnings",
        "Ignored or unknown parts of answered requests.",
        record_itself,
    ),
)

SELECTED: Sequence[FamilyRow[DurationHistogram]] = (
    FamilyRow(
        HISTOGRAM,
        "selection_duration_seconds",
        "Time from the decoded body to the decision, without rejected requests.",
        record_itself,
    ),
)

FAILED: Sequence[FamilyRow[int]] = (
    FamilyRow(
        COUNTER,
        "callback_failures",
        "Failed event loop callbacks; each is a bug and is logged.",
        record_itself,
    ),
)


def request_metrics(
    requests: Mapping[tuple[str, str, int], int],
    warnings: Mapping[tuple[str, str], int],
    selections: Mapping[str, DurationHistogram],
    callback_failures: Mapping[str, int],
) -> Iterator[Metric]:
    """Yield the series of requests.

    requests: by route, method and status
    warnings: by route and kind
    selections: by route
    """
    answered = {(route, method, str(status)): n for (route, method, status), n in requests.items()}
    yield from make_series(ANSWERED, ("route", "method", "status"), answered)
    yield from make_series(WARNED, ("route", "kind"), warnings)
    yield from make_series(SELECTED, ("route",), {(route,): d for route, d in selections.items()})
    yield from make_series(FAILED, ("callback",), {(c,): n for c, n in callback_failures.items()})
