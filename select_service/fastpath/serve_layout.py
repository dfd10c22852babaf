"""Layout of the header that holds the state of the compiled fast path.

An int64 array that lives as long as its `ServiceHandler`.  It begins with the output of the request
parser (`request_layout`), followed by pairs (address, length) of arrays, which the views of
indexer.index.header_kernels turn into arrays again, and by plain numbers.

pair        type    length                   meaning
BLOCKS      uint64  NUMBERS_MAX + WINDOW     block hashes of the request
SEQUENCE    uint64  NUMBERS_MAX + WINDOW     its sequence hashes
TOKENS      uint32  TOKENS_MAX + WINDOW      its tokens
OUT         uint8   OUT_BYTES                response
HEADS       uint8   N_HEADS * HEAD_BYTES     beginnings of responses, up to their content length
ROWS        int64   ROWS_MAX * ROW_LENGTH    cached partitions, see below
PLACES      int64   N_PLACES                 hash table of rows by model and tenant; NONE: empty
CHANGES     int64   1                        `WorkerFleet.partition_changes`
COUNTS      int64   N_ROUTES * COUNT_LENGTH  counts of requests since the start
NO_FACTORS  float64 0
NEW_ID      uint8   ID_BYTES                 generated reservation id, for clients that give none
GATE        int64   1                        `AdmissionGate.is_open_flag`
LOG         int64   1                        `log_format.shows_debug`
LEDGER      int64                            see core.load.compiled.ledger_layout
WAITS       int64   1                        `WaitingList.n_requests_array`
MASK        bool    n_slots                  eligible ranks, by the gate or the client
BOUNDS_NS   float64 N_BUCKETS - 1            upper bounds of the buckets of COUNTS
KEY         uint8                            accepted value of `authorization`
HOSTS       uint8   HOSTS_MAX * HOST_BYTES   accepted values of `host`
HOST_LENGTHS int64  HOSTS_MAX                their lengths in bytes; 0: unused entry
WITHIN      bool                             by ledger sum: whether it belongs to the key's tenants
SUM_CHANGES int64   1                        `OriginSums.changes`
SELECTION   int64   SELECTION_LENGTH         see core.placement.pending_selection_layout
SELECTION_TEXT uint8 8 * SELECTION_LENGTH    the same memory

PIN_MASK    bool    slots                    zeros; SESSION_SLOT alone while a session is pinned
SAME_HEAD   uint8   SAME_HEAD_BYTES_MAX      last accepted head, see parsing.same_head_kernels
HEAD_FIELDS int64   N_FIELDS                 its fields; BODY_AT is NONE before the first one

Of a row:

NAMES       uint8                            model and tenant, concatenated
PLAN        int64                            see core.placement.plan_layout
RECORDS     int64   n_slots * RECORD_LENGTH  records of response texts, see below
TEXTS       uint8   n_slots * TEXT_BYTES     response text of a slot, up to the first number

Of a record:

MEMBERS     int64                            slots of all ranks of the worker, by rank
"""

from select_service.core.placement.pending_selection_layout import KEY_WORDS, RECORD_WORDS
from select_service.fastpath.parsing.byte_kernels import WINDOW
from select_service.fastpath.parsing.request_layout import (
    N_FIELDS,
    NUMBERS_MAX,
    TEXT_BYTES_MAX,
    TOKENS_MAX,
)
from select_service.schemas.common import NAME_CHARS_MAX

# Outcomes of a call of `serve_request`, other than the end of an unsent response.  Below INCOMPLETE
# they request a step of `ServiceHandler`, after which the call is repeated.
SENT = 0
DECLINED = -1
INCOMPLETE = -2
STALE_ROWS = -3  # the fleet has changed: all rows are invalid
UNKNOWN_PARTITION = -4  # the requested partition has no row
NEEDS_GATE = -5  # the gate must decide which ranks are eligible
TEXT_MISSING = -6  # the text of SLOT is missing or outdated
CORE_BOOKS = -7  # book on SLOT through the core
CORE_CALLS = -8  # apply the lifecycle call through the core
NEEDS_ID = -9  # NEW_ID must be set to a new id
LEDGER_BROKEN = -10  # the ledger lacks an entry that must exist
FIND_RANK = -11  # SLOT must be set to the rank named by the request
NOTIFY_FOLLOWERS = -12  # done, but followers of the ledger must be notified of the row CHANGED
STALE_SUMS = -13  # the sums of the ledger have changed: WITHIN is invalid
NEEDS_SESSIONS = -14  # the table of sessions, or the text of SESSION_SLOT, is missing
NEEDS_PAIR = -15  # the pair must be chosen, booked and its answer written into OUT

# Steps at which a call of `serve_request` begins.
READ, CONTINUE, CONTINUE_GATED, TEXT_READY, ID_READY, RENDER = range(6)
"""CONTINUE_GATED: only ranks of the mask are eligible.  TEXT_READY: SLOT is chosen and has a text.
ID_READY: NEW_ID is set, too.  RENDER: only the response remains.
"""

(
    BLOCKS,
    SEQUENCE,
    TOKENS,
    OUT,
    HEADS,
    ROWS,
    PLACES,
    CHANGES,
    COUNTS,
    NO_FACTORS,
    MASK,
    BOUNDS_NS,
    NEW_ID,
    GATE,
    LOG,
    LEDGER,
    WAITS,
    KEY,
    HOSTS,
    HOST_LENGTHS,
    WITHIN,
    SUM_CHANGES,
    SELECTION,
    SELECTION_TEXT,
    PIN_MASK,
    SAME_HEAD,
    HEAD_FIELDS,
) = range(N_FIELDS, N_FIELDS + 54, 2)
(
    CHANGES_SEEN,  # number of fleet changes for which the rows are valid
    AT_ROW,  # row of the requested partition
    NAMES_HASH,  # hash of the names that were not found
    SLOT,  # chosen by the kernel or the client
    BEGAN_NS,  # time at which the request was parsed
    BEGIN,  # beginning of the response in OUT
    KERNEL_BOOKS,  # whether kernels may change reservations; the next are settings:
    COUNTS_PREFILL,
    COUNTS_BLOCKS,
    COUNTS_OUTPUT,
    CHANGED,  # ledger row of the changed reservation
    NEEDS_KEY,  # whether a key is required
    CHECKS_HOST,  # whether the host is checked
    IS_BOUND,  # whether the key is bound to tenants, so that WITHIN applies
    SUMS_SEEN,  # number of sum changes for which WITHIN is valid
    DECODE_BLOCKS,  # potential decode blocks of the rank in SLOT, before any booking
    BUSY_BLOCKS,  # float64 bits: share of KV blocks above which a rank is decode_busy; NaN: off
    KEEPS_SELECTIONS,  # whether selections with an id are kept for later bookings
    SELECTION_BYTES,  # length of what the last request left in SELECTION; below 0: of a key
    SESSIONS_ARE_HARD,  # whether the requests of a session go to its rank
    SESSION_HASH,  # hash of the session's id
    SESSION_ROW,  # row of the session in its table; 0: none; below 0 after a booking: table full
    SESSION_SLOT,  # slot of the session's rank; NONE without a session
    BOUND_WORKER,  # rank of the session when the request was decided
    BOUND_DP_RANK,
    PAIR_END,  # end of the answer about a pair in OUT, without its head
    PAIR_RECORD,  # length of the record of its request in SELECTION (core.pairs.stored_pair), bytes
    SERVE_ADDRESS,  # address of the function behind `serve_request`; 0 before the first request
    HEAD_LENGTH,  # length of the first head, bytes; the other lengths follow
) = range(N_FIELDS + 54, N_FIELDS + 83)
STATE_LENGTH = HEAD_LENGTH + 2

# Entries of a row.
NAMES, PLAN, RECORDS, TEXTS = range(0, 8, 2)
MODEL_BYTES = 8
IS_EAGLE = 9
MUTEX = 10  # address of the index lock, which protects all that a placement reads
SUM = 11  # ledger sum for reservations of our clients in the partition; NONE at first
SESSIONS = 12  # address of the header of the sessions (session_layout); 0: no table yet
ROW_LENGTH = 13

# Entries of a record.
MEMBERS = 0
TEXT_VERSION = 2  # version of the slot in the rank table when the text was built
TEXT_LENGTH = 3  # NONE: too long
RANK_LENGTH = 4  # length of the part of the text that identifies the rank
FIRST_DP_RANK = 5  # rank of the first member; the others are consecutive
WORKER_ID, DP_RANK = 6, 7
HAS_UNSEEN_CACHE = 8  # whether the rank may hold cache that the index does not show
RECORD_LENGTH = 9

N_PLACES = 4096
"""Size of the hash table: a power of two, several times the number of partitions."""
HASHES_LENGTH = NUMBERS_MAX + WINDOW
TOKENS_LENGTH = TOKENS_MAX + WINDOW
PIN_SLOTS_MAX = 65_536
"""Most slots of a partition with sessions that kernels pin to a rank."""
NAMES_BYTES = 8 * NAME_CHARS_MAX
"""Longest names of a partition, two texts of up to four bytes a character."""
SELECTION_LENGTH = RECORD_WORDS + KEY_WORDS + (NAMES_BYTES + TEXT_BYTES_MAX) // 8 + 2 * NUMBERS_MAX
TEXT_BYTES = 512
ID_BYTES = 36
"""Length of a generated id."""
HOSTS_MAX = 16
HOST_BYTES = 256
HEAD_BYTES = 512
BODY_BEGIN = HEAD_BYTES + 128
"""Offset of the body in OUT; the head is placed before it."""
OUT_BYTES = 65_536 + 21 * NUMBERS_MAX
"""Room for the ids, a text, 34 bytes for each rank that a worker may have, and the hashes.  The
pages that no response has reached cost no memory.
"""

OK, CREATED = range(2)
"""Indexes of heads by status."""
N_HEADS = 2
assert HEAD_LENGTH + N_HEADS == STATE_LENGTH

# Entries of a route in COUNTS: responses, nanoseconds of deciding, and decisions by bucket.
ANSWERS, DECIDING_NS, BUCKETS = range(3)
N_BUCKETS = 16
COUNT_LENGTH = BUCKETS + N_BUCKETS
