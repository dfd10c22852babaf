"""The header through which the compiled answering of requests keeps its state.  Nothing else.

An int64 array that lives as long as its `ServiceAnswerer`.  It begins with what the reading of a
request leaves (`request_layout`); then come pairs (address, length) of arrays, which the views of
indexer.index.state_kernels turn into arrays again, and plain numbers.

pair        type    length                   meaning
BLOCKS      uint64  NUMBERS_MAX + WINDOW     block hashes of the request
SEQUENCE    uint64  NUMBERS_MAX + WINDOW     its sequence hashes
TOKENS      uint32  TOKENS_MAX + WINDOW      its tokens
OUT         uint8   OUT_BYTES                the answer
HEADS       uint8   N_HEADS * HEAD_BYTES     beginnings of answers, up to the number of their bytes
ROWS        int64   ROWS_MAX * ROW_LENGTH    partitions that are known, see below
PLACES      int64   N_PLACES                 hash table of rows by model and tenant; NONE: nothing
CHANGES     int64   1                        `Fleet.changes`
COUNTS      int64   N_ROUTES * COUNT_LENGTH  what was answered since the start
NO_FACTORS  float64 0
NEW_ID      uint8   ID_BYTES                 id of a reservation for which the client has none
GATE        int64   1                        `Gate.admits`
LOG         int64   1                        `log.shows_debug`
LEDGER      int64                            see core.load.ledger_layout
WAITS       int64   1                        `WaitingList.waits`
MASK        bool    n_slots                  ranks that may be chosen, as the gate or a client says
BOUNDS_NS   float64 N_BUCKETS - 1            upper ends of the buckets of COUNTS
KEY         uint8                            value of `authorization` with which requests are served
HOSTS       uint8   HOSTS_MAX * HOST_BYTES   values of `host` that are served
HOST_LENGTHS int64  HOSTS_MAX                their bytes; 0: there is none in its place
WITHIN      bool                             by sum of the ledger: is it of a tenant of the key?
SUM_CHANGES int64   1                        `OriginSums.changes`

Of a row:

NAMES       uint8                            model and tenant, without anything between them
PLAN        int64                            see core.decide.plan_layout
RECORDS     int64   n_slots * RECORD_LENGTH  texts of answers that are made, see below
TEXTS       uint8   n_slots * TEXT_BYTES     what an answer says of a slot, up to the first number
LIMITS      float64 N_LIMITS                 of the gate, see core.fleet.limits_layout

Of a record:

MEMBERS     int64                            slots of all ranks of the worker, by rank
"""

from select_service.fast.byte_kernels import WINDOW
from select_service.fast.request_layout import N_FIELDS, NUMBERS_MAX, TOKENS_MAX

# What a call of `serve` says when it is not where the rest of the answer ends.
SENT = 0
GIVE_UP = -1
INCOMPLETE = -2
STALE = -3  # the fleet has changed: no row counts any more
UNKNOWN = -4  # the partition that is asked for has no row
JUDGE = -5  # the gate has to say which ranks may be chosen
UNTOLD = -6  # there is no text of SLOT, or an old one
BOOK = -7  # it is to be booked on SLOT, by a verb of the core
CALL = -8  # a verb of the core is to be called with the id of the path
UNNAMED = -9  # NEW_ID has to be a new id
BROKEN = -10  # the ledger does not hold what it must
FIND_RANK = -11  # SLOT has to be that of the rank that the request names
STALE_SUMS = -13  # the sums of the ledger have changed: WITHIN does not hold any more
TELL = -12  # followers of the ledger have to be told of the change of CHANGED; all is done but this

# Where a call of `serve` begins.
READ, GO_ON, GO_ON_JUDGED, TOLD, NAMED, RENDER = range(6)
"""JUDGED: only ranks of the mask may be chosen.  TOLD: SLOT is chosen, and there is a text of it.
NAMED: and there is a NEW_ID.  RENDER: all is done but the answer."""

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
) = range(N_FIELDS, N_FIELDS + 44, 2)
(
    SEEN,  # the changes of the fleet up to which rows are known
    AT_ROW,  # row of the partition that is asked for
    NAMES_HASH,  # of the names that were not found
    SLOT,  # that was chosen, by us or by the client
    BEGAN_NS,  # when the request was read
    BEGIN,  # of the answer in OUT
    BOOKS,  # may reservations be changed here?  As the configuration says:
    COUNTS_PREFILL,
    COUNTS_BLOCKS,
    COUNTS_OUTPUT,
    CHANGED,  # row of the reservation in the ledger that was changed
    ASKS_KEY,  # is a key needed?
    ASKS_HOST,  # does it matter which host is asked for?
    IS_BOUND,  # is the key bound to tenants, so that WITHIN counts?
    SUMS_SEEN,  # the changes of the sums up to which WITHIN holds
    HEAD_LENGTH,  # of the first head, in bytes; those of the others follow
) = range(N_FIELDS + 44, N_FIELDS + 60)
STATE_LENGTH = HEAD_LENGTH + 2

# Numbers of a row.
NAMES, PLAN, RECORDS, TEXTS, LIMITS = range(0, 10, 2)
MODEL_BYTES = 10
IS_EAGLE = 11
MUTEX = 12  # address of the lock of the index, for all that a placement reads
SUM = 13  # of the ledger, that counts reservations of our clients in the partition; NONE at first
ROW_LENGTH = 14

# Numbers of a record.
MEMBERS = 0
VERSION_TOLD = 2  # that of the slot in the rank table when its text was made
TEXT_LENGTH = 3  # NONE: it would be too long
RANK_LENGTH = 4  # of the part of the text that says who the rank is
FIRST_DP_RANK = 5  # of the members; the others follow in steps of one
WORKER_ID, DP_RANK = 6, 7
RECORD_LENGTH = 8

N_PLACES = 4096
"""A power of two, and several times as many as there are partitions."""
HASHES_LENGTH = NUMBERS_MAX + WINDOW
TOKENS_LENGTH = TOKENS_MAX + WINDOW
TEXT_BYTES = 512
ID_BYTES = 36
"""Of an id that is made here."""
HOSTS_MAX = 16
HOST_BYTES = 256
HEAD_BYTES = 512
BODY_BEGIN = HEAD_BYTES + 128
"""Place of a body in OUT; before it is its head."""
OUT_BYTES = 65_536
"""The ids, a text, and 34 bytes for each of the ranks that a worker may have."""

OK, CREATED = range(2)
"""Heads by status."""
N_HEADS = 2
assert HEAD_LENGTH + N_HEADS == STATE_LENGTH

# Numbers of a route in COUNTS: answers, nanoseconds of deciding, and decisions by bucket.
ANSWERS, DECIDING_NS, BUCKETS = range(3)
N_BUCKETS = 16
COUNT_LENGTH = BUCKETS + N_BUCKETS
