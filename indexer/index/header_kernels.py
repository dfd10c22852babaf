"""Header through which compiled code reaches the arrays of an index.

Every kernel of the index takes one int64 array, the header, instead of a dozen arrays: a call
from Python costs about 30 ns per array argument, and the shortest store takes little longer. The
header holds counters and, for every column, address and length; `u64_view` and the other views turn
such a pair into an array again, with the length, so that NUMBA_BOUNDSCHECK=1 checks each access as
usual. Addresses become arrays in this module only. `IndexMemory` owns the columns, keeps them alive
and rewrites the pair of a replaced column.

Node 0 is the root; a node is the child of `parent` by the content hash `local`.

Four hash tables, each described by TABLE_FIELDS numbers; table_kernels describes the growth.

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
BITS          uint64  set*SET_WORDS  holder sets: W words of slot bits per plane
WIDE_BITS     uint64  set*wider      the sets moved so far, while the pool is widened
SET_INFO      int64   set*SET_FIELDS reference count, generation, link, hash (set_kernels)
MEMO          int64   entry*4        cached set transitions
LIVE          int64   tier, slot     nodes held: a row for each of LIVE_TIERS (`live_at`)
RECORDS_OF    int64   slot           overflow records
LOST          int64   slot           number of removals of a block, in any tier
WAITING       int64   slot           1 = the slot has orphans (orphans)
SCRATCH       uint64  SET_WORDS      working set of a kernel call

LAYOUTS       int64   layout*LENGTH  cache groups of ranks with several (reuse_layout)
LAYOUT_OF     int64   slot           number of the layout, from 1; 0: only a dense group
INSIDE        int64   slot           out: tokens of the last match behind the last whole block
BOUNDED       int64   slot           out: certainty of the last match (reuse_layout)
REUSE_RUNS    int64   run*4          working set: runs of the path
UNIT_HASHES   uint64  unit           content hashes of the prompt's units, of the caller; or none
UNIT_NAMES    uint64  unit           names of the prompt's prefixes by units, of the caller; or none
PROMPT_IDS    uint32  token          token ids of the prompt, of the caller; or none

The COPY_ columns belong to a snapshot in progress (snapshot_kernels).
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.hashing.xxh3_kernels import fold_product
from indexer.jit.decorators import READ_ONLY, carray, compiled, intrinsic
from indexer.jit.memory_kernels import as_pointer

HEADER = "int64[::1]"
# Inputs may be views of received bytes, which are not writable.
HASHES = READ_ONLY.format("uint64")

U = np.uint64
I = np.int64  # noqa: E741  the two casts are everywhere; short names keep the loops readable

SPREAD = U(0x9E3779B97F4A7C15)
"""2^64 / golden ratio."""

IMPLICIT = np.uint32(0x80000000)
SET_MASK = np.uint32(0x7FFFFFFF)
NODE_FREE = -1
N_TIERS = 4
LANES_MAX = 12
"""Limit of lanes: the further tiers, N_TIERS and up, that a match of a prompt ignores."""
TIER_BITS = 4  # of a tier or a lane in packed numbers
TIER_MASK = (1 << TIER_BITS) - 1
LIVE_TIERS = 1 << TIER_BITS
PLANES = 2 * N_TIERS
"""Planes of a holder set without lanes: one per tier, then one per tier for "irregular".  Each lane
adds both kinds.
"""
SET_FIELDS = 4
SET_REFS, SET_GENERATION, SET_LINK, SET_HASH = range(SET_FIELDS)

RECORD_FIELDS = 5
RECORD_META, RECORD_LOW, RECORD_HIGH, RECORD_NODE, RECORD_COUNT = range(RECORD_FIELDS)

# Layout of a table: header[k] is the address, header[k + 1] the length in numbers, then these.
TABLE_FIELDS = 8
NEXT = 2  # address and length of the table that will replace this table, or 0
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
    LAYOUTS,
    LAYOUT_OF,
    INSIDE,
    BOUNDED,
    REUSE_RUNS,
    UNIT_HASHES,
    UNIT_NAMES,
    PROMPT_IDS,
) = range(32, 94, 2)

# Counters and limits.
(
    WORDS,  # words of a set plane; slots beyond 64 * WORDS do not exist
    LANES,  # lanes that the holder sets have planes for
    SET_WORDS,  # words of a holder set, over all planes
    WIDE_WORDS,  # the same two numbers of WIDE_BITS: words of a plane ...
    WIDE_SET_WORDS,  # ... and of a set
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
    WIDE_MOVED,  # sets below this id are in WIDE_BITS too
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
    PROMPT_TOKENS,  # tokens of the prompt that is matched, 0: unknown
    REUSE_BLOCK,  # tokens of a block of the tree
    REUSE_STEPS,  # runs that the present match has examined
    UNITS_MAX,  # units per block of the layouts with ends inside blocks, 0: none
    HASH_SEED,  # random number of this index
) = range(94, 131)
HEADER_LENGTH = 131

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


@compiled(forceinline=True)
def part_of(h, column, first, end):
    """Return (first, length) of the entries [first, end) that an array has; 0 <= first <= end.

    A slice in Python's sense costs three times as many instructions, for negative bounds.
    """
    first = min(first, h[column + 1])
    return first, min(end, h[column + 1]) - first


@compiled()
def i64_part(h, column, first, end):
    first, length = part_of(h, column, first, end)
    return carray(as_pointer(h[column] + 8 * first), length, np.int64)


@compiled()
def f64_part(h, column, first, end):
    first, length = part_of(h, column, first, end)
    return carray(as_pointer(h[column] + 8 * first), length, np.float64)


@compiled()
def i32_part(h, column, first, end):
    first, length = part_of(h, column, first, end)
    return carray(as_pointer(h[column] + 4 * first), length, np.int32)


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


@compiled(forceinline=True)
def live_at(length, slot, tier):
    """Return the entry of a slot in a tier or lane of LIVE, of this length.

    Readers of a tier take all slots, so that the slots are next to each other.
    """
    return tier * (length >> TIER_BITS) + slot


@compiled(forceinline=True)
def has_live_row(live, slot):
    """Return whether LIVE has entries of a slot; a snapshot of the slots may be newer than LIVE."""
    return slot < live.shape[0] >> TIER_BITS


@compiled(forceinline=True)
def held_plane(tier):
    """Return the plane with the bits of the slots that hold a block in a tier or lane."""
    return tier if tier < N_TIERS else 2 * tier


@compiled(forceinline=True)
def irregular_plane(tier):
    """Return the plane that marks the irregular holders of a tier or lane."""
    return tier + N_TIERS if tier < N_TIERS else 2 * tier + 1


@compiled()
def mix_bits(x):
    """Spread the bits of a uint64; the upper half is mixed best."""
    x = U(x) * SPREAD
    return x ^ (x >> U(32))


@compiled(forceinline=True)
def mix_secretly(h, x):
    """Return a hash of x that others cannot predict, so that chosen numbers do not crowd a table.

    With `mix_bits` in place of the folded product, numbers that differ in high bits would crowd
    under any seed.
    """
    return fold_product(U(x) ^ U(h[HASH_SEED]), SPREAD)


@compiled(forceinline=True)
def home_slot(h, x, mask):
    """Return the preferred slot of hash x in a table of mask + 1 slots."""
    return I(mix_secretly(h, x) >> U(20)) & mask


@intrinsic
def lowest_bit(typingctx, word):
    """Return the index of the lowest set bit of a non-zero uint64."""
    from numba import types
    from numba.core import cgutils

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], cgutils.true_bit)

    return types.uint64(types.uint64), codegen
