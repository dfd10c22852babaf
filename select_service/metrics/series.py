"""How records become series when there may be more of them than series.

Some records have series of their own; the others are summed under the label value `other`.  A gauge
of the others is their sum.  A counter of the others must never fall when one of them goes away, so
it is the sum of what they were seen to grow by.

Every family of the service is a row of a table: its name, and how it is read from a record.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from select_service.core.histogram import Histogram

PREFIX = "select_service_"
SCOPE_LABELS = ("model_name", "tenant_id")
RANK_LABELS = ("worker_id", "dp_rank")
OTHER = "other"

K = TypeVar("K", bound=Hashable)
S = TypeVar("S")
Labels = tuple[str, ...]
L = TypeVar("L", bound=Labels)
Value: TypeAlias = float | Histogram | None
MetricFamily: TypeAlias = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
COUNTER, GAUGE, HISTOGRAM = CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily


class Family(NamedTuple, Generic[S]):
    """One series of a family for each record, but for those of which it reads None.

    Rows of the same name make one family and stand together.

    extra: labels that the row itself fixes
    """

    kind: type[MetricFamily]
    name: str
    help: str
    read: Callable[[S], Value]
    extra: tuple[tuple[str, str], ...] = ()
    prefix: str = PREFIX


def itself(value: Value) -> Value:
    """How a record that is a number, or a histogram, is read."""
    return value


class Chosen(Generic[K]):
    """Which keys have series of their own: the first so many, each for as long as it exists."""

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._own: set[K] = set()
        self._others: set[K] = set()

    def of(self, existing: Iterable[K]) -> set[K]:
        """The chosen ones among the keys that exist now."""
        keys = list(existing)
        self._own.intersection_update(keys)
        self._others.intersection_update(keys)
        for key in keys:
            if key in self._own or key in self._others:
                continue
            place = self._own if len(self._own) < self._keys_max else self._others
            place.add(key)
        return self._own


class GrowingSums:
    """Sums of counters whose owners come and go; a sum never falls."""

    def __init__(self) -> None:
        self._sums: dict[Hashable, float] = {}
        self._before: dict[Hashable, dict[Hashable, float]] = {}

    def grow(self, name: Hashable, counters: Mapping[K, float]) -> float:
        """The sum `name`, after adding what each owner's counter grew by since the last call.

        A counter that fell has started anew: all of it is growth.  What an owner counted between
        the last call and its end is not seen.
        """
        before = self._before.get(name, {})
        total = self._sums.get(name, 0.0)
        for owner, value in counters.items():
            last = before.get(owner, 0.0)
            total += value - last if value >= last else value
        self._before[name] = dict(counters.items())
        self._sums[name] = total
        return total


def series_of(
    table: Sequence[Family[S]], names: Labels, records: Mapping[L, S]
) -> Iterator[Metric]:
    """The families of a table.

    names: label names shared by all rows; the keys of `records` are their values
    """
    yield from _made(table, names, records).values()


def summed_series_of(
    table: Sequence[Family[S]],
    names: Labels,
    own: Mapping[L, S],
    others: Mapping[K, S],
    sums: GrowingSums,
) -> Iterator[Metric]:
    """The same, with the records of `others` summed under `other`.

    The keys of `others` are whatever identifies them.
    """
    found = _made(table, names, own)
    for row in table if others else ():
        readings = {key: _number(row.read(record)) for key, record in others.items()}
        fixed = tuple(value for _, value in row.extra)
        is_counter = row.kind is COUNTER
        value = sums.grow((row.name, fixed), readings) if is_counter else sum(readings.values())
        _add(found[row.name], (*(OTHER,) * len(names), *fixed), value)
    yield from found.values()


def _made(
    table: Sequence[Family[S]], names: Labels, records: Mapping[L, S]
) -> dict[str, MetricFamily]:
    found: dict[str, MetricFamily] = {}
    for row in table:
        labels = (*names, *(name for name, _ in row.extra))
        if row.name not in found:
            found[row.name] = row.kind(row.prefix + row.name, row.help, labels=labels)
        fixed = tuple(value for _, value in row.extra)
        for values, record in records.items():
            _add(found[row.name], (*values, *fixed), row.read(record))
    return found


def _add(family: MetricFamily, labels: Labels, value: Value) -> None:
    if isinstance(family, HistogramMetricFamily):
        assert isinstance(value, Histogram)
        ends = [*map(str, value.bounds), "+Inf"]
        buckets = list(zip(ends, accumulate(value.counts), strict=True))
        family.add_metric(labels, buckets, value.total_s)
    elif value is not None:
        family.add_metric(labels, _number(value))


def _number(value: Value) -> float:
    assert isinstance(value, float | int)
    return value
