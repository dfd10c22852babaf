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
DRAINED_TOKENS = NEWEST + 2  # running sums: prefill tokens done or given up, prompt blocks freed
DRAINED_BLOCKS = NEWEST + 3
MUTEX = NEWEST + 4
"""Address of the lock under which all of it but NEWEST and sums is changed (indexer.mutex); 0: none
is needed."""
HEADER_LENGTH = NEWEST + 5

# Numbers of a slot in TOTALS.
PREFILL_TOKENS, REQUESTS, WHOLE_BLOCKS, FRACTIONAL_BLOCKS = range(4)
N_TOTALS = 4
