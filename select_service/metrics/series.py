"""How records become series when there may be more of them than series.

Some records have series of their own; the others are summed under the label value `other`.  A gauge
of the others is their sum.  A counter of the others must never fall when one of them goes away, so
it is the sum of what they were seen to grow by.

Families that are no rows of a table are made here as well, of values by their labels.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Generic, TypeVar

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from select_service.core.histogram import Histogram
from select_service.metrics.families import PREFIX, Family

OTHER = "other"

K = TypeVar("K", bound=Hashable)
S = TypeVar("S")
Labels = tuple[str, ...]
L = TypeVar("L", bound=Labels)


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
    table: Sequence[Family[S]],
    names: Labels,
    own: Mapping[L, S],
    others: Mapping[K, S],
    sums: GrowingSums,
) -> Iterator[Metric]:
    """The families of a table.

    names:  label names shared by all rows; the keys of `own` are their values
    others: records to be summed under `other`, by anything that identifies them
    """
    found: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for row in table:
        labels = (*names, *(name for name, _ in row.extra))
        family = found.get(row.name)
        if family is None:
            family = found[row.name] = row.kind(PREFIX + row.name, row.help, labels=labels)
        fixed = tuple(value for _, value in row.extra)
        for values, record in own.items():
            family.add_metric((*values, *fixed), row.read(record))
        if others:
            readings = {key: row.read(r) for key, r in others.items()}
            is_counter = row.kind is CounterMetricFamily
            value = sums.grow((row.name, fixed), readings) if is_counter else sum(readings.values())
            family.add_metric(((OTHER,) * len(names) + fixed), value)
    yield from found.values()


def gauges(
    name: str, text: str, labels: Labels, values: Mapping[Labels, float], prefix: str = PREFIX
) -> Metric:
    family = GaugeMetricFamily(prefix + name, text, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family


def counters(
    name: str, text: str, labels: Labels, values: Mapping[Labels, float], prefix: str = PREFIX
) -> Metric:
    family = CounterMetricFamily(prefix + name, text, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family


def histograms(name: str, text: str, labels: Labels, values: Mapping[Labels, Histogram]) -> Metric:
    family = HistogramMetricFamily(PREFIX + name, text, labels=labels)
    for label_values, found in values.items():
        ends = [*map(str, found.bounds), "+Inf"]
        buckets = list(zip(ends, accumulate(found.counts), strict=True))
        family.add_metric(label_values, buckets, found.total_s)
    return family
