"""The header through which compiled code reaches the reservations of the process.  Nothing else.

An int64 array that lives as long as its `LedgerMemory`: pairs (address, length) of arrays, then
plain numbers.  Row 0 and chunk 0 stand for nobody: links to them end a list.

pair        type      length          meaning
ROWS        int64     rows * FIELDS   a reservation each, in the fields below
ORDERS      int64     rows            number of the booking, ascending in time; FREE: no reservation
ENDS        float64   rows            when the lease ends, in seconds; infinite: never
HEADS       int32     buckets         first row of each bucket of names
CHUNKS      uint64    chunks * 16     names with sequence hashes, and prompts, in chains
NEXT_CHUNK  int32     chunks          the chunk that follows
SUMS        int64     sums * 7        requests, prefill tokens, marks and unfinished prefills by
                                      partition and origin, the pair of what is counted of
                                      them (observed_layout), and prompt blocks
SCRATCH     uint64    named blocks    sequence hashes of the reservation that is worked on
LIVED       int64     rows * 3        what is remembered of the life of each, see below

All but SUMS are reserved as large as they may become; what is never touched takes no memory.
"""

ROWS, ORDERS, ENDS, HEADS, CHUNKS, NEXT_CHUNK, SUMS, SCRATCH, LIVED = range(0, 18, 2)
(
    COUNT,  # live reservations
    N_BLOCKS,  # their prompt blocks
    PREFILLING,  # those whose prefill goes on
    ROWS_USED,  # rows ever handed out, row 0 included
    FREE_ROW,  # first of the rows that were given back, by NEXT_NAME
    CHUNKS_USED,  # as ROWS_USED
    FREE_CHUNK,
    CHUNKS_TAKEN,  # chunks in use
    PROMPT_CHUNKS,  # those of them that hold prompts of unfinished prefills
    PROMPT_CHUNKS_MAX,
    BUCKETS,  # the table of names grows bucket by bucket (linear hashing): 2**k + those split
    NEXT_ORDER,
    NEXT_END,  # bits of a time before which no lease ends
    TTL,  # bits of the seconds without renewal after which a lease ends; 0: never
    SEED,  # of the hashes of names
    COUNT_MAX,
    BLOCKS_MAX,
    CALL_LOAD,  # address of a load header whose owner has memory to give back, or 0
    FOLLOWERS,  # how many are told of changes, by Python
    COUNTED,  # live reservations that somebody counts, see COUNTED_BY
) = range(18, 38)
# Addresses of compiled verbs (ledger_call_kernels).
BOOK, RENEW, COMPLETE, COMPLETE_ROW, OUTPUT_BLOCK, RELEASE, RELEASE_ROW = range(38, 45)
HEADER_LENGTH = 45

MANY_BLOCKS = 1024
"""A load where so many are booked at once is prepared for more of that; kernels leave it to the
owner."""
CHUNK_WORDS = 16
SUM_NUMBERS = 7
OBSERVED = 4
"""Of the numbers of a sum, where the pair begins."""
SUM_BLOCKS = 6
"""Of the numbers of a sum, that of the prompt blocks."""
FREE = -1

# Fields of a row.  Times and weights are the bits of a float64.
(
    NAME_HASH,
    NEXT_NAME,  # the next row of the same bucket
    CHAIN,  # chunk with which its name begins; its sequence hashes follow in the next word
    NAME_BYTES,
    LOAD,  # address and length of the header of the load it is part of
    LOAD_LENGTH,
    SLOT,
    BEFORE_ON_SLOT,  # newer and older reservations of the slot
    AFTER_ON_SLOT,
    BEFORE,  # older and newer reservations of all; row 0 is newer than the newest
    AFTER,
    BLOCKS,  # sequence hashes that are kept
    NAMED,  # of those, blocks that are booked by name
    ISL_TOKENS,
    TOKENS,  # prefill tokens that are booked
    IS_PREFILLING,
    MARK,
    SUM,  # which of SUMS counts it
    WHOLE,  # output blocks of weight 1, and prompt blocks without a name
    FADED,  # output blocks of weight FRACTION
    FRACTION,
    BOOKED_AT,
    RENEWED_AT,
    WORKER_ID,
    DP_RANK,
    WORK,  # own work in tokens; 0: it is no unfinished prefill
    CACHED,  # blocks of the prompt that the rank had when it was booked
    PROMPT,  # chunk with which the block hashes of the prompt begin; 0: they are not kept
    PROMPT_BLOCKS,
    OLDER_PREFILL,  # the unfinished prefills of the slot
    NEWER_PREFILL,
    TOLD,  # tokens of its prefill that are done: what peers were told, if its prompt is kept, else
    # what the peer has said that answers for it
) = range(32)
FIELDS = 32

# Numbers of a row in LIVED.
(
    LEFT_BEFORE,  # tokens that were left to do on its rank when it was booked, or WAS_MOVED
    SPOKE_AT,  # bits of the time of its last output block, or of the end of its prefill; 0: none
    COUNTED_BY,  # address of the numbers that are less when it ends (live_count); 0: none
) = range(3)
LIVED_NUMBERS = 3
WAS_MOVED = -1
