"""Tests of PrefixIndex against its naive twins, with random announcements in a small world.

In the world an engine hash is a function of (seed, place), so a hash names a single place;
test_prefix_index has separate tests of conflicts.
"""

from random import Random

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from xxhash import xxh3_64_intdigest

from indexer.index import header_kernels as state
from indexer.index.index_snapshot import SnapshotCopy
from indexer.index.invariants import split_planes
from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import N_TIERS, Tier
from tests.builders.hypothesis_profiles import explored
from tests.indexer.index_view import plane_blocks, slot_blocks
from tests.models.prefix_index_model import LANES, N_PLANES, EdgeModel, PlaceModel

PLANES = [Tier.GPU, Tier.GPU, *Tier, *range(N_TIERS, N_PLANES)]
"""Tiers and lanes; the GPU tier is more frequent."""
TIERS = st.sampled_from(PLANES)
REAL_TIERS = st.sampled_from([Tier.GPU, Tier.GPU, *Tier])
WORDS_MAX = 4
LOCALS = st.integers(1, 2)
PLACES = st.lists(LOCALS, min_size=1, max_size=5).map(tuple)
SLOTS = st.integers(0, 3)
SEEDS = st.sampled_from([0, 0, 1, 2])


def u64(values):
    return np.array(list(values), np.uint64)


def name_of(seed, place):
    return xxh3_64_intdigest(bytes(place), seed)


def names_below(seed, place, start):
    return [name_of(seed, place[: n + 1]) for n in range(start, len(place))]


class World:
    """Index and its twins, side by side.

    pick: number of one of four open slots, which may have any position in the index
    """

    def __init__(self, padding=0, spread=False):
        self.index = PrefixIndex(10_000, orphan_blocks_max=10_000)
        self.places = PlaceModel()
        self.edges = EdgeModel()
        self.seed_of = {}  # slot -> its only seed so far, None after several seeds
        self.copy = self.at_begin = None
        padders = [self.index.open_slot() for _ in range(padding)]
        self.writers = [self.index.open_slot() for _ in range(4)]
        if spread:
            for writer in padders[:2]:
                writer.close()
            self.writers[0].close()
            self.writers[0] = self.index.open_slot()

    def held_names(self, pick):
        """Return (tier, name) of all blocks that the slot holds in the tree."""
        return sorted(self.places.place[self.writers[pick].slot])

    def held_places(self, pick):
        return sorted(set(self.places.place[self.writers[pick].slot].values()))

    def store(self, pick, tier, seed, place, start, counted):
        """Announce the blocks of `place` from `start` on for a slot."""
        writer = self.writers[pick]
        self.open_lanes(tier)
        if self.seed_of.setdefault(writer.slot, seed) != seed:
            self.seed_of[writer.slot] = None
        parent = name_of(seed, place[:start]) if start else None
        names = names_below(seed, place, start)
        stored = writer.store(tier, parent, u64(place[start:]), u64(names), counted=counted)
        assert stored == len(names)
        for model in (self.places, self.edges):
            model.store(writer.slot, tier, parent, place[start:], names, counted)

    def store_known(self, pick, tier, names, counted):
        writer = self.writers[pick]
        self.open_lanes(tier)
        writer.store_known(tier, u64(names), counted=counted)
        for model in (self.places, self.edges):
            model.store_known(writer.slot, tier, names, counted)

    def remove(self, pick, tier, names):
        writer = self.writers[pick]
        writer.remove(tier, u64(names))
        for model in (self.places, self.edges):
            model.remove(writer.slot, tier, names)

    def clear(self, pick):
        self.writers[pick].clear()
        self._forget(self.writers[pick].slot)

    def reopen(self, pick):
        writer = self.writers[pick]
        writer.close()
        self._forget(writer.slot)
        assert writer.store(Tier.GPU, None, u64([1]), u64([1])) == 0
        self.writers[pick] = self.index.open_slot()

    def open_lanes(self, tier):
        """Give the index planes for `tier` if the tier is a lane."""
        while self.memory.value(state.LANES) <= tier - N_TIERS:
            self.widen_lanes()

    @property
    def memory(self):
        return self.index._tree.memory

    def widen_lanes(self):
        """Make a small step towards planes for all lanes."""
        if self.memory.value(state.LANES) < LANES:
            with pytest.MonkeyPatch.context() as patch, self.index.lock:
                patch.setattr("indexer.index.index_memory.WIDEN_BYTES", 400)
                self.memory.add_lane_step(LANES)

    def widen_slots(self):
        """Make a small step towards twice as many slots."""
        words = self.memory.value(state.WORDS)
        if words < WORDS_MAX:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("indexer.index.index_memory.WIDEN_BYTES", 400)
                self.index.widen_step(64 * words + 1 - self.index.n_slots)

    def copy_some(self):
        """Begin or continue a snapshot; the last step compares its result with its first moment."""
        with pytest.MonkeyPatch.context() as patch, self.index.lock:
            patch.setattr("indexer.index.index_snapshot.COPY_STEP_BYTES", 200)
            if self.copy is None:
                self.copy, self.at_begin = SnapshotCopy(self.memory), self.held_everywhere()
                assert self.copy.begin_copy()
            elif not self.copy.copy_step():
                self.copy.end_copy()
                snapshot = self.copy.snapshot((), {}, (), {})
                self.copy = None
                assert held_in(snapshot) == self.at_begin

    def held_everywhere(self):
        """Return (slot, tier, place) of all blocks in the tree."""
        everything = self.places.place.items()
        return {(slot, t, at) for slot, held in everything for (t, _), at in held.items()}

    def _forget(self, slot):
        self.places.clear(slot)
        self.edges.clear(slot)
        self.seed_of.pop(slot, None)

    def compare(self, path):
        """Check that every row of a match equals the answers of both twins, where comparable."""
        matched = self.index.match(u64(path))
        assert matched.shape == (self.index.n_slots, N_TIERS)
        for writer in self.writers:
            row = matched[writer.slot].tolist()
            assert row == self.places.match(writer.slot, path)
            if self.seed_of.get(writer.slot) is not None:
                assert row == self.edges.match(writer.slot, path)
            names = self.index.name_prefix(writer.slot, u64(path)).tolist()
            expected = self.places.prefix_names(writer.slot, path)
            assert len(names) == len(expected)
            assert all(name in some for name, some in zip(names, expected, strict=True))
        others = set(range(self.index.n_slots)) - {writer.slot for writer in self.writers}
        assert not matched[sorted(others)].any()

    def check(self):
        """Check that counters agree with arrays and with the twin."""
        self.index.check_invariants()
        held = plane_blocks(self.index, N_PLANES)
        for writer in self.writers:
            assert held[writer.slot].tolist() == self.places.blocks(writer.slot)
        stats = self.index.stats()
        assert stats.blocks == len(self.places.places())
        assert stats.orphans == sum(len(orphans) for orphans in self.places.orphans.values())


def held_in(snapshot):
    """Return (slot, tier, place) of all blocks in a snapshot."""
    places, found = {0: ()}, set()

    def place_of(node):
        if node not in places:
            places[node] = (*place_of(int(snapshot.parent[node])), int(snapshot.local[node]))
        return places[node]

    for node in np.flatnonzero(snapshot.holders).tolist():
        held, _ = split_planes(snapshot.sets[snapshot.holders[node]])
        bits = np.unpackbits(np.ascontiguousarray(held).view(np.uint8), axis=1, bitorder="little")
        found |= {(slot, tier, place_of(node)) for tier, slot in np.argwhere(bits).tolist()}
    return found


class PrefixIndexMatchesModels(RuleBasedStateMachine):
    """Short walks with shrinking, which find the shortest sequence of steps to a fault."""

    def __init__(self):
        super().__init__()
        self.world = World()

    @initialize(padding=st.sampled_from([0, 3, 62, 130]), spread=st.booleans())
    def open_slots(self, padding, spread):
        self.world = World(padding, spread)

    @rule(pick=SLOTS, tier=TIERS, seed=SEEDS, place=PLACES, data=st.data(), counted=st.booleans())
    def store(self, pick, tier, seed, place, data, counted):
        start = data.draw(st.integers(0, len(place) - 1))
        self.world.store(pick, tier, seed, place, start, counted)

    @rule(pick=SLOTS, tier=TIERS, seed=SEEDS, place=PLACES, counted=st.booleans())
    def store_known(self, pick, tier, seed, place, counted):
        self.world.store_known(pick, tier, names_below(seed, place, 0), counted)

    @rule(pick=SLOTS, tier=TIERS, seed=SEEDS, place=PLACES, data=st.data())
    def remove(self, pick, tier, seed, place, data):
        names = data.draw(st.permutations(names_below(seed, place, 0)))
        self.world.remove(pick, tier, names[: data.draw(st.integers(1, len(names)))])

    @rule(pick=SLOTS, data=st.data())
    def remove_something_held(self, pick, data):
        held = self.world.held_names(pick)
        if held:
            tier, name = data.draw(st.sampled_from(held))
            self.world.remove(pick, tier, [name])

    @rule(pick=SLOTS)
    def clear(self, pick):
        self.world.clear(pick)

    @rule(pick=SLOTS)
    def reopen(self, pick):
        self.world.reopen(pick)

    @rule(times=st.integers(1, 4))
    def widen_lanes(self, times):
        for _ in range(times):
            self.world.widen_lanes()

    @rule(times=st.integers(1, 4))
    def widen_slots(self, times):
        for _ in range(times):
            self.world.widen_slots()

    @rule()
    def copy_some(self):
        self.world.copy_some()

    @rule(path=st.lists(LOCALS, max_size=8))
    def match(self, path):
        self.world.compare(path)

    @invariant()
    def counters_agree(self):
        self.world.check()


def random_step(world, random, seeds):
    """Make a step of a long walk, with a bias towards existing blocks."""
    pick = random.randrange(4)
    seed = random.choice(seeds[pick])
    tier = random.choice(PLANES)
    for widen_or_copy in (world.widen_lanes, world.widen_slots, world.copy_some, world.copy_some):
        if random.random() < 0.15:
            widen_or_copy()
    places = world.held_places(pick)
    place = tuple(random.choices([1, 2], k=random.randint(1, 5)))
    if places and random.random() < 0.6:
        place = (random.choice(places) + place)[: random.randint(1, 7)]
    counted = random.random() < 0.7
    kind = random.random()
    if kind < 0.45:
        start = 0 if random.random() < 0.4 else random.randrange(len(place))
        world.store(pick, tier, seed, place, start, counted)
    elif kind < 0.55:
        world.store_known(pick, tier, names_below(seed, place, 0), counted)
    elif kind < 0.9:
        held = world.held_names(pick)
        for tier_held, name in random.sample(held, min(len(held), random.randint(1, 5))):
            world.remove(pick, tier_held, [name])
    elif kind < 0.96:
        names = names_below(seed, place, 0)
        world.remove(pick, tier, random.sample(names, random.randint(1, len(names))))
    elif kind < 0.98:
        world.clear(pick)
    else:
        world.reopen(pick)


@pytest.mark.parametrize("seed", range(16))
def test_a_long_walk_keeps_the_index_equal_to_its_models(seed):
    """The walk is deeper than the state machine: 250 steps with aliases, copies and orphans."""
    random = Random(seed)
    world = World(padding=random.choice([0, 62, 130]), spread=seed % 2 == 1)
    one_each = seed % 4 == 0  # in this case the edge model covers every slot
    seeds = [[n % 3] if one_each else [0, n % 3, 2] for n in range(4)]
    for _ in range(250):
        random_step(world, random, seeds)
        world.check()
        places = sorted(world.places.places())
        for place in random.sample(places, min(len(places), 6)):
            world.compare([*place, random.randint(1, 2)])


@pytest.mark.parametrize("seed", range(6))
def test_lanes_never_change_a_match(seed):
    """Two indexes get the same walk; one of the indexes also gets lanes."""
    random = Random(seed)
    plain, laned = World(), World()
    for _ in range(200):
        random_step_of_both(plain, laned, random)
        places = sorted(laned.places.places())
        for place in random.sample(places, min(len(places), 4)):
            path = u64([*place, random.randint(1, 2)])
            matched = laned.index.match(path)
            assert (matched == plain.index.match(path)).all()
            assert laned.index.match_reuse(path).certainty is None
    laned.check()


def random_step_of_both(plain, laned, random):
    """Change a tier in both indexes, or a lane in one of both."""
    pick, kind = random.randrange(4), random.random()
    place = tuple(random.choices([1, 2], k=random.randint(1, 5)))
    counted = random.random() < 0.7
    if kind < 0.5:
        lane = random.randrange(N_TIERS, N_PLANES)
        held = [(tier, name) for tier, name in laned.held_names(pick) if tier >= N_TIERS]
        if kind < 0.1:
            laned.store(pick, lane, 0, place, random.randrange(len(place)), counted)
        elif kind < 0.3:
            laned.store_known(pick, lane, names_below(0, place, 0), counted)
        elif held:
            laned.remove(pick, *(lambda tier, name: (tier, [name]))(*random.choice(held)))
        return
    start = 0 if random.random() < 0.6 else random.randrange(len(place))
    tier = random.choice(list(Tier))
    names = names_below(0, place, 0)
    for world in (plain, laned):
        if kind < 0.7:
            world.store(pick, tier, 0, place, start, counted)
        elif kind < 0.97:
            world.remove(pick, tier, names[start:])
        else:
            world.clear(pick)


def test_a_plain_index_takes_no_memory_for_lanes():
    """Holder sets take two planes per tier, one word each, and their description."""
    index = PrefixIndex(1000)
    writers = [index.open_slot() for _ in range(3)]
    memory = index._tree.memory
    for n, writer in enumerate(writers):
        writer.store(Tier.GPU, None, u64(range(1, 10 + n)), u64(range(1, 10 + n)))
    set_bytes = 8 * (2 * N_TIERS + state.SET_FIELDS)
    assert memory.value(state.SET_BYTES) == set_bytes
    before = index.stats().bytes
    writers[0].store(Tier.CPU, None, u64([1]), u64([1]))
    assert index.stats().bytes == before + set_bytes
    assert state.NODE_BYTES == 8 + 8 + 4 + 4 + 4
    while memory.value(state.LANES) < LANES:
        memory.add_lane_step(LANES)
    assert memory.value(state.SET_BYTES) == set_bytes + 8 * 2 * LANES


class SmallIndexStaysConsistent(RuleBasedStateMachine):
    """Index that is nearly always full, with hash conflicts; only invariants are checked."""

    def __init__(self):
        super().__init__()
        self.index = PrefixIndex(12, orphan_blocks_max=5)
        self.writers = [self.index.open_slot() for _ in range(3)]

    @rule(
        pick=st.integers(0, 2),
        tier=REAL_TIERS,
        parent=st.none() | st.integers(0, 9),
        blocks=st.lists(st.tuples(LOCALS, st.integers(0, 9)), max_size=8),
        counted=st.booleans(),
    )
    def store(self, pick, tier, parent, blocks, counted):
        locals_, names = u64(b for b, _ in blocks), u64(n for _, n in blocks)
        stored = self.writers[pick].store(tier, parent, locals_, names, counted=counted)
        assert 0 <= stored <= len(blocks)

    @rule(pick=st.integers(0, 2), tier=REAL_TIERS, names=st.lists(st.integers(0, 9), max_size=5))
    def store_known(self, pick, tier, names):
        self.writers[pick].store_known(tier, u64(names))

    @rule(pick=st.integers(0, 2), tier=REAL_TIERS, names=st.lists(st.integers(0, 9), max_size=5))
    def remove(self, pick, tier, names):
        removed = self.writers[pick].remove(tier, u64(names))
        assert 0 <= removed <= len(names)

    @rule(pick=st.integers(0, 2))
    def reopen(self, pick):
        slot = self.writers[pick].slot
        self.writers[pick].close()
        assert not slot_blocks(self.index)[slot].any()
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


TestPrefixIndexMatchesModels = explored(PrefixIndexMatchesModels)
TestSmallIndexStaysConsistent = explored(SmallIndexStaysConsistent)
