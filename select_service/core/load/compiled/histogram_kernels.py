"""Counting of values in histograms (bins)."""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would
# prove nothing.

from indexer.jit.decorators import compiled
from select_service.core.load.histogram_bins import (
    ISL,
    ISL_SUM,
    N_PROMPTS,
    PART_LENGTH,
    TIME_EDGES_S,
    TOKEN_EDGES,
    UNCACHED,
    UNCACHED_SUM,
)


@compiled()
def find_bin(edges, value):
    """Return the last bin with an edge up to the value; the first bin for values below all
    edges.
    """
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
    """Count a length in the histogram starting at `at`."""
    counts[at + find_bin(TOKEN_EDGES, float(tokens))] += 1


@compiled()
def count_prompt(counts, at, only_decode, isl_tokens, uncached):
    """Count a prompt in the prompt numbers starting at `at`.

    only_decode: 1 for a rank that only decodes, else 0
    """
    at += only_decode * PART_LENGTH
    counts[at + N_PROMPTS] += 1
    counts[at + ISL_SUM] += isl_tokens
    counts[at + UNCACHED_SUM] += uncached
    count_tokens(counts, at + ISL, isl_tokens)
    count_tokens(counts, at + UNCACHED, uncached)


@compiled()
def count_time(counts, at, seconds):
    """Count a time in the histogram starting at `at`."""
    counts[at + find_bin(TIME_EDGES_S, seconds)] += 1
