"""How long ago files that are followed were looked at: without such files there are no series."""

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.metrics_core import Metric

from select_service.metrics.series import GAUGE, Family, itself, series_of

FOLLOWED: Sequence[Family[float]] = (
    Family(
        GAUGE,
        "followed_file_age_seconds",
        "Seconds since files that are followed were last looked at, and read if they had changed.",
        itself,
    ),
)


def of_followed(ages: Mapping[str, float]) -> Iterator[Metric]:
    """ages: by the setting or source that names the files"""
    if ages:
        yield from series_of(FOLLOWED, ("file",), {(name,): age for name, age in ages.items()})
