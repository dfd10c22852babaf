"""What every policy has in common: what it is given, and what it says of a placement.

Rows of terms that others read, the summary, and the arguments of a `place`:

    index       header of the prefix index, which `match` takes
    path        uint64[n_blocks], block hashes;  sequence: uint64[n], sequence hashes
    load        header of the active load, see load_layout
    eligible    bool[n_slots];  weight: float64[n_slots];  factors: float64[n_slots] or empty: all 1
    parameters  float64[n], as the policy makes them of the configuration
    isl_tokens  length of the prompt;  pinned: has the request named its rank?
    draw        uniform in [0, 1)

and what it fills for every slot, as far as eligible reaches (all have as many slots as the index at
least):

    matched     int32[>= n_slots, 4], cumulative matched blocks after GPU, CPU, DISK, EXTERNAL
    blocks      int64[2, n_slots]: active blocks, and the run of leading blocks that are live
    terms       float64[n, n_slots], first the rows below, then its own
    summary     int64[N_SUMMARY]

It returns the slot that it chose, NOBODY when none is eligible.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import compiled
from indexer.index.state_kernels import HASHES, HEADER

I64 = np.int64

NOBODY = -1

# Rows that the terms of every policy begin with: prompt tokens that the rank has cached and those
# that it would prefill; blocks that it would have active with the prompt; what it costs, never NaN.
CACHED_TOKENS, EFFECTIVE_PREFILL_TOKENS, DECODE, COST = range(4)
N_COMMON_TERMS = 4

# Entries of the summary int64[N_SUMMARY]: of the chosen slot, and of the best there was.
S_EFFECTIVE, S_GPU, S_CPU, S_DISK, S_EXTERNAL, S_BEST = range(6)
N_SUMMARY = 6

PLACE = (
    f"int64({HEADER}, {HASHES}, {HASHES}, {HEADER}, boolean[::1], float64[::1], float64[::1],"
    " float64[::1], float64, boolean, float64, int32[:, ::1], int64[:, ::1], float64[:, ::1],"
    " int64[::1])"
)


@compiled()
def summarise(matched, eligible, terms, chosen, summary):
    """Fill the summary.  chosen: a slot or NOBODY, which leaves the entries of the slot alone."""
    best = I64(0)
    for slot in range(eligible.shape[0]):
        if eligible[slot]:
            best = max(best, I64(matched[slot, 3]))
    summary[S_BEST] = best
    if chosen != NOBODY:
        summary[S_EFFECTIVE] = I64(terms[EFFECTIVE_PREFILL_TOKENS, chosen])
        for tier in range(4):
            summary[S_GPU + tier] = matched[chosen, tier]
