"""Tests of the choice of a dump for each rank."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.dumps.recovered_blocks import DumpedPartition
from indexer.dumps.source_selection import blocks_by_slot, select_sources
from indexer.index.index_snapshot import StreamPosition
from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import Tier


def a_dump(ranks, name="m:t", block_size=4, *, tells_times=True):
    """Return a dump with the given blocks.

    ranks: map from worker_id to (number of blocks, position or None, time of the last live batch
    if known)
    """
    index = PrefixIndex(1000)
    slots = {}
    for worker_id, (blocks, place, *live_at) in ranks.items():
        writer = index.open_slot()
        names = np.arange(1, blocks + 1, dtype=np.uint64)
        writer.store(Tier.GPU, None, names, names)
        writer.position = StreamPosition(place) if isinstance(place, int) else place
        writer.live_at = live_at[0] if live_at else None
        slots[worker_id, 0] = writer.slot
    snapshot = index.snapshot()
    if not tells_times:
        snapshot = snapshot._replace(live_at=None)
    return DumpedPartition(name, block_size, slots, snapshot)


def of_the_reference(ranks):
    return a_dump(ranks, tells_times=False)


def choice(*dumps, file=None):
    """Return (source, number of blocks) by worker_id; the file is the last source."""
    found = {}
    past = [] if file is None else [[file]]
    for source, parts in enumerate(select_sources([[dump] for dump in dumps], past)):
        for part in parts:
            blocks = blocks_by_slot(part)
            for (worker_id, _), slot in part.ranks.items():
                assert worker_id not in found
                found[worker_id] = (source, int(blocks[slot]))
    return found


def test_a_nearly_empty_peer_does_not_beat_a_full_file():
    peer = a_dump({1: (1, 1001)})
    file = a_dump({1: (100, 1000)})
    assert choice(peer, file) == {1: (1, 100)}


def test_a_newer_dump_beats_one_with_some_more_blocks():
    assert choice(a_dump({1: (60, 1001)}), a_dump({1: (100, 1000)})) == {1: (0, 60)}
    assert choice(a_dump({1: (100, 1000)}), a_dump({1: (60, 1001)})) == {1: (1, 60)}


def test_different_batches_of_one_number_make_the_newer_dump_a_new_life():
    old, new = StreamPosition(1000, 0, 1), StreamPosition(1000, 0, 2)
    assert choice(a_dump({1: (9, new, 90.0)}), a_dump({1: (100, old, 50.0)})) == {1: (0, 9)}
    assert choice(a_dump({1: (100, old, 50.0)}), a_dump({1: (9, new, 90.0)})) == {1: (1, 9)}
    assert choice(a_dump({1: (9, old, 90.0)}), a_dump({1: (100, old, 50.0)})) == {1: (1, 100)}
    assert choice(a_dump({1: (9, old, 90.0)}), a_dump({1: (100, StreamPosition(1000))})) == {
        1: (1, 100)
    }


def test_the_larger_of_two_dumps_of_a_place_is_chosen():
    assert choice(a_dump({1: (99, 7)}), a_dump({1: (100, 7)})) == {1: (1, 100)}


def test_a_new_life_of_the_engine_beats_the_old_one_that_had_come_further():
    """The new life wins even with few blocks, because the blocks of the old life are gone."""
    old, new = {1: (100, 100, 50.0)}, {1: (3, 4, 60.0)}
    assert choice(a_dump(new), file=a_dump(old)) == {1: (0, 3)}
    assert choice(a_dump(old), a_dump(new)) == {1: (1, 3)}
    assert choice(a_dump(old), file=a_dump(new)) == {1: (1, 3)}


def test_a_new_life_that_has_overtaken_the_old_one_is_newer_too():
    assert choice(a_dump({1: (60, 200, 60.0)}), file=a_dump({1: (100, 100, 50.0)})) == {1: (0, 60)}


def test_nearly_equal_times_are_not_compared():
    dumps = a_dump({1: (60, 1001, 60.0)}), a_dump({1: (60, 1000, 60.5)})
    assert choice(*dumps) == {1: (0, 60)}
    assert choice(*reversed(dumps)) == {1: (1, 60)}


@pytest.mark.parametrize("time", [(), (50.0,)])
def test_without_times_a_live_source_behind_a_file_has_a_new_life(time):
    file = a_dump({1: (100, 100, *time)}, tells_times=bool(time))
    assert choice(of_the_reference({1: (3, 4)}), file=file) == {1: (0, 3)}
    assert choice(a_dump({1: (3, 4, 60.0)}), file=of_the_reference({1: (100, 100)})) == {1: (0, 3)}


def test_a_peer_during_a_replay_has_no_new_life():
    assert choice(a_dump({1: (3, 4)}), file=a_dump({1: (100, 100, 50.0)})) == {1: (1, 100)}
    assert choice(a_dump({1: (3, 4)}), a_dump({1: (100, 100, 50.0)})) == {1: (1, 100)}


def test_without_places_the_first_source_counts_as_the_newer():
    assert choice(a_dump({1: (60, None)}), a_dump({1: (100, 7)})) == {1: (0, 60)}
    assert choice(a_dump({1: (40, 9)}), a_dump({1: (100, None)})) == {1: (1, 100)}


def test_each_rank_is_chosen_separately_from_any_source():
    peer = a_dump({1: (50, 10), 2: (1, 10)})
    file = a_dump({1: (50, 5), 2: (50, 5), 3: (50, 5)})
    assert choice(peer, file) == {1: (0, 50), 2: (1, 50), 3: (1, 50)}


def test_other_names_and_block_sizes_are_other_partitions():
    dumps = [a_dump({1: (5, 1)}), a_dump({1: (9, 2)}, block_size=8), a_dump({1: (9, 2)}, "n:t")]
    assert [len(parts) for parts in select_sources([[dump] for dump in dumps])] == [1, 1, 1]


def test_blocks_of_ranks_that_come_from_elsewhere_are_left_behind():
    peer = a_dump({1: (50, 10), 2: (1, 10)})
    file = a_dump({1: (2, 5), 2: (50, 5)})
    (from_peer,), (from_file,) = select_sources([[peer], [file]])
    assert (set(from_peer.ranks), from_peer.blocks) == ({(1, 0)}, 50)
    assert (set(from_file.ranks), from_file.blocks) == ({(2, 0)}, 50)


def test_no_source_gives_nothing():
    assert select_sources([]) == []
    assert select_sources([[], []]) == [[], []]


RANKS = st.dictionaries(
    st.integers(0, 4), st.tuples(st.integers(0, 9), st.none() | st.integers(0, 3)), max_size=4
)


@given(st.lists(RANKS, max_size=3))
def test_every_rank_is_taken_once_and_never_the_emptiest_by_far(sources):
    found = choice(*map(a_dump, sources))
    assert set(found) == set().union(*sources)
    for worker_id, (source, blocks) in found.items():
        assert sources[source][worker_id][0] == blocks
        if len(sources) == 2:
            assert blocks * 2 >= max(ranks[worker_id][0] for ranks in sources if worker_id in ranks)
