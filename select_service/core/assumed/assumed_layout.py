"""Memory layout of the header through which compiled code reaches the assumed blocks.

The header is an int64 array living as long as its `AssumedBlocks`: pairs (address, length) of
arrays, then plain numbers.  Entry 0 is unused, so that a link of 0 ends a list.

pair      type    length             meaning
ENTRIES   int64   entries * FIELDS   a block of a slot, in the fields below
HEADS     int32   buckets            first entry of each bucket of names
SLOTS     int64   slots * SLOT_FIELDS

The entries of a slot form a list from the oldest to the newest use.  ENTRIES and HEADS are reserved
at the largest size; untouched pages take no memory.
"""

ENTRIES, HEADS, SLOTS = range(0, 6, 2)
(
    USED,  # entries used so far, entry 0 included
    FREE,  # first of the freed entries, linked by NEXT
    COUNT,  # entries in use
    COUNT_MAX,
    BUCKETS,  # buckets in use: linear hashing, one more with each entry beyond
    POWER,  # largest power of two that is at most BUCKETS
    SEED,  # seed of the hashes
    EXAMINED,  # entries examined by the last call of `clear_blocks`
) = range(6, 14)
HEADER_LENGTH = 14

# Fields of an entry.
(
    NAME,  # key of the prefix that ends with the block
    SLOT,
    OLDER,
    NEWER,
    NEXT,  # next entry of the same bucket
    USED_AT,  # float64 bits of the time of the last use, seconds
) = range(6)
FIELDS = 6

OLDEST, NEWEST, LENGTH = range(3)
SLOT_FIELDS = 4
ENTRY_BYTES = 8 * FIELDS + 4
"""Memory of an entry and a bucket."""
