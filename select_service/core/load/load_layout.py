"""The header through which compiled code reaches the load of one partition.  Nothing else.

An int64 array that lives as long as its `ActiveLoad`: pairs (address, length) of arrays, which the
views of indexer.index.state_kernels turn into arrays again, and plain numbers.  `ActiveLoad` and
its `GrowingTable`s own the arrays, keep them alive and rewrite a pair when they replace one.

pair        type     length         meaning
TOTALS      int64    n_slots * 4    sums of each slot, N_TOTALS numbers a slot
FRACTIONS   float64  n_slots        weights of its blocks that are not whole
REFERENCES  uint64                  three tables (table_kernels); what they hold: kernels
PREFIXES    uint64
HOLDERS     uint64
NEWEST      int64    n_slots        row of the newest reservation of each slot (ledger_layout)
LEDGER      int64                   header of the ledger that books here; nothing before it does
BOOKED      int64    n_slots        own work of the slot's unfinished prefills, in tokens
LEFT        int64    n_slots        the same, less what is known to be done of the oldest
PREFILLS    int64    n_slots * 8    its unfinished prefills, N_PREFILLS numbers a slot
FOLLOWED    uint64   rows / 64      slots whose oldest prefill has its prompt, so that its progress
                                    can be seen in the index
STALE       uint64   rows / 64      those of them that have to be looked at, whatever the index says
ONLY_DECODE int64    n_slots        1: its rank does the decoding of requests that others prefill
"""

TOTALS, FRACTIONS = 0, 2
N_SLOTS = 4

TABLE_NUMBERS = 8
REFERENCES, PREFIXES, HOLDERS = range(8, 8 + 3 * TABLE_NUMBERS, TABLE_NUMBERS)
# From where a table begins:
OLD = 2  # the table before it, while rows still move; else nothing
USED = 4  # entries
MOVED_ROWS = 5  # rows of OLD that need not be looked at any more
MOVED_AT_LEAST = 6  # rows that one step moves
RETIRED = 7  # 1 = the owner has memory to give back

NEWEST = 8 + 3 * TABLE_NUMBERS
LEDGER, BOOKED, LEFT, PREFILLS, FOLLOWED, STALE, ONLY_DECODE = range(NEWEST + 2, NEWEST + 16, 2)
DRAINED_TOKENS = NEWEST + 16  # running sums: prefill tokens done or given up, prompt blocks freed
DRAINED_BLOCKS = NEWEST + 17
MUTEX = NEWEST + 18
"""Address of the lock under which all of it but NEWEST and sums is changed (indexer.mutex); 0: none
is needed."""
SEEN = NEWEST + 19
"""CHANGED of the index when progress was looked at."""
REPORTED = NEWEST + 20
"""Bits of a float64: the share of prefills whose end the callers reported, of the last hundred or
so that ended."""
HEADER_LENGTH = NEWEST + 21

# Numbers of a slot in TOTALS.
PREFILL_TOKENS, REQUESTS, WHOLE_BLOCKS, FRACTIONAL_BLOCKS = range(4)
N_TOTALS = 4

# Numbers of a slot in PREFILLS.
(
    OLDEST,  # rows of the ledger, 0: none
    YOUNGEST,
    DONE,  # tokens of the oldest
    BLOCKS_THERE,  # leading blocks of its prompt that the index has of the slot
    NODE,  # of the last of them, 0: none
    CHUNK,  # where in its prompt the next stands
    SEEN_LOST,  # LOST and LIVE of the slot in the index when that was looked at
    SEEN_LIVE,
) = range(8)
N_PREFILLS = 8
NEVER = -1
"""Of SEEN_LOST: what is known of the oldest counts no more."""
