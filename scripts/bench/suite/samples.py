"""What was measured: tables of rows, each with samples of every contender; no I/O."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from scripts.bench.suite.machine import Noise


class Measure(NamedTuple):
    """A column.  Ratios are above 1 where ours is better, in whichever direction that is."""

    name: str
    more_is_better: bool = False


class Row(NamedTuple):
    """label: unique in its table;  x, group: its place on a curve, and which curve;
    goal: the least ratio of the judged measure;  goal_before: the same, but to this service as it
    was at a commit that is measured beside it."""

    label: str
    x: float = 0.0
    group: str = ""
    goal: float | None = None
    goal_before: float | None = None


class Sample(NamedTuple):
    """One value per measure; None when answers were wrong, so that nothing was measured."""

    values: tuple[float, ...] | None
    noise: Noise


class Table:
    """One part's, or what a part found under one heading."""

    def __init__(
        self,
        title: str,
        row_name: str,
        measures: Sequence[Measure],
        *,
        note: str = "",
        judged: int = 0,
        curve: str = "",
    ) -> None:
        """judged: the number of the measure that goals speak of, the one that is drawn;
        curve: what a row's x counts, empty when nothing is drawn."""
        self.title, self.row_name, self.measures, self.note = title, row_name, measures, note
        self.judged, self.curve = judged, curve
        self.rows: dict[str, Row] = {}
        self._samples: dict[tuple[str, str], list[Sample]] = {}

    def add(self, row: Row, contender: str, sample: Sample) -> None:
        assert sample.values is None or len(sample.values) == len(self.measures)
        self.rows[row.label] = row
        self._samples.setdefault((row.label, contender), []).append(sample)

    def is_complete(self, label: str, contenders: Sequence[str], repeats: int) -> bool:
        """Has every one of them so many right answers in the row?"""
        return all(len(self.values(label, name, 0)) >= repeats for name in contenders)

    def forget(self, label: str) -> None:
        """What was measured of a row, which will be measured anew."""
        self._samples = {key: found for key, found in self._samples.items() if key[0] != label}

    def samples(self, label: str, contender: str) -> list[Sample]:
        return self._samples.get((label, contender), [])

    def values(self, label: str, contender: str, measure: int) -> list[float]:
        """Of the samples whose answers were right."""
        samples = self.samples(label, contender)
        return [sample.values[measure] for sample in samples if sample.values is not None]

    def median(self, label: str, contender: str, measure: int) -> float | None:
        values = self.values(label, contender, measure)
        return statistics.median(values) if values else None

    def ratio(self, label: str, contender: str, base: str, measure: int) -> float | None:
        """Of the medians; above 1 when `contender` is better than `base`."""
        found, other = (self.median(label, name, measure) for name in (contender, base))
        if not found or not other:
            return None
        return found / other if self.measures[measure].more_is_better else other / found

    def noise(self, label: str, contender: str) -> Noise | None:
        """The greatest of each."""
        seen = [sample.noise for sample in self.samples(label, contender)]
        if not seen:
            return None
        others = [noise.others_percent for noise in seen if noise.others_percent is not None]
        load, steal = max(n.load for n in seen), max(n.steal_percent for n in seen)
        return Noise(load, steal, max(others, default=None))
