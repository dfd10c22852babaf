"""What is counted as requests pass, and what failed beside them."""

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.metrics_core import Metric

from select_service.core.histogram import Histogram
from select_service.metrics.series import COUNTER, HISTOGRAM, Family, itself, series_of

ANSWERED: Sequence[Family[int]] = (Family(COUNTER, "requests", "Answered requests.", itself),)

WARNED: Sequence[Family[int]] = (
    Family(
        COUNTER,
        "request_warnings",
        "What of requests was not understood, or not used, although they were answered.",
        itself,
    ),
)

SELECTED: Sequence[Family[Histogram]] = (
    Family(
        HISTOGRAM,
        "selection_duration_seconds",
        "Time to decide, from the decoded body to the decision; refused requests are left out.",
        itself,
    ),
)

FAILED: Sequence[Family[int]] = (
    Family(
        COUNTER,
        "callback_failures",
        "Callbacks of the event loop that failed; each is a bug, of which the log tells.",
        itself,
    ),
)


def of_requests(
    requests: Mapping[tuple[str, str, int], int],
    warnings: Mapping[tuple[str, str], int],
    selections: Mapping[str, Histogram],
    callback_failures: Mapping[str, int],
) -> Iterator[Metric]:
    """requests: by route, method and status;  warnings: by route and kind;  selections: by route"""
    answered = {(route, method, str(status)): n for (route, method, status), n in requests.items()}
    yield from series_of(ANSWERED, ("route", "method", "status"), answered)
    yield from series_of(WARNED, ("route", "kind"), warnings)
    yield from series_of(SELECTED, ("route",), {(route,): d for route, d in selections.items()})
    yield from series_of(FAILED, ("callback",), {(c,): n for c, n in callback_failures.items()})
