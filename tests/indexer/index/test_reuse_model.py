"""Tests of reusable prefixes of ranks with several cache groups, against the naive rule.

A toy engine computes, evicts and clears; the lane writer applies its events to an index. Answers
without a bound mark equal those of the model; a bound is never below the model.
"""

from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.hashing.engine_names import NameScheme
from indexer.index.cache_groups import CacheGroups
from indexer.index.kv_cache_facts import KvCacheFacts
from indexer.index.prefix_index import PrefixIndex, PromptUnits
from indexer.tiers import Tier
from tests.builders.hypothesis_profiles import explores
from tests.indexer.events.grouped_rank import GroupedRank
from tests.models.cache_groups_model import (
    CHUNKED,
    DENSE,
    STATE,
    WINDOW,
    CacheGroupsModel,
    GroupModel,
)
from tests.models.grouped_engine import GroupedEngine

BLOCK = 4
"""Tokens per block of the tree."""
DENSE_GROUP = GroupModel(0, DENSE, BLOCK)


def scheme_of(unit, ahead=0):
    return NameScheme("sha256", "vllm-none-hash", unit, ahead)


class Layout:
    """Groups of an engine and the facts of its registration, shown by a failing test."""

    def __init__(
        self, *groups, unit=BLOCK, ahead=0, drops=False, drafts=None, replay=0, named=True
    ):
        self.groups = [GroupModel(n, *group) for n, group in enumerate(groups)]
        self.unit, self.ahead, self.drops, self.drafts = unit, ahead, drops, drafts
        self.replay, self.named = replay, named

    def __repr__(self):
        groups = ", ".join(str((g.kind, g.size, g.length)) for g in self.groups)
        facts = {k: v for k, v in vars(self).items() if k != "groups"}
        return f"Layout({groups}, **{facts})"

    def engine(self, random):
        model = CacheGroupsModel(
            self.groups, self.unit, self.ahead, self.drops, self.drafts, self.replay
        )
        scheme = scheme_of(self.unit, self.ahead) if self.named else None
        return GroupedEngine(model, random, scheme)

    def rank(self, index=None, *, tells_groups=False):
        chunks = [group.length for group in self.groups if group.kind == CHUNKED]
        facts = KvCacheFacts(
            eagle_drop=self.drops,
            eagle_groups=self.drafts,
            chunk=chunks[0] if chunks else None,
            replay=self.replay,
            groups=len(self.groups) if tells_groups else None,
        )
        return GroupedRank(BLOCK, facts, index, is_eagle=self.ahead > 0)


FULL = (DENSE, BLOCK)
STATES = (STATE, BLOCK)

EXACT = {
    "plain": Layout(FULL),
    "window": Layout(FULL, (WINDOW, 4, 9)),
    "window first": Layout((WINDOW, 4, 9), FULL),
    "short window": Layout(FULL, (WINDOW, 4, 2)),
    "two windows": Layout(FULL, (WINDOW, 4, 5), (WINDOW, 4, 13)),
    "window of larger blocks": Layout(FULL, (WINDOW, 8, 16)),
    "window of finer blocks": Layout(FULL, (WINDOW, 2, 6), unit=2),
    "windows of finer blocks": Layout(FULL, (WINDOW, 2, 5), (WINDOW, 1, 3), unit=1),
    "state": Layout(FULL, STATES),
    "state first": Layout(STATES, FULL),
    "three states first": Layout(STATES, STATES, STATES, FULL),
    "state of larger blocks": Layout(FULL, (STATE, 8)),
    "state and window": Layout(STATES, FULL, (WINDOW, 4, 7)),
    "states inside blocks": Layout(FULL, STATES, unit=2),
    "states inside blocks first": Layout(STATES, FULL, unit=2),
    "states inside larger blocks": Layout(FULL, (STATE, 8), unit=2),
    "states inside blocks beside a window": Layout(FULL, (WINDOW, 2, 5), STATES, unit=2),
    "states inside larger blocks first": Layout((STATE, 8), FULL, unit=2),
    "states inside blocks behind a window": Layout((WINDOW, 2, 5), STATES, FULL, unit=2),
    "finer dense blocks and a state inside blocks": Layout(FULL, (DENSE, 2), STATES, unit=2),
    "chunks": Layout(FULL, (CHUNKED, 4, 8)),
    "two dense groups": Layout(FULL, FULL),
    "dense groups of two sizes": Layout(FULL, (DENSE, 8)),
    "two dense groups and a state inside blocks": Layout(FULL, FULL, STATES, unit=2),
    "dense of two sizes and window": Layout(FULL, (DENSE, 8), (WINDOW, 4, 9)),
    "windows alone": Layout((WINDOW, 4, 9)),
    "two windows alone": Layout((WINDOW, 4, 9), (WINDOW, 4, 5)),
    "states alone": Layout(STATES),
    "two states alone": Layout(STATES, STATES),
    "ahead": Layout(FULL, ahead=1),
    "ahead, window": Layout(FULL, (WINDOW, 4, 9), ahead=1),
    "ahead, state": Layout(FULL, STATES, ahead=1),
    "ahead, states inside blocks": Layout(FULL, STATES, unit=2, ahead=1),
    "ahead, window of finer blocks": Layout(FULL, (WINDOW, 2, 6), unit=2, ahead=1),
    "drop": Layout(FULL, drops=True),
    "drop, window": Layout(FULL, (WINDOW, 4, 9), drops=True),
    "drop, draft window": Layout(FULL, (WINDOW, 4, 9), drops=True, drafts=(1,)),
    "drop, state": Layout(FULL, STATES, drops=True),
    "drop, states inside blocks": Layout(FULL, STATES, unit=2, drops=True),
    "drop, window alone": Layout((WINDOW, 4, 9), drops=True),
    "drop, states alone": Layout(STATES, drops=True),
    "drop, two states alone": Layout(STATES, STATES, drops=True),
    "drop, two dense groups": Layout(FULL, FULL, drops=True, drafts=(1,)),
    "replay": Layout(FULL, (WINDOW, 4, 9), replay=5),
}
"""Layouts for which every answer is exact."""

BOUNDED = {
    "states inside blocks, names unknown": Layout(FULL, STATES, unit=2, named=False),
    "states inside blocks first, names unknown": Layout(STATES, FULL, unit=2, named=False),
    "ahead, states inside blocks, names unknown": Layout(
        FULL, STATES, unit=2, ahead=1, named=False
    ),
    "drop, window of finer blocks": Layout(FULL, (WINDOW, 2, 6), unit=2, drops=True),
    "window inside blocks, names unknown": Layout(
        FULL, (WINDOW, 2, 5), STATES, unit=2, named=False
    ),
    "chunks of larger blocks": Layout(FULL, (CHUNKED, 8, 16)),
    "window of blocks across blocks": Layout(FULL, (WINDOW, 6, 12), unit=2),
    "states inside larger blocks first, names unknown": Layout(
        (STATE, 8), FULL, unit=2, named=False
    ),
    "window of finer blocks first": Layout((WINDOW, 2, 6), FULL, unit=2),
    "windows of finer blocks first": Layout((WINDOW, 2, 5), (WINDOW, 1, 3), FULL, unit=1),
    "ahead, window of finer blocks first": Layout((WINDOW, 2, 6), FULL, unit=2, ahead=1),
    "finer dense blocks": Layout(FULL, (DENSE, 2), unit=2),
    "finer dense blocks first": Layout((DENSE, 2), FULL, unit=2),
    "larger dense blocks first": Layout((DENSE, 8), FULL),
    "drop, finer dense blocks": Layout(FULL, (DENSE, 2), unit=2, drops=True),
    "ahead, finer dense blocks": Layout(FULL, (DENSE, 2), unit=2, ahead=1),
    "finer dense blocks and a state inside blocks, names unknown": Layout(
        FULL, (DENSE, 2), STATES, unit=2, named=False
    ),
    "finer states": Layout(FULL, (STATE, 2), unit=1),
    "finer states, names unknown": Layout(FULL, (STATE, 2), unit=1, named=False),
}
"""Layouts with answers that may be bounds."""


class World:
    """Engine and rank side by side; prompts of a small alphabet share prefixes."""

    def __init__(self, layout, seed, index=None, *, is_introduced=True):
        """is_introduced: whether every group publishes blocks at first; otherwise the registration
        declares the groups
        """
        self.random = Random(seed)
        self.engine = layout.engine(self.random)
        self.rank = layout.rank(index, tells_groups=not is_introduced)
        self.prompts = []
        self.bounds = self.answers = self.reused = 0
        if not is_introduced:
            return
        # Groups and units without published blocks are unknown to the rank.
        end = self.random.choice([16, 20]) + layout.unit + layout.ahead
        self.prompts.append([3] * end)
        self.apply(self.engine.introduce(self.prompts[0]))

    def a_prompt(self, length=26):
        random = self.random
        shared = []
        if self.prompts and random.random() < 0.7:
            prompt = random.choice(self.prompts)
            shared = prompt[: random.randint(0, len(prompt))]
        return shared + random.choices([1, 2], k=random.randint(1, max(1, length - len(shared))))

    def step(self):
        random = self.random
        kind = random.random()
        if kind < 0.6:
            prompt = self.a_prompt()
            self.prompts = [*self.prompts[-15:], prompt]
            self.apply(self.engine.compute(prompt))
        elif kind < 0.97:
            held = self.engine.model.holdings()
            self.apply(self.engine.evict(random.sample(held, min(len(held), random.randint(1, 4)))))
        else:
            self.apply(self.engine.clear())

    def apply(self, events):
        self.rank.apply_batch(events)

    def compare(self, prompt):
        expected = self.engine.model.reusable_tokens(prompt)
        tokens, is_bound = self.rank.answer(prompt)
        assert tokens == expected or (is_bound and tokens > expected), (
            f"{tokens} {'at most' if is_bound else 'exactly'}, not {expected}: {prompt}"
        )
        self.answers += 1
        self.bounds += is_bound
        self.reused += expected > 0

    def compare_blind(self, prompt):
        """Check that an answer without tokens and names of the prompt is a bound or unchanged."""
        expected = self.engine.model.reusable_tokens(prompt)
        tokens, is_bound = self.rank.answer(prompt, is_blind=True)
        assert tokens == expected or (is_bound and tokens > expected)

    def compare_some(self):
        self.compare(self.a_prompt())
        for prompt in self.random.sample(self.prompts, min(3, len(self.prompts))):
            self.compare(prompt)
            self.compare([*prompt, 1, 2, 1])
            self.compare_blind(prompt)


def walk(world, steps):
    for _ in range(steps):
        world.step()
        world.compare_some()
    world.rank.index.check_invariants()


@pytest.mark.parametrize("name", EXACT)
def test_walks_are_exact(name):
    reused = 0
    for seed in range(4):
        world = World(EXACT[name], seed)
        walk(world, 25)
        assert world.bounds == 0
        reused += world.reused
    assert reused > 0


@pytest.mark.parametrize("name", BOUNDED)
def test_walks_are_never_below_the_truth(name):
    for seed in range(4):
        walk(World(BOUNDED[name], seed), 25)


@pytest.mark.parametrize("name", [*EXACT, *BOUNDED])
def test_walks_from_the_first_block_of_an_engine_are_never_below_the_truth(name):
    """Groups publish their first blocks in turn; the registration has the number of groups."""
    layout = (EXACT | BOUNDED)[name]
    for seed in range(3):
        walk(World(layout, seed, is_introduced=False), 12)


@pytest.mark.parametrize("name", EXACT)
def test_groups_restored_from_a_record_go_on(name):
    """After a restart, the index has the blocks, and the record the facts about the groups."""
    world = World(EXACT[name], 1)
    walk(world, 10)
    rank = world.rank
    if rank.groups is not None:
        rank.writer.cache_groups = CacheGroups.from_record(rank.groups.to_record(), BLOCK)
        rank.applier.groups.begin_groups(rank.writer)
    walk(world, 10)
    assert world.bounds == 0 or "finer" in name


def test_several_layouts_in_one_index_do_not_disturb_each_other():
    layouts = [each for name, each in EXACT.items() if each.ahead == 0 and "inside" not in name]
    index = PrefixIndex(100_000)
    worlds = [World(layout, seed, index) for seed, layout in enumerate(layouts)]
    random = Random(0)
    for _ in range(120):
        world = random.choice(worlds)
        walk(world, 3)
        random.choice(worlds).compare_some()


SIZES = st.sampled_from([4, 4, 8, 2])
GROUPS = st.one_of(
    st.tuples(st.just(DENSE), st.sampled_from([4, 4, 8, 2])),
    st.tuples(st.just(WINDOW), SIZES, st.integers(2, 14)),
    st.tuples(st.just(STATE), st.sampled_from([4, 4, 8])),
    st.tuples(st.just(CHUNKED), st.just(4), st.just(8)),
)
WITHOUT_DENSE = st.one_of(
    st.tuples(st.just(WINDOW), st.just(4), st.integers(2, 14)),
    st.tuples(st.just(STATE), st.just(4)),
)


@st.composite
def layouts(draw):
    has_dense = draw(st.booleans())
    groups = draw(st.lists(GROUPS if has_dense else WITHOUT_DENSE, min_size=1, max_size=4))
    if has_dense:
        groups.insert(draw(st.integers(0, len(groups))), FULL)
    unit = min(group[1] for group in groups)
    unit = draw(st.sampled_from([unit, max(1, unit // 2)])) if has_dense else BLOCK
    ahead = draw(st.sampled_from([0, 0, 1]))
    drops = draw(st.booleans()) and not ahead
    drafts = draw(st.none() | st.just((len(groups) - 1,))) if drops else None
    named = draw(st.booleans())
    return Layout(*groups, unit=unit, ahead=ahead, drops=drops, drafts=drafts, named=named)


@explores(150)
@given(layouts(), st.integers(0, 2**16), st.booleans())
def test_any_layout_is_exact_or_bounded(layout, seed, is_introduced):
    walk(World(layout, seed, is_introduced=is_introduced), 12)


def random_layout(random):
    """Return a layout like `layouts`, for numbers of layouts too large for Hypothesis."""
    sizes = [4, 4, 8, 2]
    has_dense = random.random() < 0.7
    groups = []
    for _ in range(random.randint(1, 4)):
        kind = random.choice(
            [DENSE, WINDOW, WINDOW, STATE, CHUNKED] if has_dense else [WINDOW, STATE]
        )
        size = random.choice(sizes) if has_dense else BLOCK
        length = random.randint(2, 14)
        groups.append(
            {
                DENSE: (DENSE, size),
                WINDOW: (WINDOW, size, length),
                STATE: (STATE, max(size, BLOCK)),
                CHUNKED: (CHUNKED, 4, 8),
            }[kind]
        )
    if has_dense:
        groups.insert(random.randint(0, len(groups)), FULL)
    unit = min(group[1] for group in groups)
    unit = random.choice([unit, max(1, unit // 2)]) if has_dense else BLOCK
    ahead = random.choice([0, 0, 1])
    drops = not ahead and random.random() < 0.5
    drafts = random.choice([None, (len(groups) - 1,)]) if drops else None
    named = random.random() < 0.5
    return Layout(*groups, unit=unit, ahead=ahead, drops=drops, drafts=drafts, named=named)


RANDOM_LAYOUTS = 1000


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_random_layouts_are_exact_or_bounded():
    counts = Counter()
    for seed in range(RANDOM_LAYOUTS):
        random = Random(f"layout {seed}")
        world = World(random_layout(random), seed, is_introduced=random.random() < 0.5)
        walk(world, 12)
        counts += Counter(answers=world.answers, at_most=world.bounds, reused=world.reused)
    print(dict(counts))
    assert counts["reused"] > RANDOM_LAYOUTS


def test_columns_cover_slots_that_were_opened_after_a_layout_was_set():
    world = World(EXACT["window"], 0)
    others = [world.rank.index.open_slot() for _ in range(70)]
    match = world.rank.index.match_reuse(np.array([1], np.uint64))
    assert len(match.inside) == len(match.certainty) == len(match.matched) == len(others) + 1
    walk(world, 10)


def test_blocks_of_lower_tiers_are_a_bound():
    """The groups of the lower tier are unknown, whether or not the GPU has a block."""
    world = World(EXACT["window"], 0)
    path = np.array([1, 2, 3], np.uint64)
    world.rank.writer.store(Tier.CPU, None, path, path)
    match = world.rank.index.match_reuse(path, PromptUnits(13))
    slot = world.rank.writer.slot
    assert (match.matched[slot].tolist(), bool(match.certainty[slot])) == ([0, 3, 3, 3], True)


def test_a_prompt_of_another_length_leaves_nothing_inside_behind():
    world = World(EXACT["states inside blocks"], 0)
    opening = world.prompts[0]
    assert world.rank.answer([*opening, 1, 1])[0] % BLOCK == 2
    assert world.rank.answer([1, 1, 1, 1, 1]) == (0, False)
    assert world.rank.answer([1, 1, 1, 1, 1], is_blind=True) == (2, True)
