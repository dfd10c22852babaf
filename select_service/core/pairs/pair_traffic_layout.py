"""Counters of pairs, int64 arrays that kernels and Python increase."""

from select_service.core.load.histogram_bins import TOKEN_BINS

# Counters of the pairs of a partition that this process booked.
(
    N_REMOTE,  # pairs on two ranks
    N_LOCAL,  # pairs on one rank
    LOCAL_TOKENS,  # prompt tokens that these ranks compute
    MOVED_TOKENS,  # prompt tokens that move to another rank
    LINK_US,  # microseconds that network links need for the moves
    UNKNOWN_LINK_TOKENS,  # moved tokens over links of unknown speed
) = range(6)
LOCAL_BINS = 6
"""First bin of the histogram of LOCAL_TOKENS."""
N_COUNTERS = LOCAL_BINS + TOKEN_BINS

# Counters of all decisions of this process, booked or not.
(
    DECIDED_REMOTE,  # decisions for two ranks
    DECIDED_LOCAL,  # decisions for a single rank
    PROMPT_TOKENS,  # tokens of the prompts
    CACHED_TOKENS,  # prompt tokens that the rank of the prefill held
) = range(4)
N_DECIDED = 4
