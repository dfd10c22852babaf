"""Index of the KV blocks that engines hold.

The index works with slots, tiers and hashes; workers, models and HTTP are above this package.
Sockets and threads are in `sockets`; `jit` compiles, stores and links the machine code of kernels.
"""
