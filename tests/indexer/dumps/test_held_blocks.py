"""Tests of the adoption of a dumped slot by another index, which gets exactly the dumped blocks."""

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from indexer.dumps.recovered_blocks import (
    COPIES_MAX,
    Adoption,
    DumpedPartition,
    adopt_blocks,
    narrow_to_ranks,
)
from indexer.index.index_snapshot import StreamPosition
from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import Tier
from tests.builders.polling import CPU_S_MAX
from tests.indexer.dumps.dump_scenes import attach
from tests.indexer.index_view import slot_blocks

PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple)
TIERS = st.sampled_from(Tier)
SLOTS = st.integers(0, 2)
DIALECTS = st.integers(0, 1)
STORES = st.tuples(st.just("store"), SLOTS, TIERS, DIALECTS, PATHS, st.integers(0, 3))
NAMED = st.tuples(st.sampled_from(["known", "remove"]), SLOTS, TIERS, DIALECTS, PATHS)
STEPS = st.lists(STORES | NAMED, max_size=25)


def name_of(dialect, path):
    """Return an engine's hash of the block at the end of the path in a dialect."""
    return xxh3_64_intdigest(bytes(path), dialect)


def u64(values):
    return np.array(list(values), np.uint64)


def play(steps, writers):
    """Apply stores of chains below any parent, hash-only stores and removals."""
    for kind, slot, tier, dialect, path, *begin in steps:
        name = u64([name_of(dialect, path)])
        if kind == "store":
            start = min(begin[0], len(path) - 1)
            parent = name_of(dialect, path[:start]) if start else None
            names = u64(name_of(dialect, path[: i + 1]) for i in range(start, len(path)))
            writers[slot].store(tier, parent, u64(path[start:]), names)
        elif kind == "known":
            writers[slot].store_known(tier, name)
        else:
            writers[slot].remove(tier, name)


def held_of(index):
    return DumpedPartition("m:t", 4, {(slot, 0): slot for slot in range(3)}, index.snapshot())


def behaviour(index, writers, before, after):
    """Return matches and counts now, after more steps, and while everything is removed."""
    paths = [u64(path) for *_, path in (step[:5] for step in before + after)]
    seen = [index.match(path).tolist() for path in paths]
    counts = [slot_blocks(index).tolist()]
    play(after, writers)
    seen += [index.match(path).tolist() for path in paths]
    for _, slot, tier, dialect, path, *_ in before + after:
        for end in range(len(path)):
            writers[slot].remove(tier, u64([name_of(dialect, path[: end + 1])]))
        counts.append(slot_blocks(index).tolist())
        seen += [index.match(path).tolist() for path in paths]
    return seen, counts


@given(STEPS, STEPS)
def test_an_attached_slot_behaves_like_the_original_ever_after(before, after):
    index = PrefixIndex(1000)
    writers = [index.open_slot() for _ in range(3)]
    play(before, writers)
    held = held_of(index)
    copy = PrefixIndex(1000)
    copies = [copy.open_slot() for _ in range(3)]
    for slot in (2, 0, 1):
        attach(held, (slot, 0), copies[slot])
    copy.check_invariants()
    assert behaviour(copy, copies, before, after) == behaviour(index, writers, before, after)


@given(STEPS, STEPS, SLOTS)
def test_a_narrowed_dump_has_all_of_its_ranks_and_nothing_else(before, after, slot):
    index = PrefixIndex(1000)
    play(before, [index.open_slot() for _ in range(3)])
    held = held_of(index)
    alone = narrow_to_ranks(held._replace(ranks={(slot, 0): slot}))
    seen = []
    for dump in (held, alone):
        copy = PrefixIndex(1000)
        writers = [copy.open_slot() for _ in range(3)]
        attach(dump, (slot, 0), writers[slot])
        seen.append(behaviour(copy, writers, before, after))
    assert seen[0] == seen[1]
    (mine,) = slot_blocks(index)[slot : slot + 1]
    assert alone.blocks <= mine.sum()
    assert alone.snapshot.slots == (slot,)
    assert narrow_to_ranks(alone) is alone


def test_the_place_of_the_stream_comes_along():
    index = PrefixIndex(100)
    writers = [index.open_slot() for _ in range(3)]
    writers[0].store(Tier.GPU, None, u64([1]), u64([11]))
    writers[1].store(Tier.GPU, None, u64([1]), u64([11]))
    writers[0].position = StreamPosition(7, 2)
    copy = PrefixIndex(100)
    copies = [copy.open_slot() for _ in range(3)]
    for slot in range(3):
        attach(held_of(index), (slot, 0), copies[slot])
    assert [writer.position for writer in copies] == [StreamPosition(7, 2), None, None]
    assert [writer.has_unpositioned_blocks for writer in copies] == [False, True, False]


def test_a_change_and_its_place_are_one_step():
    index = PrefixIndex(100)
    writer, sibling = index.open_slot(), index.open_slot()
    writer.next_position = StreamPosition(3, 1)
    sibling.store(Tier.GPU, None, u64([1]), u64([11]), stream=writer)
    assert index.snapshot().positions == {0: StreamPosition(3, 1)}
    writer.next_position = StreamPosition(3, 2)
    assert index.snapshot().positions == {0: StreamPosition(3, 1)}
    sibling.clear(stream=writer)
    assert index.snapshot().positions == {0: StreamPosition(3, 2)}


@given(STEPS, STEPS, st.integers(0, 5))
def test_copies_given_as_a_number_are_as_good_as_announcements_repeated(before, after, copies):
    index, twin = PrefixIndex(1000), PrefixIndex(1000)
    writers, twins = ([each.open_slot() for _ in range(3)] for each in (index, twin))
    repeated = []
    for step in before:
        play([step], writers)
        play([step], twins)
        if step[0] == "store":
            _, slot, tier, dialect, path, begin = step
            start = min(begin, len(path) - 1)
            names = u64(name_of(dialect, path[: i + 1]) for i in range(start, len(path)))
            play([step] * copies, writers)
            twins[slot].add_copies(tier, names, np.full(names.size, copies, np.int64))
            repeated += [("remove", *step[1:4], path[: i + 1]) for i in range(start, len(path))]
    twin.check_invariants()
    paths = [u64(path) for *_, path in (step[:5] for step in before)]
    after = after + repeated * (copies + 1)
    for step in [("clear",), *after]:
        if step[0] != "clear":
            play([step], writers)
            play([step], twins)
        assert slot_blocks(twin).tolist() == slot_blocks(index).tolist()
        for path in paths:
            assert twin.match(path).tolist() == index.match(path).tolist()


def test_many_copies_take_no_longer_than_one():
    """Single blocks share no nodes; some are children of an unknown parent."""
    n = 20_000
    index = PrefixIndex(2 * n)
    writer = index.open_slot()
    names = np.arange(1, n + 1, dtype=np.uint64)
    for name in names:
        writer.store(Tier.GPU, None, u64([name]), u64([name]))
    writer.store(Tier.CPU, 10**9, names[:100], names[:100] + np.uint64(2**40))
    writer.add_copies(Tier.GPU, names, np.full(n, COPIES_MAX - 1))
    orphans = names[:100] + np.uint64(2**40)
    writer.add_copies(Tier.CPU, orphans, np.full(100, COPIES_MAX - 1))
    held = DumpedPartition("m:t", 4, {(0, 0): 0}, index.snapshot())
    begin = time.process_time()
    other = PrefixIndex(2 * n)
    copy = other.open_slot()
    attach(held, (0, 0), copy)
    assert time.process_time() - begin < CPU_S_MAX
    for _ in range(2):
        copy.remove(Tier.GPU, names)
        copy.remove(Tier.CPU, orphans)
    assert slot_blocks(other)[0, 0] == n
    again = {orphan.copies for _, orphan in other.snapshot().orphans}
    assert again == {COPIES_MAX - 2}


def test_a_cancelled_adoption_ends_between_two_runs():
    index = PrefixIndex(100)
    writer = index.open_slot()
    for block in range(10):
        writer.store(Tier.GPU, None, u64([block]), u64([block]))
    held = DumpedPartition("m:t", 4, {(0, 0): 0}, index.snapshot())
    fresh = PrefixIndex(100)
    writers = [fresh.open_slot() for _ in range(2)]
    for each in writers:
        each.is_filling = True
    asked = []

    def is_over():
        asked.append(1)
        return len(asked) > 2

    adopt_blocks([Adoption(held, (0, 0), each) for each in writers], is_over)
    assert slot_blocks(fresh)[:, 0].tolist() == [3, 0]
    assert all(each.is_filling for each in writers)
