"""Memory layout of the counters of a partition's reservations, for clients of this process.

An int64 array, written by kernels through the row of the partition in the sums of the ledger
(`SUMS` in ledger_layout).  The first part only grows; readers take the difference of two reads.
Two lists of samples follow; a reader takes the samples and restarts the list.

A list keeps every STRIDE-th sample.  When full, the list drops every second sample and doubles the
stride, so the kept samples are spread evenly over all.
"""

from select_service.core.load.histogram_bins import PARTS_LENGTH, TIME_BINS, TOKEN_BINS

# Counters that only grow.
(
    N_ENDED,  # reservations freed by their callers after at least one output block
    OSL_SUM,  # reported output tokens of these reservations
    TTFT_US,  # microseconds from booking to the reported end of the prefill
    ITL_US,  # microseconds per output token
) = range(4)
PROMPTS = 4
"""Numbers of all booked prompts, the two parts of `bins`."""
OSL = PROMPTS + PARTS_LENGTH
TTFT = OSL + TOKEN_BINS
ITL = TTFT + TIME_BINS
N_COUNTERS = ITL + TIME_BINS
"""Number of counters.  Histograms (bins) begin at OSL; TTFT lacks prefills of decode-only ranks."""

BLOCK_SIZE = N_COUNTERS
PREFILLS = N_COUNTERS + 1
SAMPLES_MAX = 32
"""Samples in a list."""
SAMPLE_NUMBERS = 3
N_SEEN, N_KEPT, STRIDE = range(3)
"""Numbers before the samples of a list."""
_LIST_LENGTH = 3 + SAMPLES_MAX * SAMPLE_NUMBERS
DECODES = PREFILLS + _LIST_LENGTH
OBSERVED_LENGTH = DECODES + _LIST_LENGTH
"""Length of the array.

Samples of PREFILLS: own work in tokens, nanoseconds, and work left on the rank before, in tokens.
Samples of DECODES: live requests and active blocks of the rank, nanoseconds per output block.
"""
