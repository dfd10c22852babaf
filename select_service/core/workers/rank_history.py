"""Who stood in a row of a rank table before the rank that stands there now."""

from collections import deque
from typing import NamedTuple

from select_service.core.identity import Rank

REMEMBERED_MAX = 4
"""Ranks that left a row."""


class Left(NamedTuple):
    """version: of the table when it left"""

    version: int
    rank: Rank


class RankHistory:
    """The last ranks that left each row; O(rows)."""

    def __init__(self) -> None:
        self._left: dict[int, deque[Left]] = {}
        self._forgotten: dict[int, int] = {}

    def left(self, slot: int, version: int, rank: Rank) -> None:
        """A rank stands there no more.  version: of the table, higher than every one before"""
        ranks = self._left.get(slot)
        if ranks is None:
            ranks = self._left[slot] = deque()
        elif len(ranks) == REMEMBERED_MAX:
            self._forgotten[slot] = ranks.popleft().version
        ranks.append(Left(version, rank))

    def is_forgotten(self, slot: int, version: int) -> bool:
        """Does nobody know any more who stood there?"""
        return version < self._forgotten.get(slot, 0)

    def find(self, slot: int, version: int) -> Rank | None:
        """Who stood there when the table had this version and has left since; None: nobody."""
        for left in self._left.get(slot, ()):
            if version < left.version:
                return left.rank
        return None
