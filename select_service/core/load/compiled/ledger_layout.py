"""Memory layout of the header through which compiled code reaches the reservations of the process.

The header is an int64 array living as long as its `LedgerMemory`: pairs (address, length) of
arrays, then plain numbers.  Row 0 and chunk 0 are unused, so that a link of 0 ends a list.

pair        type      length          meaning
ROWS        int64     rows * FIELDS   one reservation a row, in the fields below
ORDERS      int64     rows            number of the booking, ascending in time; FREE: no reservation
ENDS        float64   rows            end of the lease, in seconds; infinite means never
HEADS       int32     buckets         first row of each bucket of names
CHUNKS      uint64    chunks * 16     names with sequence hashes, and prompts, in chains
NEXT_CHUNK  int32     chunks          following chunk
SUMS        int64     sums * 7        requests, prefill tokens, marks and unfinished prefills by
                                      partition and origin, the pair of the observed counters
                                      (observed_layout), and prompt blocks
SCRATCH     uint64    named blocks    sequence hashes of the reservation in process
HISTORY       int64     rows * 6        history of each reservation, see below

All arrays but SUMS are reserved at their largest size; untouched pages take no memory.
"""

ROWS, ORDERS, ENDS, HEADS, CHUNKS, NEXT_CHUNK, SUMS, SCRATCH, HISTORY, BOOKING = range(0, 20, 2)
(
    COUNT,  # live reservations
    N_BLOCKS,  # prompt blocks of live reservations
    PREFILLING,  # live reservations in prefill
    ROWS_USED,  # rows used so far, row 0 included
    FREE_ROW,  # first of the freed rows, linked by NEXT_NAME
    CHUNKS_USED,  # chunks used so far, chunk 0 included
    FREE_CHUNK,
    CHUNKS_TAKEN,  # chunks in use
    PROMPT_CHUNKS,  # chunks with prompts of unfinished prefills
    PROMPT_CHUNKS_MAX,
    BUCKETS,  # buckets of the name table, which grows by one (linear hashing)
    NEXT_ORDER,
    NEXT_END,  # float64 bits of a time before which no lease ends
    TTL,  # float64 bits of the time to live in seconds; 0 means for ever
    SEED,  # seed of the name hashes
    COUNT_MAX,
    BLOCKS_MAX,
    LOAD_TO_RELEASE,  # address of a load header with memory to release, or 0
    N_LISTENERS,  # number of followers notified by Python
    N_COUNTED,  # live reservations with a counter, see COUNTER_ADDRESS
) = range(20, 40)
# Addresses of compiled operations (ledger_entry_kernels).
BOOK, RENEW, COMPLETE, COMPLETE_ROW, OUTPUT_BLOCK, RELEASE, RELEASE_ROW = range(40, 47)
(
    NOW,  # float64 bits: time of the release in progress, set before it
    N_SESSION_LEASES,  # live reservations with a lease of a session
) = range(47, 49)
HEADER_LENGTH = 49

MANY_BLOCKS = 1024
"""Blocks of a large booking.  The owner prepares such loads for more; kernels decline such
bookings.
"""
CHUNK_WORDS = 16
SUM_NUMBERS = 7
OBSERVED_PAIR = 4
"""First number of the pair within a sum."""
SUM_BLOCKS = 6
"""Number of the prompt blocks within a sum."""
FREE = -1

# Fields of a row.  Times and weights are the bits of a float64.  A booking gives the first ones.
(
    SLOT,
    HASHED_BLOCKS,  # number of the stored sequence hashes that are booked by hash
    WHOLE_WEIGHT_BLOCKS,  # output blocks of weight 1, and prompt blocks without a hash
    ISL_TOKENS,
    TOKENS,  # booked prefill tokens
    IS_PREFILLING,
    WORKER_ID,
    DP_RANK,
    SUM,  # row in SUMS
    WORK,  # own work in tokens; 0 means no unfinished prefill
    CACHED,  # prompt blocks on the rank at booking time
    BOOKED_AT,
    RENEWED_AT,
    NAME_HASH,
    NEXT_NAME,  # next row of the same bucket
    CHAIN,  # first chunk of the name; the sequence hashes follow in the next word
    NAME_BYTES,
    LOAD,  # address and length of the load header
    LOAD_LENGTH,
    BEFORE_ON_SLOT,  # newer and older reservations of the slot
    AFTER_ON_SLOT,
    BEFORE,  # older and newer reservations of all; row 0 follows the newest
    AFTER,
    BLOCKS,  # stored sequence hashes
    FINGERPRINT,
    DECAYED_BLOCKS,  # output blocks of weight FRACTION
    FRACTION,
    PROMPT,  # first chunk of the prompt's block hashes; 0 means not stored
    PROMPT_BLOCKS,
    OLDER_PREFILL,  # neighbours in the slot's list of unfinished prefills
    NEWER_PREFILL,
    # Completed tokens of the prefill: last sent to peers, if the prompt is stored, else.
    SYNCED_TOKENS,
    # last received from the responsible peer
) = range(32)
FIELDS = 32

# Fields of BOOKING: the first fields of a row, then the duration of the first lease in seconds, and
# the part of a request that is booked.
BOOKED_FIELDS = 13
LEASE_S = 13
REQUEST_PART = 14
BOOKING_FIELDS = 15
BOOKING_FORMAT = "=6qQ4q3dq"
"""Fields of BOOKING in the notation of `struct`."""

# Numbers of a row in HISTORY.
(
    WORK_LEFT_BEFORE,  # work left on the rank at booking time, in tokens, or WAS_MOVED
    # Float64 bits of the time of the last output block or prefill end; 0 means neither.
    LAST_OUTPUT_AT,
    # Address of the counter decremented at the end (live_count); 0 means no counter.
    COUNTER_ADDRESS,
    # Header address of a table of sessions (session_layout), and the row of the session with the
    # reservation's lease; 0 means no session, the negative row that the lease was given back.
    SESSION_TABLE,
    SESSION_ROW,
    OBSERVED_PART,  # REQUEST_PART of the booking
) = range(6)
HISTORY_NUMBERS = 6
WAS_MOVED = -1

# Parts of a request that a reservation can be, for observations.
(
    ANY_PART,  # a request, or with prefill workers the part that the role of the rank gives
    PREFILL_PART,  # the prefill leg of a pair, which counts as the request
    OTHER_PART,  # a leg of a pair that was counted by another leg
    WHOLE_REQUEST,  # both legs of a pair: a request on a rank of any role
) = range(4)
