"""Tests of growing tables, widening slots and exhausted memory: exact results in every step."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest

from indexer import page_memory
from indexer.index import block_tree, index_memory, prefix_index
from indexer.index import header_kernels as state
from indexer.index.block_tree import KEYED_ROOTS_SHARE, ORPHANS_SHARE
from indexer.index.keyed_roots import ROOT_BYTES, SeedParts
from indexer.index.orphans import ORPHAN_BYTES
from indexer.index.prefix_index import PrefixIndex
from indexer.index.slot_writer import STEP_BLOCKS_MAX
from indexer.jit.mutex import Mutex
from indexer.tiers import Tier
from tests.indexer.index_view import slot_blocks

TABLES = (state.NAMES, state.EDGES, state.SET_TABLE, state.RECORDS)
MIB = 1 << 20


def u64(values):
    return np.array(values, np.uint64)


class Meanwhile(Mutex):
    """Lock that runs the work of other threads whenever the lock is free."""

    def __init__(self):
        super().__init__()
        self.work = None

    def __enter__(self):
        pass

    def __exit__(self, *_):
        if self.work is not None:
            work, self.work = self.work, None
            work()
            self.work = work


def moved_entries(index, table):
    """Return the number of entries moved to the next table, and the size of the next table."""
    columns = index._tree.memory._columns
    following = columns.get(table + state.NEXT)
    if following is None:
        return 0, 0
    width = state.RECORD_FIELDS if table == state.RECORDS else 1
    return int(np.count_nonzero(following[::width])), following.size


@pytest.mark.parametrize("seed", range(4))
def test_stores_and_removals_are_exact_while_tables_grow(seed):
    """Each block is its own path; two of three slots use a common name for each block."""
    random = Random(seed)
    index = PrefixIndex(20_000)
    writers = [index.open_slot() for _ in range(3)]
    held = [set() for _ in writers]
    seen = set()
    for turn in range(9000):
        slot = random.randrange(3)
        block = random.randrange(1, 3000)
        name = u64([block + 10_000 * (slot // 2)])
        if random.random() < 0.75:
            writers[slot].store(Tier.GPU, None, u64([block]), name, counted=False)
            held[slot].add(block)
        else:
            assert writers[slot].remove(Tier.GPU, name) == (block in held[slot])
            held[slot].discard(block)
        for table in TABLES:
            if 0 < moved_entries(index, table)[0] < index._tree.memory.value(table + state.ENTRIES):
                seen.add(table)
        if turn % 500 == 0:
            index.check_invariants()
    index.check_invariants()
    assert {state.NAMES, state.EDGES, state.RECORDS} <= seen, "no table was ever half moved"
    for block in range(1, 3000):
        expected = [int(block in mine) for mine in held]
        assert index.match(u64([block]))[:, Tier.GPU].tolist() == expected
    for slot, writer in enumerate(writers):
        names = u64(sorted(held[slot])) + np.uint64(10_000 * (slot // 2))
        assert writer.remove(Tier.GPU, names) == len(held[slot])
    assert index.stats().blocks == index.stats().records == 0
    index.check_invariants()


def test_a_table_grows_by_a_bounded_part_with_each_block():
    index = PrefixIndex(100_000)
    writer = index.open_slot()
    steps = []
    for block in range(1, 30_000):
        before = moved_entries(index, state.NAMES)
        writer.store(Tier.GPU, None, u64([block]), u64([block]))
        after = moved_entries(index, state.NAMES)
        if after[1] == before[1] > 0:
            steps.append(after[0] - before[0])
    assert len(steps) > 500
    assert max(steps) < 100


def test_a_large_store_lets_others_work_in_between_and_its_rank_is_not_half_dumped():
    lock = Meanwhile()
    index = PrefixIndex(100_000, lock=lock)
    writer, other = index.open_slot(), index.open_slot()
    names = np.arange(1, 10_001, dtype=np.uint64)
    seen = []

    def look():
        snapshot = index.snapshot()
        seen.append((int(index.match(names)[0, 0]), snapshot.slots, snapshot.positions.get(0)))
        other.store(Tier.GPU, None, u64([7]), u64([7 + len(seen)]))

    lock.work = look
    writer.next_position = prefix_index.StreamPosition(5)
    assert writer.store(Tier.GPU, None, names, names, stream=writer) == 10_000
    lock.work = None
    depths = [depth for depth, _, _ in seen]
    assert depths[0] == STEP_BLOCKS_MAX
    assert all(b - a <= STEP_BLOCKS_MAX for a, b in pairwise(depths))
    for depth, slots, place in seen:
        assert (0 in slots) == (depth == 10_000)
        assert place == (prefix_index.StreamPosition(5) if depth == 10_000 else None)
    index.check_invariants()


def test_a_clear_between_the_steps_of_a_store_ends_the_store():
    lock = Meanwhile()
    index = PrefixIndex(100_000, lock=lock)
    writer = index.open_slot()
    names = np.arange(1, 10_001, dtype=np.uint64)

    lock.work = writer.clear
    assert writer.store(Tier.GPU, None, names, names) == STEP_BLOCKS_MAX
    lock.work = None
    assert index.stats()[:3] == (0, 100_000, 0)
    assert writer.store(Tier.GPU, None, names, names) == 10_000


def test_large_removals_and_copies_are_done_in_steps():
    lock = Meanwhile()
    index = PrefixIndex(100_000, lock=lock)
    writer = index.open_slot()
    names = np.arange(1, 10_001, dtype=np.uint64)
    times = []
    for work in (
        lambda: writer.store(Tier.GPU, None, names, names),
        lambda: writer.store_known(Tier.CPU, names),
        lambda: writer.add_copies(Tier.CPU, names, np.ones(10_000, np.int64)),
        lambda: writer.remove(Tier.CPU, names),
    ):
        count = []
        lock.work = lambda count=count: count.append(1)
        work()
        times.append(len(count))
    lock.work = None
    assert min(times) >= 10_000 // STEP_BLOCKS_MAX
    assert index.match(names)[0].tolist() == [10_000] * 4
    assert writer.remove(Tier.CPU, names) == 10_000
    assert writer.remove(Tier.CPU, names) == 0
    index.check_invariants()


def test_orphans_of_one_parent_are_adopted_in_steps():
    lock = Meanwhile()
    index = PrefixIndex(10_000, lock=lock)
    writer = index.open_slot()
    for name in range(2, 3002):
        writer.store(Tier.GPU, 1, u64([name]), u64([name]))
    seen = []
    lock.work = lambda: seen.append(index.stats().orphans)
    writer.store(Tier.GPU, None, u64([1]), u64([1]))
    lock.work = None
    assert seen[-1] == 0
    assert all(a - b <= block_tree.ADOPT_STEP_MAX for a, b in pairwise([3000, *seen]))
    assert index.stats().blocks == 3001
    index.check_invariants()


def test_slots_widen_in_steps_while_others_change_the_sets(monkeypatch):
    monkeypatch.setattr(index_memory, "WIDEN_BYTES", 1)
    lock = Meanwhile()
    index = PrefixIndex(5000, lock=lock)
    writers = [index.open_slot() for _ in range(64)]
    random = Random(1)
    held = [set() for _ in range(65)]

    def change():
        slot, block = random.randrange(64), random.randrange(1, 400)
        if block in held[slot]:
            writers[slot].remove(Tier.GPU, u64([block]))
            held[slot].discard(block)
        else:
            writers[slot].store(Tier.GPU, None, u64([block]), u64([block]))
            held[slot].add(block)
        if random.random() < 0.02:
            writers[slot].clear()
            held[slot].clear()

    for _ in range(3000):
        change()
    steps = []
    lock.work = lambda: (steps.append(1), [change() for _ in range(3)])
    writers.append(index.open_slot())
    lock.work = None
    assert len(steps) > 100
    index.check_invariants()
    writers[64].store(Tier.GPU, None, u64([1]), u64([1]))
    held[64].add(1)
    for block in range(1, 400):
        expected = [int(block in mine) for mine in held]
        assert index.match(u64([block]))[:, Tier.GPU].tolist() == expected


def test_room_for_slots_is_made_step_by_step(monkeypatch):
    monkeypatch.setattr(index_memory, "WIDEN_BYTES", 1)
    index = PrefixIndex(5000)
    writers = [index.open_slot() for _ in range(60)]
    for block in range(1, 60):
        for writer in writers[block:]:
            writer.store(Tier.GPU, None, u64([block]), u64([block]))
    steps, widened = 0, []
    monkeypatch.setattr(
        index_memory.store_kernels,
        "widen_sets",
        count_calls(index_memory.store_kernels.widen_sets, widened),
    )
    assert index.has_room(4)
    assert not index.has_room(5)
    while index.widen_step(5):
        steps += 1
        assert len(widened) == steps
    assert steps > 50
    done = len(widened)
    assert index.reserve_slots(5) == 65
    assert index.open_slot().slot == 60
    assert len(widened) == done
    index.check_invariants()


def count_calls(call, calls):
    return lambda *given: calls.append(1) or call(*given)


def test_the_lowest_free_slot_is_taken():
    index = PrefixIndex(100)
    writers = [index.open_slot() for _ in range(200)]
    for slot in (150, 3, 77):
        writers[slot].close()
    assert [index.open_slot().slot for _ in range(4)] == [3, 77, 150, 200]


def rows_of(snapshot):
    """Return all contents of a snapshot in a comparable form."""
    places = {0: ()}

    def path(node):
        if node not in places:
            places[node] = (*path(int(snapshot.parent[node])), int(snapshot.local[node]))
        return places[node]

    nodes = {
        path(int(node)): (
            int(snapshot.engine[node]),
            snapshot.sets[snapshot.holders[node]][:, :1].tobytes(),
        )
        for node in np.flatnonzero(snapshot.holders)
    }
    keys = (path(int(r["key" if r["kind"] else "node"])) for r in snapshot.records)
    records = sorted(
        (key, int(r["slot"]), int(r["tier"]), int(r["kind"]), int(r["count"]))
        for key, r in zip(keys, snapshot.records, strict=True)
    )
    return nodes, records, snapshot.slots, dict(snapshot.positions), sorted(snapshot.orphans)


@pytest.mark.parametrize("seed", range(6))
def test_a_snapshot_shows_its_first_moment_despite_changes(seed, monkeypatch):
    monkeypatch.setattr(prefix_index.SnapshotCopy, "copy_step", small_steps)
    lock = Meanwhile()
    index = PrefixIndex(3000, lock=lock)
    writers = [index.open_slot() for _ in range(4)]
    random = Random(seed)

    def change():
        slot, tier = random.randrange(4), random.choice(list(Tier))
        path = [random.randrange(1, 5) for _ in range(random.randrange(1, 6))]
        names = [hash((slot % 3, *path[: n + 1])) & 2**40 - 1 for n in range(len(path))]
        kind = random.random()
        if kind < 0.6:
            writers[slot].store(tier, None, u64(path), u64(names), counted=kind < 0.3)
        elif kind < 0.95:
            writers[slot].remove(tier, u64(names[-2:]))
        elif kind < 0.97:
            writers[slot].store(tier, 5, u64([1]), u64([random.randrange(1, 9)]))
        else:
            writers[slot].clear()
        if index.n_slots < 70 and random.random() < 0.1:
            index.open_slot()

    for _ in range(600):
        change()
    expected = rows_of(index.snapshot())
    during = []

    def meanwhile():
        if index._tree.memory.snapshot_arrays:
            during.append(1)
            for _ in range(5):
                change()

    lock.work = meanwhile
    assert rows_of(index.snapshot()) == expected
    lock.work = None
    assert len(during) > 20
    assert rows_of(index.snapshot()) != expected
    index.check_invariants()


def small_steps(copy, step=prefix_index.SnapshotCopy.copy_step):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("indexer.index.index_snapshot.COPY_STEP_BYTES", 400)
        return step(copy)


@pytest.mark.parametrize(("ranks", "bytes_max"), [(64, 2 * MIB), (512, 4 * MIB)])
def test_hostile_holders_do_not_take_more_than_the_bytes_allowed(ranks, bytes_max):
    """Every block has its own holders; removals make the holders differ even more."""
    index = PrefixIndex(1 << 20, bytes_max=bytes_max, orphan_blocks_max=100)
    writers = [index.open_slot() for _ in range(ranks)]
    random = Random(1)
    stored = [set() for _ in writers]
    for first in range(1, 40_000, 100):
        names = np.arange(first, first + 100, dtype=np.uint64)
        for slot in random.sample(range(ranks), 6):
            some = names[np.array([random.random() < 0.5 for _ in names])]
            for name in some:
                if writers[slot].store(Tier.GPU, None, u64([name]), u64([name])):
                    stored[slot].add(int(name))
        assert index.stats().bytes <= bytes_max
    assert index.stats().refused_blocks > 0
    held = slot_blocks(index)[:, Tier.GPU].tolist()
    assert held == [len(mine) for mine in stored]
    for slot in random.sample(range(ranks), ranks // 2):
        names = u64(sorted(stored[slot])[::2])
        writers[slot].remove(Tier.GPU, names)
        stored[slot] -= set(names.tolist())
        assert index.stats().bytes <= bytes_max
    index.check_invariants()
    for block in range(1, 40_000, 97):
        row = index.match(u64([block]))[:, Tier.GPU]
        assert all(block in stored[slot] for slot in np.flatnonzero(row)), "it was removed"


def test_a_rank_without_room_for_a_removal_forgets_everything():
    """Removals alone make the holders differ, while the index has no spare memory."""
    index = PrefixIndex(4000, orphan_blocks_max=0)
    writers = [index.open_slot() for _ in range(12)]
    names = np.arange(1, 3001, dtype=np.uint64)
    for writer in writers:
        for name in names:
            writer.store(Tier.GPU, None, u64([name]), u64([name]))
    tree = index._tree
    tree.header[state.BYTES_LEFT] = 20 * tree.header[state.SET_BYTES]
    held = [set(names.tolist()) for _ in writers]
    random = Random(1)
    for _ in range(400):
        slot, name = random.randrange(12), random.randrange(1, 3001)
        writers[slot].remove(Tier.GPU, u64([name]))
        held[slot].discard(name)
    assert index.stats().refused_blocks > 0
    assert tree.slots_to_clear == set()
    index.check_invariants()
    for name in range(1, 3001):
        row = index.match(u64([name]))[:, Tier.GPU]
        assert all(name in held[slot] for slot in np.flatnonzero(row)), "it was removed"


def test_orphans_take_their_share_of_the_bytes():
    index = PrefixIndex(1000, bytes_max=MIB)
    writer = index.open_slot()
    for name in range(2, 1000):
        writer.store(Tier.GPU, 1, u64([name]), u64([name]))
    stats = index.stats()
    assert stats.orphans == MIB // ORPHANS_SHARE // ORPHAN_BYTES
    assert stats.dropped_orphans == 998 - stats.orphans
    assert stats.bytes <= MIB


def test_first_blocks_with_keys_take_their_share_of_the_bytes():
    tree = PrefixIndex(1000, bytes_max=MIB)._tree
    before = tree.nbytes()
    most = 0
    for content in range(1, 1000):
        tree.add_keyed_root(content, SeedParts(content, 0))
        most = max(most, len(tree.keyed_roots))
        assert tree.nbytes() == before + len(tree.keyed_roots) * ROOT_BYTES <= MIB
    assert most == MIB // KEYED_ROOTS_SHARE // ROOT_BYTES


class Allocator:
    """Replacement of `memory.zeroed_array` that refuses some calls."""

    def __init__(self, refuses):
        self.calls = 0
        self.refuses_all = refuses
        self._zeros = index_memory.zeroed_array

    def __call__(self, length, dtype):
        self.calls += 1
        if self.refuses_all(self.calls):
            raise MemoryError
        return self._zeros(length, dtype)


def test_an_index_for_which_there_is_no_memory_is_not_made(monkeypatch):
    counting = Allocator(lambda _: False)
    monkeypatch.setattr(index_memory, "zeroed_array", counting)
    PrefixIndex(100_000)
    for n in range(1, counting.calls + 1):
        monkeypatch.setattr(index_memory, "zeroed_array", Allocator(lambda call, n=n: call == n))
        with pytest.raises(MemoryError):
            PrefixIndex(100_000)


def test_a_refused_allocation_is_a_memory_error(monkeypatch):
    def refuse(*_, **__):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(page_memory, "mmap", refuse)
    with pytest.raises(MemoryError):
        PrefixIndex(1 << 20)


def test_a_table_that_cannot_grow_refuses_and_grows_when_it_can(monkeypatch):
    index = PrefixIndex(100_000)
    one, two = index.open_slot(), index.open_slot()
    monkeypatch.setattr(index_memory, "zeroed_array", Allocator(lambda _: True))
    names = np.arange(1, 5001, dtype=np.uint64)
    stored = one.store(Tier.GPU, None, names, names)
    assert 600 < stored < 1024
    assert index.stats().refused_blocks == 5000 - stored
    for name in names[:2000]:
        two.store(Tier.GPU, None, u64([name]), u64([name + 10_000]))
    index.check_invariants()
    assert index.match(names)[0, 0] == stored
    one.remove(Tier.GPU, names[:stored:2].copy())
    index.check_invariants()
    monkeypatch.undo()
    one.clear()
    two.clear()
    assert one.store(Tier.GPU, None, names, names) < 5000, "the first block is what tries again"
    assert one.store(Tier.GPU, None, names, names) == 5000
    index.check_invariants()


def test_slots_that_find_no_memory_are_refused_and_nothing_changes(monkeypatch):
    index = PrefixIndex(1000)
    writers = [index.open_slot() for _ in range(64)]
    writers[0].store(Tier.GPU, None, u64([1, 2]), u64([1, 2]))
    for n in (1, 2, 3, 4):
        monkeypatch.setattr(index_memory, "zeroed_array", Allocator(lambda call, n=n: call == n))
        with pytest.raises(MemoryError):
            index.open_slot()
        index.check_invariants()
        assert index.n_slots == 64
    monkeypatch.undo()
    assert index.open_slot().slot == 64
    assert index.match(u64([1, 2]))[0, 0] == 2


def test_a_snapshot_without_memory_leaves_the_index_as_it_is(monkeypatch):
    index = PrefixIndex(1000)
    writer = index.open_slot()
    writer.store(Tier.GPU, None, u64([1, 2]), u64([1, 2]))

    def refuse(*_):
        raise MemoryError

    monkeypatch.setattr(prefix_index.SnapshotCopy, "reserve_arrays", refuse)
    with pytest.raises(MemoryError):
        index.snapshot()
    monkeypatch.undo()
    assert index.snapshot().slots == (0,)
    index.check_invariants()
