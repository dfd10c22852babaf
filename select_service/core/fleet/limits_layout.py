"""What kernels of other threads are told of the gate of a partition: `Partition.limits`, float64.

DECODE_MAX, PREFILL_MAX, ROOM_MAX and BATCHES_MAX are those of admission.busy_kernels.free_ranks, of
requests that say nothing but their prompt.  They count while IS_SAID is not 0; otherwise the gate
has to be asked about each request.
"""

DECODE_MAX, PREFILL_MAX, ROOM_MAX, BATCHES_MAX, IS_SAID = range(5)
N_LIMITS = 5
