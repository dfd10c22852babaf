"""Header through which compiled code reaches the arrays of an index.

Every kernel of the index takes one int64 array, the header, instead of a dozen arrays: a call
from Python costs about 30 ns per array argument, and the shortest store takes little longer. The
header holds counters and, for every column, its address and its length; `u64_view` and its
siblings turn such a pair into an array again, with its length, so that NUMBA_BOUNDSCHECK=1 checks
each access as usual. Addresses become arrays in this module only. `IndexMemory` owns the columns,
keeps them alive and rewrites the pair when it replaces one.

Node 0 is the root; a node is the child of `parent` by the content hash `local`.

Four hash tables, each described by TABLE_FIELDS numbers; table_kernels describes their growth.

table         width            entries
NAMES         1                nodes with at least one holder, by primary engine hash;
                               several nodes may share a hash (engines do not coordinate)
EDGES         1                child nodes whose edge is not implicit, by (parent, local)
SET_TABLE     1                set ids by content
RECORDS       RECORD_FIELDS    overflow records (record_kernels)

column        type    one entry per  meaning
LOCAL         uint64  node           content hash of the block
ENGINE        uint64  node           primary engine hash: the name most holders use for the block
PARENT        int32   node           parent node; NODE_FREE when the node is on the free list
MARK          uint32  node           holder set id, plus IMPLICIT when the parent is node - 1
                                     (free node: next free node)
KIDS          int32   node           number of children (free node: previous free node)
BITS          uint64  set*PLANES*W   holder sets: W words of slot bits per plane
WIDE_BITS     uint64  set*PLANES*2W  the sets that were moved so far, while the pool is widened
SET_INFO      int64   set*SET_FIELDS reference count, generation, link, hash (set_kernels)
MEMO          int64   entry*4        cached set transitions
LIVE          int64   slot*4+tier    nodes held
RECORDS_OF    int64   slot           overflow records
LOST          int64   slot           number of removals of a block, in any tier
WAITING       int64   slot           1 = the slot has orphans (orphans)
SCRATCH       uint64  PLANES*W       working set of a kernel call

The COPY_ columns belong to a snapshot in progress (snapshot_kernels).
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.jit.decorators import READ_ONLY, carray, compiled, intrinsic
from indexer.jit.memory_kernels import as_pointer

HEADER = "int64[::1]"
# Inputs may be views of received bytes, which are not writable.
HASHES = READ_ONLY.format("uint64")

U = np.uint64
I = np.int64  # noqa: E741  the two casts are everywhere; short names keep the loops readable

IMPLICIT = np.uint32(0x80000000)
SET_MASK = np.uint32(0x7FFFFFFF)
NODE_FREE = -1
N_TIERS = 4
PLANES = 8  # one per tier, then one per tier for "irregular"
SET_FIELDS = 4
SET_REFS, SET_GENERATION, SET_LINK, SET_HASH = range(SET_FIELDS)

RECORD_FIELDS = 5
RECORD_META, RECORD_LOW, RECORD_HIGH, RECORD_NODE, RECORD_COUNT = range(RECORD_FIELDS)

# Layout of a table: header[k] is the address, header[k + 1] the length in numbers, then these.
TABLE_FIELDS = 8
NEXT = 2  # address and length of the table that will replace this one, or 0
MOVED = 4  # entries with a home below this slot are in NEXT too
ENTRIES = 5
ROOM = 6  # largest number of entries
CALL_AT = 7  # number of entries at which the owner must act
NAMES, EDGES, SET_TABLE, RECORDS = range(0, 4 * TABLE_FIELDS, TABLE_FIELDS)

# Layout of a column: header[k] is the address, header[k + 1] the length.
(
    LOCAL,
    ENGINE,
    PARENT,
    MARK,
    KIDS,
    BITS,
    WIDE_BITS,
    SET_INFO,
    MEMO,
    LIVE,
    RECORDS_OF,
    LOST,
    WAITING,
    SCRATCH,
    COPY_LOCAL,
    COPY_ENGINE,
    COPY_PARENT,
    COPY_MARK,
    COPY_BITS,
    COPY_RECORDS,
    COPIED_NODES,
    COPIED_SETS,
    COPIED_RECORDS,
) = range(32, 78, 2)

# Counters and limits.
(
    WORDS,  # words of a set plane; slots beyond 64 * WORDS do not exist
    NODES_USED,  # nodes ever handed out, root included: the scanned part of the columns
    NODES_LIVE,  # without the root
    NODES_MAX,
    NODE_FREE_HEAD,
    NAMES_SHARED,  # named nodes minus distinct names
    SETS_USED,  # set ids ever handed out, the empty set 0 included
    SETS_LIVE,  # without the empty set
    SETS_UNLISTED,  # live sets that are not in the table, while a slot is cleared
    SETS_KEPT,  # ids reserved for removals
    SET_FREE_HEAD,
    SET_BYTES,  # bytes of a set id that was never used before
    SCRATCH_HASH,
    WIDE_MOVED,  # sets below this one are in WIDE_BITS too
    GROWING,  # tables and pools that are being replaced
    BYTES_LEFT,  # bytes that may still be taken
    COPY_NODES,  # nodes, sets and records from here ...
    COPY_NODES_END,  # ... to here are still to be copied; 0 without a snapshot
    COPY_SETS,
    COPY_SETS_END,
    COPY_ROWS,
    COPY_ROWS_END,
    REFUSED,  # blocks refused by a full index
    UNKNOWN,  # hash-only announcements of blocks the slot never announced with content
    NEED,  # 1 = the last kernel stopped early: the owner must act
    CURSOR,  # node where a stopped store continues
    MUTEX,  # address of the mutex of the index (mutex_kernels), 0: not shared
    CHANGED,  # number of blocks given to or taken from a slot
) = range(78, 106)
HEADER_LENGTH = 106

NODE_BYTES = 28  # bytes of a node over all node columns


@compiled()
def u64_view(h, column):
    return carray(as_pointer(h[column]), h[column + 1], np.uint64)


@compiled()
def u32_view(h, column):
    return carray(as_pointer(h[column]), h[column + 1], np.uint32)


@compiled()
def i64_view(h, column):
    return carray(as_pointer(h[column]), h[column + 1], np.int64)


@compiled()
def i32_view(h, column):
    return carray(as_pointer(h[column]), h[column + 1], np.int32)


@compiled()
def f64_view(h, column):
    return carray(as_pointer(h[column]), h[column + 1], np.float64)


@compiled()
def u8_view(h, column):
    return carray(as_pointer(h[column]), h[column + 1], np.uint8)


@compiled()
def mask_view(h, column):
    return carray(as_pointer(h[column]), h[column + 1], np.bool_)


@compiled()
def tiers_view(h, column):
    """Return int32 [rows, N_TIERS], in the layout that `match` fills."""
    return carray(as_pointer(h[column]), (h[column + 1] // N_TIERS, N_TIERS), np.int32)


@compiled()
def mix_bits(x):
    """Spread the bits of a uint64; the upper half is mixed best."""
    x = U(x) * U(0x9E3779B97F4A7C15)
    return x ^ (x >> U(32))


@compiled()
def home_slot(x, mask):
    """Return the preferred slot of hash x in a table of mask + 1 slots."""
    return I(mix_bits(x) >> U(20)) & mask


@intrinsic
def lowest_bit(typingctx, word):
    """Return the index of the lowest set bit of a non-zero uint64."""
    from numba import types
    from numba.core import cgutils

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], cgutils.true_bit)

    return types.uint64(types.uint64), codegen
