"""Attachment of a dumped slot to another index: what it gives is what was dumped, exactly."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from indexer.held_blocks import DumpedPartition, attach
from indexer.index_snapshot import Place
from indexer.prefix_index import PrefixIndex
from indexer.tiers import Tier

LOCALS = st.integers(0, 2)
NAMES = st.integers(0, 9)
TIERS = st.sampled_from(Tier)
SLOTS = st.integers(0, 2)
STORES = st.tuples(
    st.just("store"),
    SLOTS,
    TIERS,
    st.none() | NAMES,
    st.lists(st.tuples(LOCALS, NAMES), min_size=1, max_size=4, unique_by=lambda b: b[1]),
)
KNOWN = st.tuples(st.just("known"), SLOTS, TIERS, st.lists(NAMES, min_size=1, max_size=3))
REMOVALS = st.tuples(st.just("remove"), SLOTS, TIERS, st.lists(NAMES, min_size=1, max_size=3))
STEPS = st.lists(STORES | KNOWN | REMOVALS, max_size=20)


def u64(values):
    return np.array(list(values), np.uint64)


def play(steps, writers):
    for kind, slot, tier, *rest in steps:
        if kind == "store":
            parent, blocks = rest
            locals_, names = u64(b for b, _ in blocks), u64(n for _, n in blocks)
            writers[slot].store(tier, parent, locals_, names)
        elif kind == "known":
            writers[slot].store_known(tier, u64(rest[0]))
        else:
            writers[slot].remove(tier, u64(rest[0]))


def held_of(index):
    return DumpedPartition("m:t", 4, {(slot, 0): slot for slot in range(3)}, index.snapshot())


def behaviour(index, writers, steps):
    """Matches of every short path, now, after repeating the steps and after some removals."""
    paths = [u64(p) for p in np.ndindex(3, 3, 3)]
    seen = [index.match(path).tolist() for path in paths]
    counts = [index.slot_blocks().tolist()]
    play(steps, writers)
    seen += [index.match(path).tolist() for path in paths]
    for name in range(10):
        for writer in writers:
            for tier in Tier:
                writer.remove(tier, u64([name]))
        counts.append(index.slot_blocks().tolist())
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
    assert behaviour(copy, copies, after) == behaviour(index, writers, after)


def test_the_place_of_the_stream_comes_along():
    index = PrefixIndex(100)
    writers = [index.open_slot() for _ in range(3)]
    writers[0].store(Tier.GPU, None, u64([1]), u64([11]))
    writers[1].store(Tier.GPU, None, u64([1]), u64([11]))
    writers[0].place = Place(7, 2)
    copy = PrefixIndex(100)
    copies = [copy.open_slot() for _ in range(3)]
    for slot in range(3):
        attach(held_of(index), (slot, 0), copies[slot])
    assert [writer.place for writer in copies] == [Place(7, 2), None, None]
    assert [writer.unplaced_blocks for writer in copies] == [False, True, False]


def test_a_change_and_its_place_are_one_step():
    index = PrefixIndex(100)
    writer, sibling = index.open_slot(), index.open_slot()
    writer.upcoming = Place(3, 1)
    sibling.store(Tier.GPU, None, u64([1]), u64([11]), stream=writer)
    assert index.snapshot().places == {0: Place(3, 1)}
    writer.upcoming = Place(3, 2)
    assert index.snapshot().places == {0: Place(3, 1)}
    sibling.clear(stream=writer)
    assert index.snapshot().places == {0: Place(3, 2)}
