"""Conversion of records to Prometheus series with a bounded number of label values.

Some records have their own series; the others are summed under the label value `other`.  A gauge of
the others is their sum.  A counter of the others must never fall when a record disappears, so it
sums the observed growth.

Every family is a row of a table: its name and a function that reads a value from a record.
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

from select_service.core.duration_histogram import DurationHistogram

PREFIX = "select_service_"
SCOPE_LABELS = ("model_name", "tenant_id")
RANK_LABELS = ("worker_id", "dp_rank")
OTHER = "other"

K = TypeVar("K", bound=Hashable)
S = TypeVar("S")
Labels = tuple[str, ...]
L = TypeVar("L", bound=Labels)
Value: TypeAlias = float | DurationHistogram | None
MetricFamily: TypeAlias = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
COUNTER, GAUGE, HISTOGRAM = CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily


class FamilyRow(NamedTuple, Generic[S]):
    """Metric family with one series per record; a record with the value None has no series.

    Rows of the same name form one family and must be adjacent.
    extra: labels with a fixed value
    """

    kind: type[MetricFamily]
    name: str
    help: str
    read: Callable[[S], Value]
    extra: tuple[tuple[str, str], ...] = ()
    prefix: str = PREFIX


def record_itself(value: Value) -> Value:
    """Return the record, for records that are numbers or histograms."""
    return value


class SeriesChooser(Generic[K]):
    """Set of keys with their own series: the first ones, each for as long as it exists."""

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._chosen_keys: set[K] = set()
        self._other_keys: set[K] = set()

    def choose_keys(self, existing: Iterable[K]) -> set[K]:
        """Return the chosen keys among the existing ones."""
        keys = list(existing)
        self._chosen_keys.intersection_update(keys)
        self._other_keys.intersection_update(keys)
        # First come, first kept: a key changes sides only when it disappears, so series stay
        # continuous.
        for key in keys:
            if key in self._chosen_keys or key in self._other_keys:
                continue
            place = (
                self._chosen_keys if len(self._chosen_keys) < self._keys_max else self._other_keys
            )
            place.add(key)
        return self._chosen_keys


class GrowingSums:
    """Sums of counters with changing owners; a sum never falls."""

    def __init__(self) -> None:
        self._sums: dict[Hashable, float] = {}
        self._before: dict[Hashable, dict[Hashable, float]] = {}

    def add_growth(self, name: Hashable, counters: Mapping[K, float]) -> float:
        """Add the growth of each owner's counter since the last call; return the sum `name`.

        A counter that fell was restarted, so its whole value is growth.  Increments between the
        last call and the end of an owner are lost.
        """
        before = self._before.get(name, {})
        total = self._sums.get(name, 0.0)
        for owner, value in counters.items():
            last = before.get(owner, 0.0)
            total += value - last if value >= last else value
        # Owners that are gone drop out here; their counted growth stays in the sum.
        self._before[name] = dict(counters.items())
        self._sums[name] = total
        return total


def make_series(
    table: Sequence[FamilyRow[S]], names: Labels, records: Mapping[L, S]
) -> Iterator[Metric]:
    """Yield the families of a table.

    names: label names shared by all rows; the keys of `records` are their values
    """
    yield from _make_families(table, names, records).values()


def make_summed_series(
    table: Sequence[FamilyRow[S]],
    names: Labels,
    own: Mapping[L, S],
    others: Mapping[K, S],
    sums: GrowingSums,
) -> Iterator[Metric]:
    """Yield the families of a table, with the records of `others` summed under `other`.

    The keys of `others` identify the records.
    """
    found = _make_families(table, names, own)
    for row in table if others else ():
        readings = {key: _as_number(row.read(record)) for key, record in others.items()}
        fixed = tuple(value for _, value in row.extra)
        is_counter = row.kind is COUNTER
        value = (
            sums.add_growth((row.name, fixed), readings) if is_counter else sum(readings.values())
        )
        _add_sample(found[row.name], (*(OTHER,) * len(names), *fixed), value)
    yield from found.values()


def _make_families(
    table: Sequence[FamilyRow[S]], names: Labels, records: Mapping[L, S]
) -> dict[str, MetricFamily]:
    found: dict[str, MetricFamily] = {}
    for row in table:
        labels = (*names, *(name for name, _ in row.extra))
        if row.name not in found:
            found[row.name] = row.kind(row.prefix + row.name, row.help, labels=labels)
        fixed = tuple(value for _, value in row.extra)
        for values, record in records.items():
            _add_sample(found[row.name], (*values, *fixed), row.read(record))
    return found


def _add_sample(family: MetricFamily, labels: Labels, value: Value) -> None:
    if isinstance(family, HistogramMetricFamily):
        assert isinstance(value, DurationHistogram)
        ends = [*map(str, value.bounds), "+Inf"]
        buckets = list(zip(ends, accumulate(value.counts), strict=True))
        family.add_metric(labels, buckets, value.total_s)
    elif value is not None:
        family.add_metric(labels, _as_number(value))


def _as_number(value: Value) -> float:
    assert isinstance(value, float | int)
    return value
