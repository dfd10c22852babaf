"""Tests of names, contents and holders chosen by attackers, which must not crowd any table."""

from random import Random

import numpy as np
import pytest

from indexer.index import header_kernels as state
from indexer.index.overflow_record_kernels import ALIAS
from indexer.index.prefix_index import PrefixIndex
from indexer.index.tree_kernels import NAMESAKES_MAX
from indexer.tiers import Tier
from tests.indexer.index.rules import u64
from tests.models.prefix_index_model import PlaceModel

GOLDEN, U64_MAX = 0x9E3779B97F4A7C15, 2**64 - 1
CROWD = 1500
"""Entries in a table of 4,096 slots."""


def spread(number):
    """Return the hash of the home slot for seed 0."""
    product = number * GOLDEN
    return (product ^ product >> 64) & U64_MAX


def numbers_of_few_homes(draw, hash_of):
    """Return numbers with homes among the first 16 of the table."""
    found = {}
    while len(found) < CROWD:
        number = draw()
        if (hash_of(number) >> 20) & 4095 < 16:
            found[number] = None
    return list(found)


def longest_run(index, table, width=1):
    """Return the length of the longest run of used entries of a table."""
    used = index._tree.memory.column(table).reshape(-1, width)[:, 0] != 0
    free = np.flatnonzero(~used)
    return int(np.diff(np.append(free, free[0] + len(used))).max()) - 1


def store_names(index, names):
    """Fill the table of names with blocks under these names."""
    writer = index.open_slot()
    for at in range(0, CROWD, 50):
        part = names[at : at + 50]
        assert writer.store(Tier.GPU, None, u64(*range(at, at + len(part))), u64(*part)) == len(
            part
        )
    return longest_run(index, state.NAMES)


def store_contents(index, contents):
    """Fill the table of edges with first blocks of prompts with these contents."""
    writer = index.open_slot()
    for name, content in enumerate(contents, 1):
        writer.store(Tier.GPU, None, u64(content), u64(name))
    return longest_run(index, state.EDGES)


ALIAS_META = (Tier.GPU << 1 | ALIAS) + 1 + (1 << 1 + state.TIER_BITS)


def store_aliases(index, keys):
    """Fill the table of records with blocks for which the first slot has another name."""
    one, two = index.open_slots(2)
    mixed = ALIAS_META * 0xD6E8FEB86659FD93 & U64_MAX
    for content, key in enumerate(keys):
        one.store(Tier.GPU, None, u64(content), u64(content))
        two.store(Tier.GPU, None, u64(content), u64(key ^ mixed))
    return longest_run(index, state.RECORDS, state.RECORD_FIELDS)


def store_sets(index, words):
    """Fill the table of holder sets with blocks that have these bits as holders."""
    writers = index.open_slots(64)
    for name, word in enumerate(words):
        for slot in range(64):
            if word >> slot & 1:
                writers[slot].store(Tier.GPU, None, u64(name), u64(name))
    assert index.stats().holder_sets >= CROWD
    return longest_run(index, state.SET_TABLE)


def four_bits(rng):
    return sum(1 << bit for bit in rng.sample(range(64), 4))


def few_homes(store, rng):
    if store is store_sets:
        return numbers_of_few_homes(lambda: four_bits(rng), lambda word: spread(word ^ spread(1)))
    return numbers_of_few_homes(lambda: rng.getrandbits(64), spread)


@pytest.mark.parametrize("store", [store_names, store_contents, store_aliases, store_sets])
def test_numbers_chosen_by_others_crowd_no_table(store):
    crowded, index = PrefixIndex(10_000), PrefixIndex(10_000)
    crowded._tree.memory.header[state.HASH_SEED] = 0
    chosen = few_homes(store, Random(1))
    assert store(crowded, chosen) > 1000
    assert store(index, chosen) < 200


INVERSE = pow(GOLDEN, -1, 2**64)


@pytest.mark.parametrize("step", [1, INVERSE, 1 << 20, 1 << 32, 1 << 44, 1 << 49])
@pytest.mark.parametrize("store", [store_names, store_contents, store_aliases])
def test_numbers_in_steps_crowd_no_table(store, step):
    chosen = [(number + 1) * step & U64_MAX for number in range(CROWD)]
    assert store(PrefixIndex(10_000), chosen) < 200


def test_blocks_of_one_name_crowd_no_table():
    """A name moves to the next block, and earlier blocks stay in another tier."""
    index = PrefixIndex(10_000)
    writer = index.open_slot()
    for number in range(CROWD):
        writer.store(Tier.GPU, None, u64(number), u64(7))
        writer.store(Tier.CPU, None, u64(number), u64(10**9 + number))
    assert longest_run(index, state.NAMES) < 200
    index.check_invariants()


CONTENTS, STEPS, OWN_NAMES = 400, 4000, 10**9


@pytest.mark.parametrize("seed", range(4))
def test_blocks_with_too_many_namesakes_are_held_like_others(seed):
    rng, index, twin = Random(seed), PrefixIndex(10_000), PlaceModel()
    writers, shared = index.open_slots(3), 0

    def store(writer, tier, content, name):
        writer.store(tier, None, u64(content), u64(name))
        twin.store(writer.slot, tier, None, [content], [name], True)

    for step in range(STEPS):
        writer, content = rng.choice(writers), rng.randrange(1, CONTENTS)
        if rng.random() < 0.7:
            store(writer, Tier.GPU, content, 7)
            store(rng.choice(writers), Tier.CPU, content, OWN_NAMES + content)
        else:
            tier, name = rng.choice([(Tier.GPU, 7), (Tier.CPU, OWN_NAMES + content)])
            writer.remove(tier, u64(name))
            twin.remove(writer.slot, tier, [name])
        shared = max(shared, index._tree.memory.value(state.NAMES_SHARED))
        if step % 400 == 0:
            index.check_invariants()
            for asked in range(1, CONTENTS):
                rows = index.match(u64(asked))
                for each in writers:
                    assert rows[each.slot].tolist() == twin.match(each.slot, [asked])
    assert shared == NAMESAKES_MAX - 1
