"""Memory layout of the header through which compiled code places prompts in one partition.

The header is an int64 array living as long as its `Placer`.  It has plain numbers and pairs
(address, length) of arrays; the views of indexer.index.header_kernels turn a pair into an array
again.  `Placer` owns the arrays that no other object owns, keeps all of the arrays alive and
rewrites a pair after replacing an array.

pair        type     length              meaning
INDEX       int64                        header of the prefix index (state_kernels)
LOAD        int64                        header of the active load (load_layout)
RANKS       int64                        header of the rank table (rank_layout)
PARAMETERS  float64                      common parameters, then those of the policy
MATCHED     int32    rows * N_TIERS      matched blocks of every slot, tiers cumulated
HOLDING     uint64   rows / 64           slots with nonzero rows of MATCHED
LEADING     int64    rows                leading prompt blocks that live requests of the slot hold
RUNNING     uint64   rows / 64           slots with nonzero LEADING
KEYS        uint64   BOOKED_BLOCKS_MAX   keys of the prompt's prefixes (leading_kernels)
COSTS       float64  rows                cost of the prompt on every slot, never NaN
SUMMARY     int64    N_SUMMARY           summary of the last placement
TALLY       int64    TALLY_LENGTH        sums over all decisions, and histograms of the prompts

The number of rows is a multiple of 64, at least the number of slots of index, load and table.  The
arrays from MATCHED to SUMMARY are scratch: every placement overwrites them.
"""

from select_service.core.load.histogram_bins import PARTS_LENGTH

INDEX, LOAD, RANKS, PARAMETERS, MATCHED, HOLDING = range(0, 12, 2)
LEADING, RUNNING, KEYS, COSTS, SUMMARY, TALLY = range(12, 24, 2)
FOLLOWS_PREFILLS = 24
"""1 when bookings keep their prompts, because the policy estimates the progress of prefills."""
BLOCK_SIZE = 25
# Addresses of compiled functions: the policy's `place`, the steps common to all policies
# (placement_kernels), and the writer of the ring (decision_kernels).
PLACE_ADDRESS, MATCH_ADDRESS, CHOOSE_ADDRESS, RECORD_ADDRESS = range(26, 30)
RING = 30
"""Address and length of the header of the ring recording the decisions (decision_layout)."""
PARTITION, POLICY_NUMBER = 32, 33
"""Numbers of the partition in the ring and of the policy in the registry."""
REQUEST = 34
"""First of the numbers of the request in process, in the order below; set before a placement."""
REQUEST_ISL_TOKENS, REQUEST_BLOCKS, REQUEST_IS_PINNED, REQUEST_DRAW = range(34, 38)
REQUEST_FORMAT = "=3qd"
"""The numbers of the request in the notation of `struct`."""
HEADER_LENGTH = 38

# First parameters of every policy: the temperature of the choice, and whether requests share
# blocks.
P_TEMPERATURE, P_KV_REUSE = range(2)
N_COMMON_PARAMETERS = 2

# Entries of the summary: numbers of the chosen slot, and the best overlap of any slot.
# Blocks are cumulative over tiers; S_WORK is the own work of the prompt on the slot, in tokens.
# S_INSIDE are reusable tokens behind the last whole block; S_IS_BOUND is 1 for an upper bound.
S_EFFECTIVE, S_GPU, S_CPU, S_DISK, S_EXTERNAL, S_BEST, S_WORK, S_INSIDE, S_IS_BOUND = range(9)
N_SUMMARY = 9

# Entries of the tally: decisions without and with a booking, then sums over these in blocks, and
# the tokens that were expected in a cache, certainly and at most.
(
    T_SELECTED,
    T_RESERVED,
    T_PROMPT_BLOCKS,
    T_GPU,
    T_CPU,
    T_DISK,
    T_EXTERNAL,
    T_BEST_OVERLAP,
    T_CHOSEN_OVERLAP,
    T_EXACT_TOKENS,
    T_BOUND_TOKENS,
) = range(11)
N_TALLY = 11

T_PROMPTS = N_TALLY
"""First entry of the prompt histograms, the two parts of core.load.histogram_bins."""
TALLY_LENGTH = T_PROMPTS + PARTS_LENGTH
