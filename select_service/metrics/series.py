"""Conversion of records to Prometheus series with a bounded number of label values.

Some records have their own series; the others are summed under the label value `other`.  A gauge of
the others is their sum.  A counter of the others must never fall when a record disappears, so it
sums the observed growth.

Most families are rows of tables: a name and a function that reads a value from a record.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from select_service.core.duration_histogram import DurationHistogram

PREFIX = "select_service_"
DYNAMO = "dynamo_"
"""Prefix of metrics under names of the Dynamo document."""
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
    """Metric family of a record; a value None has no series.

    read: function that reads the value; with `labels`, the values by label value, or by tuple of
    label values
    kind: None means a counter for a name with `_total`, else a gauge
    """

    name: str
    help: str
    read: Callable[[S], Value | Mapping[Any, Value]]
    labels: Labels = ()
    prefix: str = PREFIX
    kind: type[MetricFamily] | None = None

    @property
    def resolved_kind(self) -> type[MetricFamily]:
        """Kind of the family."""
        return self.kind or (COUNTER if self.name.endswith("_total") else GAUGE)

    def read_values(self, record: S) -> Mapping[Labels, Value]:
        """Return the values by their values of `labels`."""
        found = self.read(record)
        if not isinstance(found, Mapping):
            return {(): found}
        return {key if isinstance(key, tuple) else (key,): value for key, value in found.items()}


class SeriesChooser(Generic[K]):
    """Set of keys with their own series: the first ones, each for as long as it exists."""

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._chosen_keys: set[K] = set()
        self._other_keys: set[K] = set()

    def choose_keys(self, existing: Iterable[K]) -> set[K]:
        """Return the chosen keys that exist."""
        keys = list(existing)
        self._chosen_keys.intersection_update(keys)
        self._other_keys.intersection_update(keys)
        # First come, first kept: a key changes sides only when it disappears, so series stay
        # continuous.
        for key in keys:
            if key in self._chosen_keys or key in self._other_keys:
                continue
            has_room = len(self._chosen_keys) < self._keys_max
            (self._chosen_keys if has_room else self._other_keys).add(key)
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
    return (_make_row_family(row, names, records) for row in table)


def make_process_series(table: Sequence[FamilyRow[S]], record: S | None) -> Iterator[Metric]:
    """Yield the families of a table about the process, without labels; none without the record."""
    return iter(()) if record is None else make_series(table, (), {(): record})


def make_family(name: str, help_text: str, names: Labels, values: Mapping[Any, Value]) -> Metric:
    """Return a family of values by label value, or by tuple of label values.

    names: label names
    """
    row = FamilyRow[Mapping[Any, Value]](name, help_text, lambda v: v, names)
    return _make_row_family(row, (), {(): values})


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
    for row in table:
        family = _make_row_family(row, names, own)
        for labels, values in _values_by_label(row, others).items():
            is_counter = row.resolved_kind is COUNTER
            total = (
                sums.add_growth((row.name, labels), values) if is_counter else sum(values.values())
            )
            _add_sample(family, (*(OTHER,) * len(names), *labels), total)
        yield family


def _values_by_label(row: FamilyRow[S], records: Mapping[K, S]) -> dict[Labels, dict[K, float]]:
    found: defaultdict[Labels, dict[K, float]] = defaultdict(dict)
    for key, record in records.items():
        for labels, value in row.read_values(record).items():
            found[labels][key] = _as_number(value)
    return found


def _make_row_family(row: FamilyRow[S], names: Labels, records: Mapping[L, S]) -> MetricFamily:
    family = row.resolved_kind(row.prefix + row.name, row.help, labels=(*names, *row.labels))
    for values, record in records.items():
        for labels, value in row.read_values(record).items():
            _add_sample(family, (*values, *labels), value)
    return family


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
