"""Numbers of many ticks in a bounded table, thinned by minima and maxima: peaks stay."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Table: TypeAlias = NDArray[np.float64]
"""float64 [rows, columns]; column 0 is time in seconds and rises. NaN: not known."""

_GROUP = 4
"""Rows of which two stay."""


class History:
    """When it is full every second row goes, O(rows x columns), once in rows / 2 rows."""

    def __init__(self, columns: int, rows_max: int) -> None:
        assert columns > 0
        assert rows_max >= _GROUP
        self._rows_max = rows_max
        self._table = np.empty((min(256, rows_max), columns))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, row: Sequence[float | None]) -> None:
        """None: not known."""
        if self._count == len(self._table):
            self._make_room()
        self._table[self._count] = [np.nan if value is None else value for value in row]
        self._count += 1

    def table(self) -> Table:
        """A copy."""
        return self._table[: self._count].copy()

    def _make_room(self) -> None:
        if len(self._table) < self._rows_max:
            grown = np.empty((min(2 * len(self._table), self._rows_max), self._table.shape[1]))
        else:
            thin = thinned(self._table, self._rows_max // _GROUP)
            grown = np.empty_like(self._table)
            grown[: len(thin)] = thin
            self._table, self._count = grown, len(thin)
            return
        grown[: self._count] = self._table
        self._table = grown

    def check_invariants(self) -> None:
        """For tests."""
        assert 0 <= self._count <= len(self._table) <= self._rows_max
        assert np.all(np.diff(self._table[: self._count, 0]) >= 0.0)


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
