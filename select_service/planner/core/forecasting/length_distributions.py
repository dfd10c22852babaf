"""Length distributions over the recent windows: a single window has too few requests for its tail.

Whether 3 or 5 % of the prompts are too long decides about half of the replicas, and a window of a
hundred requests cannot tell. Each window counts half as much as a window `HALF_LIFE_S` later.
"""

from math import ceil, log2

from msgspec.structs import replace

from select_service.planner.core.tick_input import LengthBins, PairWindow, TrafficWindow

HALF_LIFE_S = 300.0
BINS, TOKENS_MAX = 128, 1 << 20
"""Number of bins, equally wide in the logarithm and finer than the bins of selectors."""


NO_LENGTHS = LengthBins(means=(), counts=())


class FadingHistogram:
    """Histogram of lengths that fades."""

    def __init__(self) -> None:
        self._counts = [0.0] * BINS
        self._tokens = [0.0] * BINS

    def add_bins(self, found: LengthBins, fading: float) -> LengthBins:
        """Add a window's histogram and return the sum.

        fading: part of the old counts that remains
        """
        self._counts = [count * fading for count in self._counts]
        self._tokens = [tokens * fading for tokens in self._tokens]
        for mean, count in zip(found.means, found.counts, strict=True):
            # The upper edge of a bin belongs to the bin.
            at = min(BINS - 1, max(0, ceil(log2(max(1.0, mean)) * BINS / log2(TOKENS_MAX)) - 1))
            self._counts[at] += count
            self._tokens[at] += mean * count
        pairs = zip(self._tokens, self._counts, strict=True)
        # The mean of a bin's values is more exact than the middle of the bin.
        known = [(tokens / count, count) for tokens, count in pairs if count > 0.0]
        return LengthBins(means=tuple(m for m, _ in known), counts=tuple(c for _, c in known))


class RecentDistributions:
    """Length distributions and arrival variation of a deployment over recent windows."""

    def __init__(self, interval_s: float) -> None:
        """Derive the fading from `interval_s`, the seconds between two windows."""
        self._fading: float = 0.5 ** (interval_s / HALF_LIFE_S)
        self._uncached, self._context = FadingHistogram(), FadingHistogram()
        self._local, self._remote = FadingHistogram(), FadingHistogram()
        self._variation = self._requests = 0.0

    def add_window(self, traffic: TrafficWindow) -> TrafficWindow:
        """Return the window with the distributions of all recent windows; called once a window."""
        found = {
            name: lengths.add_bins(bins, self._fading)
            for name, lengths, bins in (
                ("uncached_isl", self._uncached, traffic.uncached_isl),
                ("context", self._context, traffic.context),
            )
            if bins is not None
        }
        variation, pairs = self._update_variation(traffic), self._add_pairs(traffic.pairs)
        return replace(traffic, arrival_variation=variation, pairs=pairs, **found)

    def _add_pairs(self, pairs: PairWindow | None) -> PairWindow | None:
        """Return the pairs with the lengths of all recent windows."""
        if pairs is None:
            return None
        local, remote = (
            lengths.add_bins(bins or NO_LENGTHS, self._fading)
            for lengths, bins in (
                (self._local, pairs.local_uncached),
                (self._remote, pairs.remote_uncached),
            )
        )
        return replace(
            pairs,
            local_uncached=local if local.counts else None,
            remote_uncached=remote if remote.counts else None,
        )

    def _update_variation(self, traffic: TrafficWindow) -> float | None:
        """Return the arrival variation, weighted by requests."""
        # Both sums fade alike, so windows without requests do not change the ratio.
        self._variation *= self._fading
        self._requests *= self._fading
        if traffic.arrival_variation is not None and traffic.requests:
            self._variation += traffic.arrival_variation * traffic.requests
            self._requests += traffic.requests
        return self._variation / self._requests if self._requests else None
