"""Bins of histograms: tokens and seconds, in equal steps of their logarithm.  Nothing else."""

import numpy as np
import numpy.typing as npt

TOKEN_BINS = 64
TOKENS_MAX = 1 << 32
"""What a longer prompt counts for; clients may say any length."""
TIME_BINS = 128
"""Twice as fine: what callers wait for is compared with a promise, which lies inside a bin."""

# Numbers of what is counted of prompts: how many, their tokens, those of them that had to be
# computed, and the histograms of both.  There are two such parts one behind the other, for ranks
# that prefill and for those that only decode.
N_PROMPTS, ISL_SUM, UNCACHED_SUM, ISL = range(4)
UNCACHED = ISL + TOKEN_BINS
PART_LENGTH = UNCACHED + TOKEN_BINS
PARTS_LENGTH = 2 * PART_LENGTH


def _edges(n: int, lowest_exponent: int) -> npt.NDArray[np.float64]:
    """20 octaves in n steps."""
    edges: npt.NDArray[np.float64] = np.exp2(np.arange(n + 1) * (20 / n) + lowest_exponent)
    return edges


TOKEN_EDGES = _edges(TOKEN_BINS, 0)
"""float64[TOKEN_BINS + 1], 1 to 2**20 tokens: a bin begins at its edge and ends before the next."""
TIME_EDGES_S = _edges(TIME_BINS, -10)
"""float64[TIME_BINS + 1], 2**-10 to 2**10 seconds.  What lies outside is in the outermost bins, as
with tokens."""
