"""Tests of kernels that lock the index themselves, so that no bytecode runs under the lock."""

import threading

import numpy as np
from numba import njit

from indexer.index.block_tree import ChangeBuffer, holder_of
from indexer.index.index_snapshot import StreamPosition
from indexer.index.match_kernels import match_prompt_incremental
from indexer.index.prefix_index import PrefixIndex
from indexer.jit.mutex import Mutex
from indexer.jit.mutex_kernels import lock_mutex, unlock_mutex
from indexer.tiers import N_TIERS, Tier

BLOCKS = 8
"""Number of blocks of a change."""
CHANGES = 4000
DEADLINE_S = 60.0


class CountingMutex(Mutex):
    """Mutex that counts its acquisitions by bytecode.

    times: number of acquisitions
    """

    def __init__(self):
        super().__init__()
        self.times = 0

    def __enter__(self):
        super().__enter__()
        self.times += 1


def a_change(changes, row, slot, number, parent=None):
    """Make a row of the changes store the blocks of this number; names equal hashes."""
    names = np.arange(number * BLOCKS + 1, (number + 1) * BLOCKS + 1, dtype=np.uint64)
    begin, stop = row * BLOCKS, (row + 1) * BLOCKS
    changes.engine_hashes[begin:stop] = changes.content_hashes[begin:stop] = names
    below = (0, 0) if parent is None else (1, parent)
    holder = holder_of(slot, Tier.GPU, counted=True)
    changes.rows[row] = (1, holder, *below, 0, begin, stop, 0, 0)
    changes.used = row + 1


def one_change(slot, number, parent=None):
    changes = ChangeBuffer(1, BLOCKS)
    a_change(changes, 0, slot, number, parent)
    return changes


def carried_out(writer, changes, number):
    return writer.apply_changes(
        changes, StreamPosition(number + 1), lambda done: StreamPosition(number, done)
    )


def test_a_usual_change_takes_the_lock_in_the_kernel_alone():
    lock = CountingMutex()
    index = PrefixIndex(1000, lock=lock)
    writer = index.open_slot()
    before = lock.times
    assert carried_out(writer, one_change(0, 0), 0) == 1
    assert carried_out(writer, one_change(0, 1, parent=BLOCKS), 1) == 1
    assert lock.times == before
    assert writer.position == StreamPosition(2)
    assert index.match(np.arange(1, 17, dtype=np.uint64))[0, 0] == 2 * BLOCKS


def test_stops_of_the_kernel_are_resolved_under_the_same_lock():
    """Tables grow, the lock ends free, and the place counts each change once."""
    lock = CountingMutex()
    index = PrefixIndex(50_000, lock=lock)
    writer = index.open_slot()
    for number in range(1000):
        parent = number * BLOCKS if number else None
        assert carried_out(writer, one_change(0, number, parent), number) == 1
        assert writer.position == StreamPosition(number + 1)
    with lock:
        pass
    index.check_invariants()


def test_an_unknown_parent_leaves_place_and_lock():
    index = PrefixIndex(1000)
    writer = index.open_slot()
    changes = ChangeBuffer(2, 2 * BLOCKS)
    a_change(changes, 0, 0, 0)
    a_change(changes, 1, 0, 5, parent=999)
    assert carried_out(writer, changes, 0) == 1
    assert writer.position == StreamPosition(0, 1)
    changes.rows[0] = changes.rows[1]
    changes.used = 1
    assert carried_out(writer, changes, 0) == 0
    assert writer.position == StreamPosition(0, 1)
    index.check_invariants()


def test_a_slot_that_takes_no_changes_refuses_them():
    index = PrefixIndex(1000)
    waiting, old, closed = (index.open_slot() for _ in range(3))
    u64 = np.array([77], np.uint64)
    waiting.store(Tier.GPU, 999, u64, u64)  # an orphan
    (fresh,) = index.reopen_slots([old])
    closed.close()
    for writer in (waiting, old, fresh, closed):
        assert carried_out(writer, one_change(writer.slot, 0), 0) == 0
        assert writer.position is None
    waiting.remove(Tier.GPU, u64)
    fresh.finish_clear()
    for writer in (waiting, fresh):
        assert carried_out(writer, one_change(writer.slot, 0), 0) == 1
    assert carried_out(old, one_change(old.slot, 0), 0) == 0
    index.check_invariants()


def test_kernels_detect_orphans_after_the_slots_have_doubled():
    index = PrefixIndex(1000)
    writers = [index.open_slot() for _ in range(64)]
    name = np.array([77], np.uint64)
    writers[3].store(Tier.GPU, 999, name, name)
    writers.append(index.open_slot())
    assert carried_out(writers[3], one_change(3, 0), 0) == 0
    assert carried_out(writers[64], one_change(64, 0), 0) == 1
    writers[3].clear()
    assert carried_out(writers[3], one_change(3, 0), 0) == 1


@njit(nogil=True)
def look_on(header, mutex, path, matched, holding, end):
    """Match until end[0] is set; return the numbers of torn matches and of all matches."""
    torn = looked = 0
    while end[0] == 0:
        thread = lock_mutex(mutex)
        match_prompt_incremental(header, path, matched, holding)
        torn += matched[0, 0] % BLOCKS != 0
        looked += 1
        unlock_mutex(mutex, thread)
    return torn, looked


def test_threads_without_the_interpreter_see_whole_changes():
    """Between two matches, changes arrive, tables grow, and Python reads the index."""
    index = PrefixIndex(CHANGES * BLOCKS + 10)
    writer, end = index.open_slot(), np.zeros(1, np.int64)
    path = np.arange(1, CHANGES * BLOCKS + 1, dtype=np.uint64)
    seen, places = [], []

    def look():
        matched, holding = np.zeros((64, N_TIERS), np.int32), np.zeros(1, np.uint64)
        seen.append(look_on(index.header, index.lock.address, path, matched, holding, end))

    def copy():
        while not end[0]:
            snapshot = index.snapshot()
            place = snapshot.positions.get(0, StreamPosition(0))
            places.append((place.next_seq * BLOCKS, len(snapshot.local) - 1))

    end[0] = 1
    look()
    end[0] = 0
    seen.clear()
    threads = [threading.Thread(target=work, daemon=True) for work in (look, look, copy)]
    for thread in threads:
        thread.start()
    for number in range(CHANGES):
        parent = number * BLOCKS if number else None
        assert carried_out(writer, one_change(0, number, parent), number) == 1
    end[0] = 1
    for thread in threads:
        thread.join(DEADLINE_S)
    assert [torn for torn, _ in seen] == [0, 0]
    assert all(blocks == copied for blocks, copied in places)
    assert index.match(path)[0, 0] == CHANGES * BLOCKS
    index.check_invariants()
