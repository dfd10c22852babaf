"""Layout of the header through which compiled code accesses the columns of a rank table.

An int64 array that lives as long as its `RankTable`: pairs (address, length) of the columns, which
the views of indexer.index.header_kernels turn into arrays. `RankTable` owns the columns, keeps them
alive and rewrites the pairs on replacement; `RankColumns` describes their contents.

OPEN is of bytes, 0 or 1; WORKER_NUMBER and VERSION int64, TAINTS uint64, the others float64. Plain
numbers follow the pairs.
"""

OPEN, WEIGHT, KV_BLOCKS, BATCH_TOKENS, KV_USAGE, WORKER_NUMBER, TAINTS, VERSION = range(0, 16, 2)
OUTSIDE, SPEED = 16, 18
N_SLOTS = 20
MEDIAN_SPEED = 21
"""Bits of a float64: median of the declared speeds, tokens/s; 0 without any."""
HEADER_LENGTH = 22
