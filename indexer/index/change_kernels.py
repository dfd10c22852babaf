"""Changes of one slot, several in one compiled call: chains that are stored, names that go."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled
from indexer.index.holding_kernels import find_known
from indexer.index.kernels import holder_slot, holder_tier, remove, store_on
from indexer.index.state_kernels import (
    CURSOR,
    ENGINE,
    HASHES,
    HEADER,
    NAMES,
    NEED,
    WAITING,
    I,
    U,
    home,
    i64_view,
    u32_view,
    u64_view,
)
from indexer.index.tree_kernels import find_child
from indexer.mutex_kernels import enter, leave, stay
from indexer.prefetch_kernels import prefetch

# Of a change.
(
    IS_STORE,
    HOLDER,  # slot << 3 | tier << 1 | counted
    IS_BELOW,  # of a store: it is below a parent, and not the root
    PARENT,  # the 64 bits of its engine hash
    EVERY_COPY,  # of a removal: undo all announcements, and not one
    BEGIN,  # of its part of names and blocks
    STOP,
    AT,  # how many of them are done
    COUNT,  # out: how many were recorded, or known; NO_PARENT: none, the parent is not known
) = range(9)
CHANGE_LENGTH = 9

NO_PARENT = -1
REMOVED, STORED = range(2)
"""Places in `totals`."""

FETCHED_MAX = 64
"""Names of several changes that are fetched together."""

# Of the writer whose changes they are: 1 = it takes changes; 0 or 1, which of two places of its
# stream counts; its slot, or NO_SLOT where neither orphans nor places matter.
TAKES, PLACE, SLOT = range(3)
WRITER_LENGTH = 3
NO_SLOT = -1

REFUSED = -1


@compiled()
def _fetch(h, names):
    """Let what the table of names has for them come into the cache, all at once.

    Each lies somewhere else, and so does what stands there: one after the other they would be
    waited for, and that takes longer than everything else about a block.
    """
    table = u32_view(h, NAMES)
    engine = u64_view(h, ENGINE)
    mask = I(table.shape[0] - 1)
    for name in names:
        prefetch(table, home(name, mask))
    for name in names:
        prefetch(engine, I(table[home(name, mask)]))


@compiled()
def _fetch_few(h, changes, names):
    """`_fetch` for all changes, if they have few names.  Returns whether they have."""
    begin, stop = changes[0, BEGIN], changes[changes.shape[0] - 1, STOP]
    if stop - begin > FETCHED_MAX:
        return False
    _fetch(h, names[begin:stop])
    return True


@compiled()
def _store(h, change, names, blocks, totals, is_fetched):
    holder = change[HOLDER]
    if change[AT] == 0:
        h[NEED] = 0
        h[CURSOR] = I(0)
        if change[IS_BELOW] != 0:
            h[CURSOR] = find_known(h, holder_slot(holder), holder_tier(holder), U(change[PARENT]))
            if h[CURSOR] == 0:
                change[COUNT] = NO_PARENT
                return
        # Names of blocks that are there are not looked for.
        if not is_fetched and names.shape[0] > 1 and find_child(h, h[CURSOR], blocks[0]) == 0:
            _fetch(h, names)
    done = store_on(h, holder, blocks, names, change[AT])
    totals[STORED] += done - change[AT]
    change[AT] = change[COUNT] = done


@compiled()
def _remove(h, change, names, totals, is_fetched):
    if not is_fetched and change[AT] == 0:
        _fetch(h, names)
    removed = remove(h, change[HOLDER], names, change[EVERY_COPY] != 0, change[AT])
    totals[REMOVED] += removed
    change[COUNT] += removed
    change[AT] = h[CURSOR]


@compiled()
def _refuses(h, writer):
    """Is the slot closed or cleared, or do orphans wait for what it announces?"""
    if writer[TAKES] == 0:
        return True
    return writer[SLOT] != NO_SLOT and i64_view(h, WAITING)[writer[SLOT]] != 0


@compiled()
def _carry_out(h, changes, first, last, names, blocks, totals):
    are_fetched = last - first > 1 and _fetch_few(h, changes[first:last], names)
    for k in range(first, last):
        change = changes[k]
        part = names[change[BEGIN] : change[STOP]]
        if change[IS_STORE] != 0:
            _store(h, change, part, blocks[change[BEGIN] : change[STOP]], totals, are_fetched)
        else:
            _remove(h, change, part, totals, are_fetched)
        if change[AT] < part.shape[0] or change[COUNT] == NO_PARENT:
            return k
    return last


@compiled(
    f"int64({HEADER}, int64[:, ::1], int64, int64, {HASHES}, {HASHES}, int64[::1], int64[::1],"
    " int64)"
)
def carry_out(h, changes, first, last, names, blocks, totals, writer, mutex):
    """Carry out changes[first:last].  Returns the first that is not wholly done, or `last`.

    changes: int64 [n, CHANGE_LENGTH]; one that is begun goes on where it stopped
    names, blocks: uint64 [n], engine and content hashes
    totals: int64 [2], what is removed and stored is added
    writer: int64 [WRITER_LENGTH]; REFUSED, and nothing is done, when it takes no changes.  With the
            last change its other place counts
    mutex:  that of the index, which is taken, and given back with the last change or REFUSED: for
            what is left the caller has it.  0: the caller has it anyway

    One that stops has no known parent, or NEED is set, or the index is full: of a store the rest is
    refused and counted, of a removal the rest is to be forgotten with everything else of the slot.
    """
    thread = enter(mutex)
    if _refuses(h, writer):
        leave(mutex, thread)
        return I(REFUSED)
    done = _carry_out(h, changes, first, last, names, blocks, totals)
    if done < last:
        stay(thread)
        return done
    writer[PLACE] ^= 1
    leave(mutex, thread)
    return done
