"""Memory layout of the header through which compiled code reaches the load of a partition.

The header is an int64 array living as long as its `ActiveLoad`.  It has plain numbers and pairs
(address, length) of arrays; the views of indexer.index.header_kernels turn a pair into an array
again.  `ActiveLoad` and its `GrowingTable`s own the arrays, keep them alive and rewrite a pair
after replacing an array.

pair        type     length         meaning
TOTALS      int64    n_slots * 4    sums of each slot, N_TOTALS numbers a slot
FRACTIONS   float64  n_slots        sum of the weights of the slot's fractional blocks
REFERENCES  uint64                  three tables (table_kernels); contents: see kernels
PREFIXES    uint64
HOLDERS     uint64
NEWEST      int64    n_slots        row of the newest reservation of each slot (ledger_layout)
LEDGER      int64                   header of the ledger; empty before the first booking
WORK_BOOKED      int64    n_slots        own work of the slot's unfinished prefills, in tokens
WORK_LEFT        int64    n_slots        WORK_BOOKED less the estimated progress of the oldest
prefill
PREFILLS    int64    n_slots * 8    unfinished prefills, N_PREFILLS numbers a slot
WITH_PROGRESS    uint64   rows / 64      slots with a prompt of the oldest prefill, so that the
index
                                    shows the progress
PROGRESS_STALE       uint64   rows / 64      slots in WITH_PROGRESS that need a new walk in any case
ONLY_DECODE int64    n_slots        1 for a rank that decodes requests prefilled elsewhere
"""

TOTALS, FRACTIONS = 0, 2
N_SLOTS = 4

TABLE_NUMBERS = 8
REFERENCES, PREFIXES, HOLDERS = range(8, 8 + 3 * TABLE_NUMBERS, TABLE_NUMBERS)
# Numbers of a table, from its position:
OLD_TABLE = 2  # previous table while rows are moving, else empty
N_ENTRIES = 4  # number of entries
MOVED_ROWS = 5  # rows of OLD that are done
MOVED_AT_LEAST = 6  # minimum number of rows moved in a step
MEMORY_TO_RELEASE = 7  # 1 when the owner has memory to release

NEWEST = 8 + 3 * TABLE_NUMBERS
LEDGER, WORK_BOOKED, WORK_LEFT, PREFILLS, WITH_PROGRESS, PROGRESS_STALE, ONLY_DECODE = range(
    NEWEST + 2, NEWEST + 16, 2
)
DRAINED_TOKENS = (
    NEWEST + 16
)  # running sums: prefill tokens completed or released, prompt blocks freed
DRAINED_BLOCKS = NEWEST + 17
SEEN_CHANGES = NEWEST + 18
"""CHANGED of the index at the last look at the progress."""
REPORTED_SHARE = NEWEST + 19
"""Share of ended prefills with a reported end, float64 bits, over the last hundred or so."""
HASH_SEED = NEWEST + 20
"""Random number of this load, in the keys of the tables."""
HEADER_LENGTH = NEWEST + 21

# Numbers of a slot in TOTALS.
PREFILL_TOKENS, REQUESTS, WHOLE_BLOCKS, FRACTIONAL_BLOCKS = range(4)
N_TOTALS = 4

# Numbers of a slot in PREFILLS.
(
    OLDEST,  # rows of the ledger, 0 means none
    YOUNGEST,
    DONE_TOKENS,  # completed tokens of the oldest
    BLOCKS_THERE,  # leading prompt blocks that the index has of the slot
    LAST_NODE,  # index node of the last such block, 0 means none
    NEXT_PROMPT_CHUNK,  # chunk of the prompt with the next block
    SEEN_LOST,  # LOST and LIVE of the slot in the index at the last look
    SEEN_LIVE,
) = range(8)
N_PREFILLS = 8
NEVER_SEEN = -1
"""Value of SEEN_LOST that makes the known progress of the oldest prefill invalid."""
