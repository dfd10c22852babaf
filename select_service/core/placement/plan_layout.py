"""Memory layout of the header through which compiled code places prompts in a partition.

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
ASSUMED_MATCHED int32 rows * N_TIERS     match of the assumed blocks of every slot
ASSUMED_HOLDING uint64 rows / 64         slots with nonzero rows of ASSUMED_MATCHED
ASSUMED_BLOCKS  int32  rows              device blocks in MATCHED that are only assumed
OWN_WORKS   float64  rows                tokens of the prompt that each slot would compute, for
                                         policies that price copies
SUMMARY     int64    N_SUMMARY           summary of the last placement
TALLY       int64    TALLY_LENGTH        sums over all decisions, and histograms of the prompts
ASSUMED_INDEX   int64                    header of the index of assumed blocks; empty without one
SHARED      float64  slots * fields      comparison of the slots with a shared cache
                                         (shared_layout); empty without such tokens

The number of rows is a multiple of 64, at least the number of slots of index, load and table.  The
arrays from MATCHED to SUMMARY are scratch: every placement overwrites them.
"""

from select_service.core.load.histogram_bins import PARTS_LENGTH

INDEX, LOAD, RANKS, PARAMETERS, MATCHED, HOLDING = range(0, 12, 2)
LEADING, RUNNING, KEYS, COSTS = range(12, 20, 2)
ASSUMED_MATCHED, ASSUMED_HOLDING, ASSUMED_BLOCKS, OWN_WORKS = range(20, 28, 2)
SUMMARY, TALLY = range(28, 32, 2)
FOLLOWS_PREFILLS = 32
"""1 when bookings keep their prompts, because the policy estimates the progress of prefills."""
BLOCK_SIZE = 33
# Addresses of compiled functions: the policy's `place`, the steps common to all policies
# (placement_kernels), and the writer of the ring (decision_kernels).
PLACE_ADDRESS, MATCH_ADDRESS, CHOOSE_ADDRESS, RECORD_ADDRESS = range(34, 38)
RING = 38
"""Address and length of the header of the ring recording the decisions (decision_layout)."""
PARTITION, POLICY_NUMBER = 40, 41
"""Numbers of the partition in the ring and of the policy in the registry."""
REQUEST = 42
"""First of the numbers of the request in process, in the order below; set before a placement."""
REQUEST_ISL_TOKENS, REQUEST_BLOCKS, REQUEST_IS_PINNED, REQUEST_DRAW = range(42, 46)
REQUEST_FORMAT = "=3qd"
"""The numbers of the request in the notation of `struct`."""
ASSUMES = 46
"""Sum of the bits below; 0 while nothing is assumed, so that a match makes only this test."""
HAS_ASSUMED_INDEX, HAS_FLOOR, HAS_ASSUMED_ROWS = 1, 2, 4
"""Bits of ASSUMES: an index of assumed blocks, a floor of the next match, rows left by the last."""
ASSUMED_INDEX = 47
FLOOR_SLOT, FLOOR_TOKENS = 49, 50
"""Slot that is assumed to hold at least so many tokens of the next prompt, for one match."""
SHARED = 51
LEAST_WORK = 53
"""Least own work of all candidates, for policies with costs that depend on it; otherwise 0."""
HEADER_LENGTH = 54

# First parameters of every policy: the temperature of the choice, and whether requests share
# blocks.
P_TEMPERATURE, P_KV_REUSE = range(2)
N_COMMON_PARAMETERS = 2

# Entries of the summary: numbers of the chosen slot, and the best overlap of any slot.
# Blocks are cumulative over tiers; S_WORK is the own work of the prompt on the slot, in tokens.
# S_INSIDE are reusable tokens behind the last whole block; S_CERTAINTY is that of the
# match (reuse_layout);
# S_ASSUMED are the device blocks that are only assumed.
(
    S_EFFECTIVE,
    S_GPU,
    S_CPU,
    S_DISK,
    S_EXTERNAL,
    S_BEST,
    S_WORK,
    S_INSIDE,
    S_CERTAINTY,
    S_ASSUMED,
) = range(10)
N_SUMMARY = 10

# Entries of the tally: decisions without and with a booking, then sums over these in blocks, and
# the tokens that were expected in a cache, by the certainty of the match and by
# assumption.
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
    T_LEAST_TOKENS,
    T_UNCERTAIN_TOKENS,
    T_ASSUMED_TOKENS,
) = range(14)
N_TALLY = 14

T_PROMPTS = N_TALLY
"""First entry of the prompt histograms, the two parts of core.load.histogram_bins."""
TALLY_LENGTH = T_PROMPTS + PARTS_LENGTH
