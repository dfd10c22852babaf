"""Changes of a slot, several per compiled call: stores of chains and removals of names."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.index.header_kernels import (
    CURSOR,
    ENGINE,
    HASHES,
    HEADER,
    NAMES,
    NEED,
    WAITING,
    I,
    U,
    home_slot,
    i64_view,
    u32_view,
    u64_view,
)
from indexer.index.holder_kernels import find_in_any_tier, holder_slot, holder_tier
from indexer.index.store_kernels import continue_store, remove_blocks
from indexer.index.tree_kernels import find_child
from indexer.jit.decorators import compiled
from indexer.jit.mutex_kernels import keep_mutex, lock_mutex, unlock_mutex
from indexer.jit.prefetch_kernels import prefetch

# Fields of a change.
(
    IS_STORE,
    HOLDER,  # slot, tier and counted, see `block_tree.holder_of`
    IS_BELOW,  # of a store: 1 below a parent, 0 at the root
    PARENT,  # parent's engine hash as 64 bits
    EVERY_COPY,  # of a removal: undo all announcements instead of one
    BEGIN,  # range of the change in names and blocks
    STOP,
    AT,  # number of blocks already done
    COUNT,  # out: number recorded, or known; NO_PARENT for an unknown parent
) = range(9)
CHANGE_LENGTH = 9

NO_PARENT = -1
# Fields of the progress of a call: the range of changes, and out, to be incremented, the blocks.
FIRST, LAST, REMOVED, STORED = range(4)
PROGRESS_LENGTH = 4

PREFETCHED_NAMES_MAX = 64
"""Limit of names of several changes that are prefetched together."""

# Fields of a writer: 1 if changes are taken; which of two places of the stream is valid (0 or 1);
# the slot, or NO_SLOT if neither orphans nor places matter; the address of the index's mutex, or 0
# if the caller has the mutex already.
TAKES_CHANGES, PLACE_INDEX, SLOT, MUTEX = range(4)
WRITER_LENGTH = 4
NO_SLOT = -1

REFUSED = -1


@compiled()
def _prefetch_names(h, names):
    """Prefetch the entries of the name table and their engine hashes, all at once.

    Entries and hashes are scattered in memory: consecutive cache misses would take longer than
    everything else about a block.
    """
    table = u32_view(h, NAMES)
    engine = u64_view(h, ENGINE)
    mask = I(table.shape[0] - 1)
    for name in names:
        prefetch(table, home_slot(h, name, mask))
    for name in names:
        prefetch(engine, I(table[home_slot(h, name, mask)]))


@compiled()
def _prefetch_few(h, changes, names):
    """Run `_prefetch_names` for all changes with few names in all; return whether it ran."""
    begin, stop = changes[0, BEGIN], changes[changes.shape[0] - 1, STOP]
    if stop - begin > PREFETCHED_NAMES_MAX:
        return False
    _prefetch_names(h, names[begin:stop])
    return True


@compiled()
def _store_change(h, change, names, blocks, progress, is_fetched):
    holder = change[HOLDER]
    # A continued store keeps CURSOR, the node to continue below.
    if change[AT] == 0:
        h[NEED] = 0
        h[CURSOR] = I(0)
        if change[IS_BELOW] != 0:
            h[CURSOR] = find_in_any_tier(
                h, holder_slot(holder), holder_tier(holder), U(change[PARENT])
            )
            if h[CURSOR] == 0:
                change[COUNT] = NO_PARENT
                return
        # Names of blocks that exist already are not searched for.
        if not is_fetched and names.shape[0] > 1 and find_child(h, h[CURSOR], blocks[0]) == 0:
            _prefetch_names(h, names)
    done = continue_store(h, holder, blocks, names, change[AT])
    progress[STORED] += done - change[AT]
    change[AT] = change[COUNT] = done


@compiled()
def _remove_change(h, change, names, progress, is_fetched):
    if not is_fetched and change[AT] == 0:
        _prefetch_names(h, names)
    removed = remove_blocks(h, change[HOLDER], names, change[EVERY_COPY] != 0, change[AT])
    progress[REMOVED] += removed
    change[COUNT] += removed
    change[AT] = h[CURSOR]


@compiled()
def _is_refused(h, writer):
    """Return whether the slot is closed or cleared, or has orphans that stores may affect."""
    if writer[TAKES_CHANGES] == 0:
        return True
    return writer[SLOT] != NO_SLOT and i64_view(h, WAITING)[writer[SLOT]] != 0


@compiled()
def _apply_changes(h, changes, names, blocks, progress):
    first, last = progress[FIRST], progress[LAST]
    are_fetched = last - first > 1 and _prefetch_few(h, changes[first:last], names)
    for k in range(first, last):
        change = changes[k]
        part = names[change[BEGIN] : change[STOP]]
        if change[IS_STORE] != 0:
            _store_change(
                h, change, part, blocks[change[BEGIN] : change[STOP]], progress, are_fetched
            )
        else:
            _remove_change(h, change, part, progress, are_fetched)
        if change[AT] < part.shape[0] or change[COUNT] == NO_PARENT:
            return k
    return last


@compiled(f"int64({HEADER}, int64[:, ::1], {HASHES}, {HASHES}, int64[::1], int64[::1])")
def apply_changes(h, changes, names, blocks, progress, writer):
    """Carry out changes[FIRST:LAST].  Return the index of the first unfinished change, or LAST.

    changes: int64 [n, CHANGE_LENGTH]; a change that has begun continues
    names, blocks: uint64 [n], engine and content hashes
    progress: int64 [PROGRESS_LENGTH]; REMOVED and STORED are incremented
    writer: int64 [WRITER_LENGTH]; a writer that takes no changes gives REFUSED without effect.  The
    last change switches the writer to the other place

    This call locks the mutex of the writer, and unlocks it after the last change or on REFUSED: for
    unfinished changes the caller has the lock.  A change stops at an unknown parent, if NEED is
    set, or if the index is full: then the rest of a store is refused and counted, and after the
    rest of a removal the whole slot must be cleared.
    """
    mutex = writer[MUTEX]
    thread = lock_mutex(mutex)
    if _is_refused(h, writer):
        unlock_mutex(mutex, thread)
        return I(REFUSED)
    done = _apply_changes(h, changes, names, blocks, progress)
    if done < progress[LAST]:
        keep_mutex(thread)
        return done
    # Under the mutex, so that a snapshot sees either none of the changes and the old place, or all.
    writer[PLACE_INDEX] ^= 1
    unlock_mutex(mutex, thread)
    return done
