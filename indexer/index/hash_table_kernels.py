"""Hash table of the index: open addressing, linear probing, growth in steps.

A table is uint32 [slots * width], slots a power of two; the first field of a free slot is 0.

A full table is replaced by a table of twice the size (NEXT) without a long step: entries move in
the order of home slots, a few with every stored block.  Meanwhile the old table has all entries and
answers all lookups; NEXT has exactly the entries with a home below MOVED in the old table.  So code
that adds, changes or removes such an entry does so in both.  When MOVED has reached the end, the
owner replaces the old table by NEXT.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.index.header_kernels import CALL_AT, MOVED, NEXT, I, u32_view
from indexer.jit.decorators import compiled


@compiled()
def mask_of(h, column, width):
    """Return the number of slots - 1."""
    return h[column + 1] // width - 1


@compiled()
def copy_nothing(h, i):
    pass


def table_functions(table_id, width, key_fields, home_of, copy_on_write=copy_nothing):
    """Return (put_next, find_next, erase, move_on), compiled for a table.

    key_fields: leading fields of an entry that distinguish the entry from all others
    home_of(h, column, i, mask): preferred slot, in a table of mask + 1, of the entry in slot i of
        the table in that column
    keep(h, i): called before a write to slot i of the table (never of NEXT)
    """
    put_next = _make_put_next(table_id, width, home_of)
    find_next = _make_find_next(table_id, width, key_fields, home_of)
    erase = _make_erase(
        table_id, find_next, _make_close_gap(table_id, width, home_of, copy_on_write)
    )
    return put_next, find_next, erase, _make_move_on(table_id, width, home_of, put_next)


def _make_put_next(table_id, width, home_of):
    @compiled()
    def put_next(h, i):
        """Enter slot i, with a home below MOVED, into the next table."""
        table = u32_view(h, table_id)
        following = u32_view(h, table_id + NEXT)
        mask = mask_of(h, table_id + NEXT, width)
        j = home_of(h, table_id, i, mask)
        while following[j * width] != 0:
            j = (j + 1) & mask
        for field in range(width):
            following[j * width + field] = table[i * width + field]

    return put_next


def _make_find_next(table_id, width, key_fields, home_of):
    @compiled()
    def find_next(h, i):
        """Return the slot in the next table of the entry in slot i, -1 if not moved."""
        if h[table_id + MOVED] == 0:
            return I(-1)
        if home_of(h, table_id, i, mask_of(h, table_id, width)) >= h[table_id + MOVED]:
            return I(-1)
        table = u32_view(h, table_id)
        following = u32_view(h, table_id + NEXT)
        mask = mask_of(h, table_id + NEXT, width)
        j = home_of(h, table_id, i, mask)
        while True:
            # The loop ends: an entry with a moved home is in NEXT.
            same = True
            for field in range(key_fields):
                same &= following[j * width + field] == table[i * width + field]
            if same:
                return j
            j = (j + 1) & mask

    return find_next


def _make_close_gap(table_id, width, home_of, keep):
    @compiled()
    def close_gap(h, column, i):
        """Free slot i; move up later entries: their search would end at the gap."""
        table = u32_view(h, column)
        mask = mask_of(h, column, width)
        j = i
        while True:
            j = (j + 1) & mask
            if table[j * width] == 0:
                break
            k = home_of(h, column, j, mask)
            # Distances modulo the size: a run of entries may wrap around the end of the table.
            if (j - k) & mask >= (j - i) & mask:
                if column == table_id:
                    keep(h, i)
                for field in range(width):
                    table[i * width + field] = table[j * width + field]
                i = j
        if column == table_id:
            keep(h, i)
        table[i * width] = 0

    return close_gap


def _make_erase(table_id, find_next, close_gap):
    @compiled()
    def erase(h, i):
        """Take the entry in slot i out of the table, and out of the next."""
        j = find_next(h, i)
        if j >= 0:
            close_gap(h, table_id + NEXT, j)
        close_gap(h, table_id, i)

    return erase


def _make_move_on(table_id, width, home_of, put_next):
    @compiled()
    def move_on(h, homes):
        """Move the entries of the next `homes` homes; the owner is called when all have moved.

        O(homes) expected: the entries of a home are between the home and the next free slot.
        """
        if h[table_id + NEXT + 1] == 0:
            return
        table = u32_view(h, table_id)
        mask = mask_of(h, table_id, width)
        start = h[table_id + MOVED]
        stop = min(start + homes, mask + 1)
        i = start
        while i < stop or table[(i & mask) * width] != 0:
            slot = i & mask
            if table[slot * width] != 0:
                home = home_of(h, table_id, slot, mask)
                # Past the end only wrapped entries count (home above their slot): no entry is
                # moved twice.
                if start <= home < stop and (home > slot) == (i > mask):
                    put_next(h, slot)
            i += 1
        h[table_id + MOVED] = stop
        if stop > mask:
            h[table_id + CALL_AT] = 0

    return move_on


@compiled()
def find_value(h, column, i, value):
    """Return the slot of a value known to be in a table of width 1, at i or later."""
    table = u32_view(h, column)
    mask = mask_of(h, column, 1)
    while table[i] != value:
        i = (i + 1) & mask
    return i
