"""What is counted of the reservations that clients of this process book in one partition.

An int64 array, which the row of the partition in the sums of the ledger names (`SUMS` in
ledger_layout); kernels write it.  First what only grows; a reader takes the difference of two
looks.  Then two lists of samples, which a reader takes and begins anew.

A list keeps every STRIDE-th sample: whenever it is full each second one goes and the stride
doubles, so that what is kept is spread evenly over all that was seen.
"""

from select_service.core.load.bins import PARTS_LENGTH, TIME_BINS, TOKEN_BINS

# What only grows.
(
    ENDED,  # freed by their callers, after one output block or more
    OSL_SUM,  # tokens of the output blocks that were reported of those
    TTFT_US,  # microseconds from booking to the end of the prefill, where callers report it
    ITL_US,  # microseconds a token, of output blocks
) = range(4)
PROMPTS = 4
"""Of all that is booked: the two parts of `bins`."""
OSL = PROMPTS + PARTS_LENGTH
TTFT = OSL + TOKEN_BINS
ITL = TTFT + TIME_BINS
N_COUNTERS = ITL + TIME_BINS
"""From OSL on histograms (bins).  Ends of prefills on ranks that only decode are not in TTFT."""

BLOCK_SIZE = N_COUNTERS
PREFILLS = N_COUNTERS + 1
SAMPLES_MAX = 32
"""Of a list."""
SAMPLE_NUMBERS = 3
SEEN, KEPT, STRIDE = range(3)
"""Of a list, before its samples."""
_LIST_LENGTH = 3 + SAMPLES_MAX * SAMPLE_NUMBERS
DECODES = PREFILLS + _LIST_LENGTH
OBSERVED_LENGTH = DECODES + _LIST_LENGTH
"""PREFILLS: own work in tokens, nanoseconds, tokens that were left to do on the rank before it.
DECODES: live requests and active blocks of the rank, nanoseconds an output block."""
