"""Bounded table of numbers of many ticks, thinned by minima and maxima so that peaks remain."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Table: TypeAlias = NDArray[np.float64]
"""float64 [rows, columns]; column 0 is time in seconds and rises. NaN means unknown."""

_GROUP_ROWS = 4
"""Number of rows of which two remain."""
_STEP_ROWS = 32
"""Number of rows thinned for each added row, so that no addition takes long."""


class ThinnedHistory:
    """Bounded table. When full, every second row is dropped, a few with each added row.

    During the thinning the rows `[kept, next)` are already dropped.
    """

    def __init__(self, columns: int, rows_max: int) -> None:
        assert columns > 0
        assert rows_max >= _GROUP_ROWS
        self._rows_max = rows_max
        # Thinning spreads over many additions, so rows arrive before the old ones are dropped: the
        # table needs room for one added row per step of the thinning.
        self._places_max = rows_max + rows_max // _STEP_ROWS + 1
        """Capacity including the rows added during a thinning."""
        self._table = np.empty((min(256, self._places_max), columns))
        self._end = 0
        self._kept = self._next = self._until = 0
        """Bounds of the thinning, with its last row before `until`; all 0 without a thinning."""

    def __len__(self) -> int:
        return self._end - (self._next - self._kept)

    def add_row(self, row: Sequence[float | None]) -> None:
        """Add a row; None means unknown.  O(columns)"""
        if not self._until and self._end >= self._rows_max:
            self._until = self._end
        if self._until:
            self._continue_thinning()
        if self._end == len(self._table):
            self._grow_table()
        self._table[self._end] = [np.nan if value is None else value for value in row]
        self._end += 1

    def copy_table(self) -> Table:
        """Return a copy of the table."""
        # During a thinning the rows between `_kept` and `_next` are garbage, so the copy leaves
        # them out.
        return np.concatenate((self._table[: self._kept], self._table[self._next : self._end]))

    def _continue_thinning(self) -> None:
        """Thin a few more rows; at the end close the gap."""
        rows = self._table[self._next : min(self._next + _STEP_ROWS, self._until)]
        thin = thin_table(rows, -(-len(rows) // _GROUP_ROWS))
        self._table[self._kept : self._kept + len(thin)] = thin
        self._kept += len(thin)
        self._next += len(rows)
        if self._next < self._until:
            return
        # The ranges overlap: without a copy numpy could overwrite rows before they are moved.
        added = self._table[self._next : self._end].copy()
        self._end = self._kept + len(added)
        self._table[self._kept : self._end] = added
        self._kept = self._next = self._until = 0

    def _grow_table(self) -> None:
        """Double the memory of the table."""
        places = min(2 * len(self._table), self._places_max)
        grown = np.empty((places, self._table.shape[1]))
        grown[: self._end] = self._table
        self._table = grown


def thin_table(table: Table, groups: int) -> Table:
    """Return at most two rows for each of so many equal groups of neighbours.

    Each column keeps its own minimum and maximum of a group, in order; times come from the first
    and the last row. A small enough table is returned as is.
    """
    rows, columns = table.shape
    if rows <= 2 * groups:
        return table
    size = -(-rows // groups)
    padded = np.full((-(-rows // size) * size, columns), np.nan)
    padded[:rows] = table
    grouped = padded.reshape(-1, size, columns)
    # nanargmin fails on a group of only NaN, hence the replacement by infinities: such a group then
    # picks its first row, where NaN stays NaN.
    low = np.where(np.isnan(grouped), np.inf, grouped).argmin(axis=1)
    high = np.where(np.isnan(grouped), -np.inf, grouped).argmax(axis=1)
    # Sorted by position, so that times stay ascending and a peak stays before its dip.
    places = np.stack((np.minimum(low, high), np.maximum(low, high)), axis=1)
    kept = np.take_along_axis(grouped, places, axis=1)
    return kept.reshape(-1, columns)
