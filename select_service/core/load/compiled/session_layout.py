"""Memory layout of the sessions of a scope, an int64 header that lives as long as its table.

pair    type     length           meaning
ROWS    int64    rows * FIELDS    one session a row, in the fields below
NAMES   uint64   rows * 32        session ids, padded to words with zeros
HEADS   int32    buckets          first row of each bucket of ids; a power of two

Row 0 is unused, so that a link of 0 ends a list.  Arrays have their largest size from the start;
untouched pages take no memory.  Rows never move, so the ledger may refer to a session by row.
"""

ROWS, NAMES, HEADS = range(0, 6, 2)
(
    COUNT,  # sessions
    COUNT_MAX,
    ROWS_USED,  # rows used so far, row 0 included
    FREE_ROW,  # first of the freed rows, linked by NEXT_NAME
    N_LEASES,  # leases of all sessions
    SEED,  # seed of the hashes of ids
    OLDEST_IDLE,  # sessions without leases, linked from the longest idle to the newest
    NEWEST_IDLE,
    TTL,  # float64 bits: idle seconds after which a session ends
    SEQUENCE,  # highest version number made or seen here
    WRITER,  # router id of this process, for versions made here
    # Milliseconds of the clock at which a new process would give a version of 0, or 0: versions of
    # new sessions then fall with time, so that the first binding counts.
    FALLING_FROM,
    BLOCK_SIZE,  # tokens of an output block
    NEXT_ORDER,
    # Counters, which only grow.
    N_CREATED,  # sessions bound by bookings here
    N_FOLLOWED,  # bookings on the bound rank
    N_MOVED,  # bindings changed by bookings here
    N_EVICTED,  # idle sessions removed for new sessions
    N_EXPIRED,
    N_ENDED,  # ended by callers: `session_final`, DELETE
    N_REFUSED,  # bookings that found the table full
) = range(6, 27)
HEADER_LENGTH = 27

(
    NAME_HASH,
    NAME_BYTES,
    NEXT_NAME,
    LEASES,  # live reservations
    IDLE_SINCE,  # float64 bits: time of the last use or end of a lease
    WORKER_ID,
    DP_RANK,  # ANY_RANK: every rank of the worker
    SEQUENCE_OF,  # version: sequence and writer, unsigned
    WRITER_OF,
    CONTEXT,  # tokens of the last turn: its prompt, later with its answer
    BOUND_AT,  # float64 bits: time of the last change of the binding
    OLDER_IDLE,
    NEWER_IDLE,
    STATE,  # FREE, LIVE, FINAL, ENDED
    TURNS,  # bookings here since the session is in the table
    ORDER,  # number of creation
    ID_HASH,  # hash of the id, the same in every replica
    FINGERPRINT,  # hash of id, rank and version, with the first bits of ID_HASH
    SLOT,  # slot of the rank when the session was booked last; NO_SLOT: not since it moved
    SLOT_VERSION,  # version of that slot in the rank table, which tells whether it is the same rank
) = range(20)
FIELDS = 20
NO_SLOT = -1
PART_BITS = 6
"""First bits of a fingerprint, which depend on the id alone and name its part of the table."""

FREE, LIVE, FINAL, ENDED = range(4)
"""FINAL: ends with its last lease.  ENDED: found by no id; the row waits for its last lease."""
ANY_RANK = -1
NAME_WORDS = 32
NAME_BYTES_MAX = 8 * NAME_WORDS
"""Longest session id in bytes, as in Dynamo."""
IDLE_STEPS_MAX = 64
"""Steps of the search for the place of an older entry in the list of idle sessions; beyond them
the list is out of order, which only delays the release of memory.
"""
