"""What all callers share: how much there is, who uses it, and to whom a share was refused."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

from select_service.metrics.series import COUNTER, GAUGE, Family, itself, series_of


class LimitReport(NamedTuple):
    """One limit, by its name.

    used: by whomever;  by_key: of keys, those that use most
    refusals: of a share since the start, by the name of the key and whose share it was
    """

    name: str
    total: int
    used: int
    by_key: Mapping[str, int]
    refusals: Mapping[tuple[str, str], int]


LIMITS: Sequence[Family[LimitReport]] = (
    Family(GAUGE, "limit_total", "What there is of a limit that all share.", lambda r: r.total),
    Family(GAUGE, "limit_used", "What of it is used, by whomever.", lambda r: r.used),
)
BY_KEY: Sequence[Family[int]] = (
    Family(GAUGE, "limit_used_by_key", "What of it a key uses, of those that use most.", itself),
)
REFUSED: Sequence[Family[int]] = (
    Family(
        COUNTER,
        "share_refusals",
        "Requests that were refused because a key, or its tenants, used their share of a limit.",
        itself,
    ),
)


def of_limits(reports: Sequence[LimitReport]) -> Iterator[Metric]:
    yield from series_of(LIMITS, ("limit",), {(each.name,): each for each in reports})
    by_key = {(each.name, key): n for each in reports for key, n in each.by_key.items()}
    yield from series_of(BY_KEY, ("limit", "key"), by_key)
    refused = {(each.name, *whose): n for each in reports for whose, n in each.refusals.items()}
    yield from series_of(REFUSED, ("limit", "key", "scope"), refused)
