"""Entering values into histograms (bins)."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled
from select_service.core.load.bins import (
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
def count_prompt(counts, at, only_decode, isl_tokens, uncached):
    """Enter a prompt into the parts that begin there.  only_decode: of its rank"""
    at += only_decode * PART_LENGTH
    counts[at + N_PROMPTS] += 1
    counts[at + ISL_SUM] += isl_tokens
    counts[at + UNCACHED_SUM] += uncached
    count_tokens(counts, at + ISL, isl_tokens)
    count_tokens(counts, at + UNCACHED, uncached)


@compiled()
def count_time(counts, at, seconds):
    """As `count_tokens`, of a time."""
    counts[at + bin_of(TIME_EDGES_S, seconds)] += 1
