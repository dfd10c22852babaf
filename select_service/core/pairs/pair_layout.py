"""Memory layout of the header through which a kernel chooses a pair of ranks in a partition.

The header is an int64 array living as long as its `PairPlacer`.  It has plain numbers and pairs
(address, length) of arrays, as `plan_layout`.  A *link group* is a set of ranks with the same host,
the same transfer domain and the same link, so that the price of moving a token between two ranks
depends only on the two groups.

pair        type     length           meaning
GROUP       int64    slots            link group of a slot
HOST        int64    groups           host of a group, as a number, or NO_HOST if it is unknown
PRICE       float64  groups * groups  price of moving one token from group to group, in tokens of
                                      prefill; infinite where moving is not allowed
LEAST_PRICE float64  groups           smallest price of a token from another host into the group
NEXT        int64    groups           another group of the same known host, in a circle
LEAVING     float64  hosts            tokens of booked pairs that still have to leave the host
ENTERING    float64  hosts            tokens of booked pairs that still have to enter the host
BEST        float64  2 * groups       scratch: the two smallest costs of a prefill in the group
BEST_SLOT   int64    2 * groups       scratch: the ranks with these costs
ORDER       int64    groups           scratch: groups with a prefill rank, by its cost and draw
RUN_END     int64    groups           scratch: by place in ORDER, end of the run of equal costs
REACHED     float64  groups           scratch: smallest cost of a prefill for a decode rank of the
                                      group that holds nothing of the prompt, with the move; NaN
                                      before it is known
REACHED_BY  int64    groups           scratch: the rank of this prefill
RESULT      float64  N_RESULT         the choice
TOKEN_S     float64  groups           seconds that a token takes on the network link of the group;
                                      NaN means unknown
"""

GROUP, HOST, PRICE, LEAVING, ENTERING, BEST, BEST_SLOT = range(0, 14, 2)
REACHED, REACHED_BY, RESULT, LEAST_PRICE, NEXT, ORDER, RUN_END = range(14, 28, 2)
TOKEN_S = 28
CHOOSE_ADDRESS = 30
"""Address of `pair_kernels.choose_pair`; 0 before the first choice."""
HEADER_LENGTH = 31
NO_HOST = -1

# Entries of the result.  Slots are -1 where there is none; costs are infinite where nothing is
# eligible.  The first two numbers are the choice: for a local one PREFILL is -1.
(
    R_PREFILL,
    R_DECODE,
    R_LOCAL_SLOT,
    R_LOCAL_COST,
    R_REMOTE_PREFILL,
    R_REMOTE_DECODE,
    R_REMOTE_COST,
    R_MOVE_TOKENS,
    R_MOVE_COST,
    R_HOLD_COST,
    R_PREFILL_LEFT,
    R_PREFILL_WORK,
    R_PREFILL_CACHED,
    R_DECODE_WORK,
    R_DECODE_CACHED,
    R_CREDIT,
) = range(16)
N_RESULT = 16

REQUEST_PRICE = 64.0
"""Tokens for each live request of the decode rank."""
LIVE_PRICE = 0.1
"""Tokens for each token that is active on the decode rank."""
SHARE_STEP = 4.0
"""Live requests that double the price of a prefill on a decode rank."""
SHARE_MAX = 16.0
OWN_WORK_MAX = 16_384.0
"""Tokens of own work subject to the share price."""
FULL_SHARE = 0.95
"""Share of the KV cache above which active tokens cost one token each."""
BACKLOG_PRICE = 0.25
"""Weight of tokens that wait for the same link."""
