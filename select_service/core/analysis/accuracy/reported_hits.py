"""Cached tokens that callers report from their engines, compared with the predictions."""

from collections.abc import Iterator
from typing import NamedTuple
from weakref import WeakKeyDictionary

from indexer.index.slot_writer import SlotWriter
from select_service.core.identity import Rank


class ReportedSums(NamedTuple):
    """Sums over the reports of a rank, in tokens.

    predicted, cached: expected and reported tokens
    over, under: expected and not cached, and the reverse
    over_claims: reports with at least half a block less than expected
    """

    reports: int = 0
    predicted: int = 0
    cached: int = 0
    over: int = 0
    under: int = 0
    over_claims: int = 0

    def __add__(self, other: tuple[int, ...]) -> "ReportedSums":  # type: ignore[override]
        return ReportedSums(*(mine + its for mine, its in zip(self, other, strict=True)))


class ReportedHits:
    """Reports by rank; used by the event loop thread only."""

    def __init__(self) -> None:
        self._ranks: WeakKeyDictionary[SlotWriter, tuple[Rank, ReportedSums]] = WeakKeyDictionary()
        """Sums by index writer; a rank with a restarted index has a new writer."""
        self.total = ReportedSums()
        """Sums over all ranks since the start, which only grow."""

    def add_report(
        self, writer: SlotWriter, rank: Rank, tokens: tuple[int, int], block_size: int
    ) -> bool:
        """Add a report; return whether the prediction was at least half a block too long.

        tokens: expected tokens, reported tokens
        """
        predicted, cached = tokens
        over, under = max(0, predicted - cached), max(0, cached - predicted)
        is_over_claim = 2 * over >= block_size
        report = 1, predicted, cached, over, under, int(is_over_claim)
        _, sums = self._ranks.get(writer, (rank, ReportedSums()))
        self._ranks[writer] = rank, sums + report
        self.total += report
        return is_over_claim

    def sums_of(self, writer: SlotWriter) -> ReportedSums | None:
        """Return the sums of a rank; None without reports."""
        found = self._ranks.get(writer)
        return None if found is None else found[1]

    def iterate_ranks(self) -> Iterator[tuple[Rank, ReportedSums]]:
        """Iterate over the ranks with reports."""
        return iter(list(self._ranks.values()))
