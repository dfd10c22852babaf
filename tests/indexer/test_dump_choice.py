"""Which dump is believed about which rank."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from indexer.dump_choice import best_of, blocks_by_slot
from indexer.held_blocks import DumpedPartition
from indexer.index_snapshot import Place
from indexer.prefix_index import PrefixIndex
from indexer.tiers import Tier


def a_dump(ranks, name="m:t", block_size=4):
    """ranks: worker_id -> (blocks held, place or None)."""
    index = PrefixIndex(1000)
    slots = {}
    for worker_id, (blocks, place) in ranks.items():
        writer = index.open_slot()
        names = np.arange(1, blocks + 1, dtype=np.uint64)
        writer.store(Tier.GPU, None, names, names)
        writer.place = None if place is None else Place(place)
        slots[worker_id, 0] = writer.slot
    return DumpedPartition(name, block_size, slots, index.snapshot())


def choice(*dumps):
    """worker_id -> (source, blocks) of single partitions."""
    found = {}
    for source, parts in enumerate(best_of([[dump] for dump in dumps])):
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


def test_dumps_of_one_place_are_told_apart_by_their_blocks():
    assert choice(a_dump({1: (99, 7)}), a_dump({1: (100, 7)})) == {1: (1, 100)}


def test_where_no_place_is_known_the_first_source_counts_as_the_newer():
    assert choice(a_dump({1: (60, None)}), a_dump({1: (100, 7)})) == {1: (0, 60)}
    assert choice(a_dump({1: (40, 9)}), a_dump({1: (100, None)})) == {1: (1, 100)}


def test_each_rank_is_chosen_for_itself_and_what_only_one_has_comes_from_there():
    peer = a_dump({1: (50, 10), 2: (1, 10)})
    file = a_dump({1: (50, 5), 2: (50, 5), 3: (50, 5)})
    assert choice(peer, file) == {1: (0, 50), 2: (1, 50), 3: (1, 50)}


def test_other_names_and_block_sizes_are_other_partitions():
    dumps = [a_dump({1: (5, 1)}), a_dump({1: (9, 2)}, block_size=8), a_dump({1: (9, 2)}, "n:t")]
    assert [len(parts) for parts in best_of([[dump] for dump in dumps])] == [1, 1, 1]


def test_blocks_of_ranks_that_come_from_elsewhere_are_left_behind():
    peer = a_dump({1: (50, 10), 2: (1, 10)})
    file = a_dump({1: (2, 5), 2: (50, 5)})
    (from_peer,), (from_file,) = best_of([[peer], [file]])
    assert (set(from_peer.ranks), from_peer.blocks) == ({(1, 0)}, 50)
    assert (set(from_file.ranks), from_file.blocks) == ({(2, 0)}, 50)


def test_no_source_gives_nothing():
    assert best_of([]) == []
    assert best_of([[], []]) == [[], []]


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
