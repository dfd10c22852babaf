"""Bins of the histograms of tokens and seconds, in equal steps of the logarithm."""

import numpy as np
import numpy.typing as npt

TOKEN_BINS = 64
TOKENS_MAX = 1 << 32
"""Upper limit of a counted prompt length, because clients may send any number."""
TIME_BINS = 128
"""Number of time bins, twice as fine: waiting times are compared with promises inside a bin."""

# Entries of the prompt numbers: prompts, their tokens, the tokens that had to be
# computed, and the two histograms.  Two such parts follow one another: for prefilling
# ranks, and for ranks that only decode.
N_PROMPTS, ISL_SUM, UNCACHED_SUM, ISL = range(4)
UNCACHED = ISL + TOKEN_BINS
PART_LENGTH = UNCACHED + TOKEN_BINS
PARTS_LENGTH = 2 * PART_LENGTH


def _make_edges(n: int, lowest_exponent: int) -> npt.NDArray[np.float64]:
    """Return the edges of n bins over 20 octaves."""
    edges: npt.NDArray[np.float64] = np.exp2(np.arange(n + 1) * (20 / n) + lowest_exponent)
    return edges


TOKEN_EDGES = _make_edges(TOKEN_BINS, 0)
"""float64[TOKEN_BINS + 1], 1 to 2**20 tokens: a bin begins at its edge and ends before the next."""
TIME_EDGES_S = _make_edges(TIME_BINS, -10)
"""float64[TIME_BINS + 1], 2**-10 to 2**10 seconds.  The outermost bins also have all values beyond,
for tokens as well.
"""
