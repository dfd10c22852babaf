"""Entering values into histograms (bins)."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled
from select_service.core.load.bins import TIME_EDGES_S, TOKEN_EDGES


@compiled()
def bin_of(edges, value):
    """The last bin whose edge is not above the value; the first one for what is below all."""
    low, high = 0, edges.shape[0] - 1
    while high - low > 1:
        middle = (low + high) >> 1
        if edges[middle] <= value:
            low = middle
        else:
            high = middle
    return low


@compiled()
def count_tokens(counts, at, tokens):
    """Enter a length into the histogram that begins there."""
    counts[at + bin_of(TOKEN_EDGES, float(tokens))] += 1


@compiled()
def count_time(counts, at, seconds):
    """As `count_tokens`, of a time."""
    counts[at + bin_of(TIME_EDGES_S, seconds)] += 1
