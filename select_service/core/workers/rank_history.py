"""History of the ranks in a row of a rank table."""

from collections import deque
from typing import NamedTuple

from select_service.core.identity import Rank

FORMER_RANKS_MAX = 4
"""Maximum number of former ranks per row."""


class FormerRank(NamedTuple):
    """Former rank.

    version: version of the table when the rank left
    """

    version: int
    rank: Rank


class RankHistory:
    """Latest former ranks of each row; O(rows) memory."""

    def __init__(self) -> None:
        self._former_ranks: dict[int, deque[FormerRank]] = {}
        self._dropped_until: dict[int, int] = {}

    def record_departure(self, slot: int, version: int, rank: Rank) -> None:
        """Record that a rank left a row; version is higher than all earlier versions."""
        ranks = self._former_ranks.get(slot)
        if ranks is None:
            ranks = self._former_ranks[slot] = deque()
        elif len(ranks) == FORMER_RANKS_MAX:
            # Remembers up to which version answers would be wrong.
            self._dropped_until[slot] = ranks.popleft().version
        ranks.append(FormerRank(version, rank))

    def is_forgotten(self, slot: int, version: int) -> bool:
        """Return whether the history of this version was dropped."""
        return version < self._dropped_until.get(slot, 0)

    def find_former_rank(self, slot: int, version: int) -> Rank | None:
        """Return the rank of a row at a version if the rank has left since, else None."""
        for left in self._former_ranks.get(slot, ()):
            if version < left.version:
                return left.rank
        return None
