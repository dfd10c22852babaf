"""Results: tables of rows, each with samples of every contender; no I/O."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from scripts.bench.suite.machine_facts import Disturbance


class ResultColumn(NamedTuple):
    """A column.

    A ratio above 1 means that this service is better, in either direction of the measure.
    """

    name: str
    more_is_better: bool = False


class ResultRow(NamedTuple):
    """Row of a table.

    label: unique in its table;  x, group: place on a curve, and the curve
    goal: least ratio of the judged measure;  goal_before: the same to an earlier commit of this
    service that is measured too;  goal_floor: the same to the floor server
    """

    label: str
    x: float = 0.0
    group: str = ""
    goal: float | None = None
    goal_before: float | None = None
    goal_floor: float | None = None


class ResultSample(NamedTuple):
    """One value per measure; None after wrong answers."""

    values: tuple[float, ...] | None
    noise: Disturbance


class ResultTable:
    """Results of a part, or of a heading of a part."""

    def __init__(
        self,
        title: str,
        row_name: str,
        measures: Sequence[ResultColumn],
        *,
        note: str = "",
        judged: int = 0,
        curve: str = "",
    ) -> None:
        """judged: number of the measure with goals, which is drawn
        curve: unit of a row's x; empty without a drawing
        """
        self.title, self.row_name, self.measures, self.note = title, row_name, measures, note
        self.judged, self.curve = judged, curve
        self.rows: dict[str, ResultRow] = {}
        self._samples: dict[tuple[str, str], list[ResultSample]] = {}

    def add(self, row: ResultRow, contender: str, sample: ResultSample) -> None:
        assert sample.values is None or len(sample.values) == len(self.measures)
        self.rows[row.label] = row
        self._samples.setdefault((row.label, contender), []).append(sample)

    def is_complete(self, label: str, contenders: Sequence[str], repeats: int) -> bool:
        """Return whether every contender has enough right samples in the row."""
        return all(len(self.values(label, name, 0)) >= repeats for name in contenders)

    def forget(self, label: str) -> None:
        """Drop the samples of a row before a new measurement."""
        self._samples = {key: found for key, found in self._samples.items() if key[0] != label}

    def samples(self, label: str, contender: str) -> list[ResultSample]:
        return self._samples.get((label, contender), [])

    def values(self, label: str, contender: str, measure: int) -> list[float]:
        """Return the values of samples with right answers."""
        samples = self.samples(label, contender)
        return [sample.values[measure] for sample in samples if sample.values is not None]

    def median(self, label: str, contender: str, measure: int) -> float | None:
        values = self.values(label, contender, measure)
        return statistics.median(values) if values else None

    def ratio(self, label: str, contender: str, base: str, measure: int) -> float | None:
        """Return the ratio of medians; above 1 if `contender` is better than `base`."""
        found, other = (self.median(label, name, measure) for name in (contender, base))
        if not found or not other:
            return None
        return found / other if self.measures[measure].more_is_better else other / found

    def noise(self, label: str, contender: str) -> Disturbance | None:
        """Return the maximum of each disturbance."""
        seen = [sample.noise for sample in self.samples(label, contender)]
        if not seen:
            return None
        others = [noise.others_percent for noise in seen if noise.others_percent is not None]
        load, steal = max(n.load for n in seen), max(n.steal_percent for n in seen)
        return Disturbance(load, steal, max(others, default=None))
