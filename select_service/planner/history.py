"""Numbers of many ticks in a bounded table, thinned by minima and maxima: peaks stay."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Table: TypeAlias = NDArray[np.float64]
"""float64 [rows, columns]; column 0 is time in seconds and rises. NaN: not known."""

_GROUP = 4
"""Rows of which two stay."""
_STEP = 32
"""Rows that are thinned beside one that is added: no row takes long."""


class History:
    """When it is full every second row goes, a few with each row that is added.

    While that is under way the rows `[kept, next)` are gone already.
    """

    def __init__(self, columns: int, rows_max: int) -> None:
        assert columns > 0
        assert rows_max >= _GROUP
        self._rows_max = rows_max
        self._places_max = rows_max + rows_max // _STEP + 1
        """With rows that are added while others are thinned."""
        self._table = np.empty((min(256, self._places_max), columns))
        self._end = 0
        self._kept = self._next = self._until = 0
        """Of the thinning, whose last row is before `until`; all 0: there is none."""

    def __len__(self) -> int:
        return self._end - (self._next - self._kept)

    def add(self, row: Sequence[float | None]) -> None:
        """None: not known.  O(columns)"""
        if not self._until and self._end >= self._rows_max:
            self._until = self._end
        if self._until:
            self._thin_on()
        if self._end == len(self._table):
            self._grow()
        self._table[self._end] = [np.nan if value is None else value for value in row]
        self._end += 1

    def table(self) -> Table:
        """A copy."""
        return np.concatenate((self._table[: self._kept], self._table[self._next : self._end]))

    def _thin_on(self) -> None:
        rows = self._table[self._next : min(self._next + _STEP, self._until)]
        thin = thinned(rows, -(-len(rows) // _GROUP))
        self._table[self._kept : self._kept + len(thin)] = thin
        self._kept += len(thin)
        self._next += len(rows)
        if self._next < self._until:
            return
        added = self._table[self._next : self._end].copy()
        self._end = self._kept + len(added)
        self._table[self._kept : self._end] = added
        self._kept = self._next = self._until = 0

    def _grow(self) -> None:
        places = min(2 * len(self._table), self._places_max)
        grown = np.empty((places, self._table.shape[1]))
        grown[: self._end] = self._table
        self._table = grown

    def check_invariants(self) -> None:
        """For tests."""
        assert 0 <= self._kept <= self._next <= max(self._until, 0) <= self._end
        assert self._end <= len(self._table) <= self._places_max
        assert len(self) <= self._rows_max
        assert np.all(np.diff(self.table()[:, 0]) >= 0.0)


def thinned(table: Table, groups: int) -> Table:
    """At most two rows for each of so many groups of neighbours, which are of equal size.

    Each column keeps its own least and greatest value of a group, in the order in which they came;
    times are those of the first and the last row. A table that is small enough stays as it is.
    """
    rows, columns = table.shape
    if rows <= 2 * groups:
        return table
    size = -(-rows // groups)
    padded = np.full((-(-rows // size) * size, columns), np.nan)
    padded[:rows] = table
    grouped = padded.reshape(-1, size, columns)
    low = np.where(np.isnan(grouped), np.inf, grouped).argmin(axis=1)
    high = np.where(np.isnan(grouped), -np.inf, grouped).argmax(axis=1)
    places = np.stack((np.minimum(low, high), np.maximum(low, high)), axis=1)
    kept = np.take_along_axis(grouped, places, axis=1)
    return kept.reshape(-1, columns)
