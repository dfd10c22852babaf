"""Metrics of followed files; none without such files."""

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.metrics_core import Metric

from select_service.metrics.series import GAUGE, FamilyRow, make_series, record_itself

FOLLOWED: Sequence[FamilyRow[float]] = (
    FamilyRow(
        GAUGE,
        "followed_file_age_seconds",
        "Seconds since the last check of followed files.",
        record_itself,
    ),
)


def followed_file_metrics(ages: Mapping[str, float]) -> Iterator[Metric]:
    """Yield the series of followed files.

    ages: seconds since the last check, by setting or source
    """
    if ages:
        yield from make_series(FOLLOWED, ("file",), {(name,): age for name, age in ages.items()})
