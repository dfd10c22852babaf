"""The one kind of hash table of the index: open addressing, linear probing, growth in steps.

A table is uint32 [slots * width], slots a power of two; the first field of a slot is 0 when it is
free.

A table that fills up is replaced by one twice its size (NEXT) without a long step: entries move in
the order of their homes, a few with every block that is stored.  All the time the old table has
everything and answers all questions; NEXT has exactly those entries whose home in the old one is
below MOVED.  So whoever adds, changes or removes an entry with such a home does it in both.  When
MOVED has reached the end, the owner puts NEXT in the place of the old table.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled
from indexer.index.state_kernels import CALL_AT, MOVED, NEXT, I, u32_view


@compiled()
def mask_of(h, column, width):
    """Number of slots - 1."""
    return h[column + 1] // width - 1


@compiled()
def keep_nothing(h, i):
    pass


def table_functions(table_id, width, key_fields, home_of, keep=keep_nothing):
    """(put_next, find_next, erase, move_on), compiled for one table.

    key_fields: leading fields of an entry that tell it from all others
    home_of(h, column, i, mask): preferred slot, in a table of mask + 1, of the entry in slot i of
        the table in that column
    keep(h, i): called before slot i of the table, not of the next one, is written to
    """
    put_next = _putting(table_id, width, home_of)
    find_next = _finding(table_id, width, key_fields, home_of)
    erase = _erasing(table_id, find_next, _closing(table_id, width, home_of, keep))
    return put_next, find_next, erase, _moving(table_id, width, home_of, put_next)


def _putting(table_id, width, home_of):
    @compiled()
    def put_next(h, i):
        """Enter slot i, whose home is below MOVED, into the next table."""
        table = u32_view(h, table_id)
        following = u32_view(h, table_id + NEXT)
        mask = mask_of(h, table_id + NEXT, width)
        j = home_of(h, table_id, i, mask)
        while following[j * width] != 0:
            j = (j + 1) & mask
        for field in range(width):
            following[j * width + field] = table[i * width + field]

    return put_next


def _finding(table_id, width, key_fields, home_of):
    @compiled()
    def find_next(h, i):
        """Slot in the next table of the entry in slot i, -1 when it has not moved."""
        if h[table_id + MOVED] == 0:
            return I(-1)
        if home_of(h, table_id, i, mask_of(h, table_id, width)) >= h[table_id + MOVED]:
            return I(-1)
        table = u32_view(h, table_id)
        following = u32_view(h, table_id + NEXT)
        mask = mask_of(h, table_id + NEXT, width)
        j = home_of(h, table_id, i, mask)
        while True:
            same = True
            for field in range(key_fields):
                same &= following[j * width + field] == table[i * width + field]
            if same:
                return j
            j = (j + 1) & mask

    return find_next


def _closing(table_id, width, home_of, keep):
    @compiled()
    def close_gap(h, column, i):
        """Free slot i; entries behind it move up where their search would end there."""
        table = u32_view(h, column)
        mask = mask_of(h, column, width)
        j = i
        while True:
            j = (j + 1) & mask
            if table[j * width] == 0:
                break
            k = home_of(h, column, j, mask)
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


def _erasing(table_id, find_next, close_gap):
    @compiled()
    def erase(h, i):
        """Take the entry in slot i out of the table, and out of the next one."""
        j = find_next(h, i)
        if j >= 0:
            close_gap(h, table_id + NEXT, j)
        close_gap(h, table_id, i)

    return erase


def _moving(table_id, width, home_of, put_next):
    @compiled()
    def move_on(h, homes):
        """Move the entries of the next `homes` homes; the owner is called when all have moved.

        O(homes) expected: entries with a home lie between it and the next free slot.
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
                # Past the end only those that did not fit before it: no entry is met twice.
                if start <= home < stop and (home > slot) == (i > mask):
                    put_next(h, slot)
            i += 1
        h[table_id + MOVED] = stop
        if stop > mask:
            h[table_id + CALL_AT] = 0

    return move_on


@compiled()
def find_value(h, column, i, value):
    """Slot of a value that is in a table of width 1, at i or after it."""
    table = u32_view(h, column)
    mask = mask_of(h, column, 1)
    while table[i] != value:
        i = (i + 1) & mask
    return i
