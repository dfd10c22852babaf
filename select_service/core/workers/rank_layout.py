"""The header through which compiled code reaches the columns of a rank table.  Nothing else.

An int64 array that lives as long as its `RankTable`: pairs (address, length) of the columns, which
the views of indexer.index.state_kernels turn into arrays again.  `RankTable` owns the columns,
keeps them alive and rewrites the pairs when it replaces them; `Columns` says what they hold.

OPEN is of bytes, 0 or 1; WORKER_NUMBER and VERSION int64, TAINTS uint64, the others float64.
Behind them stand plain numbers.
"""

OPEN, WEIGHT, KV_BLOCKS, BATCH_TOKENS, KV_USAGE, WORKER_NUMBER, TAINTS, VERSION = range(0, 16, 2)
OUTSIDE, SPEED = 16, 18
N_SLOTS = 20
USUAL_SPEED = 21
"""Bits of a float64: the median of what workers declare, in tokens per second; 0: nobody does."""
HEADER_LENGTH = 22
