"""The header through which compiled code places prompts in one partition.  Nothing else.

An int64 array that lives as long as its `Placing`: pairs (address, length) of arrays, which the
views of indexer.index.state_kernels turn into arrays again, and plain numbers.  `Placing` owns what
is not another's, keeps all of it alive and rewrites a pair when it replaces an array.

pair        type     length              meaning
INDEX       int64                        header of the prefix index (state_kernels)
LOAD        int64                        header of the active load (load_layout)
RANKS       int64                        header of the rank table (rank_layout)
PARAMETERS  float64                      of the policy, after the common ones below
MATCHED     int32    rows * N_TIERS      matched blocks of every slot, tiers cumulated
HOLDING     uint64   rows / 64           slots whose rows of MATCHED are not 0
LEADING     int64    rows                leading prompt blocks that live requests of the slot hold
RUNNING     uint64   rows / 64           slots whose LEADING is not 0
KEYS        uint64   BOOKED_BLOCKS_MAX   keys of the prefixes of the prompt (leading_kernels)
COSTS       float64  rows                what the prompt costs on every slot, never NaN
SUMMARY     int64    N_SUMMARY           of the last placement
TALLY       int64    TALLY_LENGTH        of all decisions, and the histograms of their prompts

Rows are a multiple of 64, at least as many as the index, the load and the table have slots.  From
MATCHED to SUMMARY it is scratch, which a placement fills and the next one overwrites.
"""

from select_service.core.load.bins import PARTS_LENGTH

INDEX, LOAD, RANKS, PARAMETERS, MATCHED, HOLDING = range(0, 12, 2)
LEADING, RUNNING, KEYS, COSTS, SUMMARY, TALLY = range(12, 24, 2)
FOLLOWS = 24
"""1 = bookings keep their prompts, because the policy follows the progress of prefills."""
BLOCK_SIZE = 25
# Addresses: of the `place` of the policy, of what all policies call (placement_kernels), and of
# what writes into the ring (decision_kernels).
PLACE_AT, LOOK_AT, CHOOSE_AT, RECORD_AT = range(26, 30)
RING = 30
"""Address and length of the header of the ring that keeps its decisions (decision_layout)."""
PARTITION, NAMED_POLICY = 32, 33
"""Numbers of the partition in the ring, and of its policy (policies)."""
HEADER_LENGTH = 34

# Parameters that those of every policy begin with: the temperature of the choice, and whether
# requests share blocks.
P_TEMPERATURE, P_KV_REUSE = range(2)
N_COMMON_PARAMETERS = 2

# Entries of the summary: of the chosen slot, and of the best there was.
# Blocks are cumulative; S_WORK is the own work of the prompt there, in tokens.
S_EFFECTIVE, S_GPU, S_CPU, S_DISK, S_EXTERNAL, S_BEST, S_WORK = range(7)
N_SUMMARY = 7

# Entries of the tally: decisions without and with a booking, and sums over them in blocks.
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
) = range(9)
N_TALLY = 9

T_PROMPTS = N_TALLY
"""Behind them what is counted of their prompts, the two parts of core.load.bins."""
TALLY_LENGTH = T_PROMPTS + PARTS_LENGTH
