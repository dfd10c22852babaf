"""PrefixIndex against its naive twins, on random announcements of a small world.

In the world an engine hash is a function of (seed, place), so one hash names one place; conflicts
have their own tests in test_prefix_index.
"""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from xxhash import xxh3_64_intdigest

from indexer.prefix_index import PrefixIndex
from indexer.tiers import N_TIERS, Tier
from tests.models.prefix_index_model import EdgeModel, PlaceModel

TIERS = st.sampled_from(Tier)
LOCALS = st.integers(1, 3)
PLACES = st.lists(LOCALS, min_size=1, max_size=6).map(tuple)
SLOTS = st.integers(0, 3)
SEEDS = st.integers(0, 2)


def u64(values):
    return np.array(list(values), np.uint64)


def name_of(seed, place):
    return xxh3_64_intdigest(bytes(place), seed)


def names_below(seed, place, start):
    return [name_of(seed, place[: n + 1]) for n in range(start, len(place))]


class PrefixIndexMatchesModels(RuleBasedStateMachine):
    """`pick` in a rule is one of four open slots, whose numbers may lie anywhere."""

    orphans_max = 10_000
    blocks_max = 10_000

    def __init__(self):
        super().__init__()
        self.index = PrefixIndex(self.blocks_max, orphan_blocks_max=self.orphans_max)
        self.places = PlaceModel()
        self.edges = EdgeModel()
        self.writers = []
        self.seed_of = {}  # slot -> its only seed so far, None once it used several

    @initialize(padding=st.sampled_from([0, 3, 62, 130]), spread=st.booleans())
    def open_slots(self, padding, spread):
        padders = [self.index.open_slot() for _ in range(padding)]
        self.writers = [self.index.open_slot() for _ in range(4)]
        if spread:
            for writer in padders[:2]:
                writer.close()
            self.writers[0].close()
            self.writers[0] = self.index.open_slot()

    def stores(self, writer, seed):
        first = self.seed_of.setdefault(writer.slot, seed)
        if first != seed:
            self.seed_of[writer.slot] = None

    @rule(pick=SLOTS, tier=TIERS, seed=SEEDS, place=PLACES, data=st.data(), counted=st.booleans())
    def store(self, pick, tier, seed, place, data, counted):
        writer = self.writers[pick]
        start = data.draw(st.integers(0, len(place) - 1))
        self.stores(writer, seed)
        parent = name_of(seed, place[:start]) if start else None
        names = names_below(seed, place, start)
        stored = writer.store(tier, parent, u64(place[start:]), u64(names), counted=counted)
        assert stored == len(names)
        for model in (self.places, self.edges):
            model.store(writer.slot, tier, parent, place[start:], names, counted)

    @rule(pick=SLOTS, tier=TIERS, seed=SEEDS, place=PLACES, counted=st.booleans())
    def store_known(self, pick, tier, seed, place, counted):
        writer = self.writers[pick]
        names = names_below(seed, place, 0)
        writer.store_known(tier, u64(names), counted=counted)
        for model in (self.places, self.edges):
            model.store_known(writer.slot, tier, names, counted)

    @rule(pick=SLOTS, tier=TIERS, seed=SEEDS, place=PLACES, data=st.data())
    def remove(self, pick, tier, seed, place, data):
        writer = self.writers[pick]
        names = data.draw(st.permutations(names_below(seed, place, 0)))
        names = names[: data.draw(st.integers(1, len(names)))]
        writer.remove(tier, u64(names))
        for model in (self.places, self.edges):
            model.remove(writer.slot, tier, names)

    @rule(pick=SLOTS)
    def clear(self, pick):
        self.writers[pick].clear()
        self.forget(self.writers[pick].slot)

    @rule(pick=SLOTS)
    def reopen(self, pick):
        writer = self.writers[pick]
        writer.close()
        self.forget(writer.slot)
        assert writer.store(Tier.GPU, None, u64([1]), u64([1])) == 0
        self.writers[pick] = self.index.open_slot()

    def forget(self, slot):
        self.places.clear(slot)
        self.edges.clear(slot)
        self.seed_of.pop(slot, None)

    @rule(path=st.lists(LOCALS, max_size=8))
    def match(self, path):
        self.compare(path)

    @precondition(lambda self: self.places.places())
    @rule(data=st.data(), more=st.lists(LOCALS, max_size=2))
    def match_something_stored(self, data, more):
        place = data.draw(st.sampled_from(sorted(self.places.places())))
        self.compare([*place, *more])

    def compare(self, path):
        matched = self.index.match(u64(path))
        assert matched.shape == (self.index.n_slots, N_TIERS)
        for writer in self.writers:
            row = matched[writer.slot].tolist()
            assert row == self.places.match(writer.slot, path)
            if self.seed_of.get(writer.slot) is not None:
                assert row == self.edges.match(writer.slot, path)
        others = set(range(self.index.n_slots)) - {writer.slot for writer in self.writers}
        assert not matched[sorted(others)].any()

    @invariant()
    def counters_agree(self):
        self.index.check_invariants()
        held = self.index.slot_blocks()
        for writer in self.writers:
            assert held[writer.slot].tolist() == self.places.blocks(writer.slot)
        stats = self.index.stats()
        assert stats.blocks == len(self.places.places())
        assert stats.orphans == sum(len(orphans) for orphans in self.places.orphans.values())


class SmallIndexStaysConsistent(RuleBasedStateMachine):
    """An index that is nearly always full, with hash conflicts: only invariants can be asked."""

    def __init__(self):
        super().__init__()
        self.index = PrefixIndex(12, orphan_blocks_max=5)
        self.writers = [self.index.open_slot() for _ in range(3)]

    @rule(
        pick=st.integers(0, 2),
        tier=TIERS,
        parent=st.none() | st.integers(0, 9),
        blocks=st.lists(st.tuples(LOCALS, st.integers(0, 9)), max_size=8),
        counted=st.booleans(),
    )
    def store(self, pick, tier, parent, blocks, counted):
        locals_, names = u64(b for b, _ in blocks), u64(n for _, n in blocks)
        stored = self.writers[pick].store(tier, parent, locals_, names, counted=counted)
        assert 0 <= stored <= len(blocks)

    @rule(pick=st.integers(0, 2), tier=TIERS, names=st.lists(st.integers(0, 9), max_size=5))
    def store_known(self, pick, tier, names):
        self.writers[pick].store_known(tier, u64(names))

    @rule(pick=st.integers(0, 2), tier=TIERS, names=st.lists(st.integers(0, 9), max_size=5))
    def remove(self, pick, tier, names):
        removed = self.writers[pick].remove(tier, u64(names))
        assert 0 <= removed <= len(names)

    @rule(pick=st.integers(0, 2))
    def reopen(self, pick):
        slot = self.writers[pick].slot
        self.writers[pick].close()
        assert not self.index.slot_blocks()[slot].any()
        self.writers[pick] = self.index.open_slot()

    @rule(path=st.lists(LOCALS, max_size=8))
    def match(self, path):
        matched = self.index.match(u64(path))
        assert (matched[:, 1:] >= matched[:, :-1]).all()
        assert matched.min() >= 0
        assert matched.max() <= len(path)

    @invariant()
    def counters_agree(self):
        self.index.check_invariants()
        stats = self.index.stats()
        assert stats.blocks <= 12
        assert stats.orphans <= 5


PrefixIndexMatchesModels.TestCase.settings = settings(stateful_step_count=40)
SmallIndexStaysConsistent.TestCase.settings = settings(stateful_step_count=60)
TestPrefixIndexMatchesModels = PrefixIndexMatchesModels.TestCase
TestSmallIndexStaysConsistent = SmallIndexStaysConsistent.TestCase
