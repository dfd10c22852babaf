"""Tests that kept decisions match the original decision to the last bit."""

from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from indexer.index.reuse_layouts import RankLayout
from select_service.core.identity import Rank
from select_service.core.load.compiled import load_layout
from select_service.core.placement import decision_ring_layout as layout
from select_service.core.placement.decision_decoder import decode_row, read_float, recorded_terms
from select_service.core.placement.decision_ring import DecisionRing, QueueWait, read_id
from select_service.core.placement.placement_kernels import COST
from select_service.core.placement.placer import RankPreference
from select_service.core.placement.router_config import RouterConfig
from select_service.core.replication.rank_shares import find_outside
from select_service.core.views.decision_views import DecisionFilter
from tests.builders import a_select, a_select_and_reserve, a_selector, a_worker
from tests.builders.hypothesis_profiles import explored
from tests.core.placement.test_placing import CONFIGS, Scene

CHECKED = 2
"""Number of rows checked after each step: the newest, and the oldest."""
LONG_ID = "é" * 40


WORK = RouterConfig(policy="work", policy_options=("decode-sensitive", "copy-price"))


@pytest.mark.parametrize("config", [*CONFIGS, WORK, WORK._replace(policy="least_work")])
@pytest.mark.parametrize("n_ranks", [1, 64, 65, 200])
def test_rows_have_the_terms_of_the_placement_to_the_last_bit(n_ranks, config):
    scene, ring = Scene(n_ranks, n_ranks, config), DecisionRing(4)
    placing = scene.partition.placer
    for number in range(24):
        scene.book()
        prompt, eligible = scene.prompt(), scene.eligible()
        if not eligible.any():
            continue
        factors = None if number % 3 else scene.rng.random(n_ranks)
        given = (prompt, config, eligible, RankPreference(factors, number % 5 == 0))
        chosen = placing.place_prompt(*given, 0.25, ring)
        assert placing.place_prompt(*given, draw=0.25) == chosen
        terms = placing.cost_terms(*given)
        row = ring.draft_row()
        found = decode_row(row)
        assert found.slots[0] == chosen
        assert np.array_equal(recorded_terms(row, found, 16), terms[:, found.slots])
        assert np.array_equal(found.matched, placing.scratch.matched[found.slots])
        assert row[layout.N_ELIGIBLE] == eligible.sum()
        assert row[layout.ISL_TOKENS] == prompt.isl_tokens
        check_which_are_shown(found.slots, np.flatnonzero(eligible), terms[COST])


@pytest.mark.parametrize("config", [CONFIGS[0], WORK])
def test_rows_have_the_tokens_inside_blocks(config):
    """Check ranks with several cache groups, which compute 24 tokens again on each hit."""
    scene, ring = Scene(8, 8, config), DecisionRing(4)
    placing, index = scene.partition.placer, scene.partition.index
    for slot in range(8):
        set_layout = partial(give_layout, slot=slot, layout=RankLayout(replay=24))
        scene.partition.writer_at(slot).change_tree(set_layout)
    n_inside = 0
    for _ in range(24):
        scene.book()
        prompt, eligible = scene.prompt(), np.ones(8, np.bool_)
        placing.place_prompt(prompt, config, eligible, ring=ring)
        placing.place_prompt(prompt, config, eligible)
        row = ring.draft_row()
        found, terms = decode_row(row), placing.cost_terms(prompt, config, eligible)
        assert np.array_equal(recorded_terms(row, found, 16), terms[:, found.slots])
        inside = index.last_reuse(placing.scratch.matched).inside
        is_hit = placing.scratch.matched[found.slots, 0] > 0
        assert np.array_equal(found.inside, inside[found.slots] - 24 * is_hit)
        n_inside += np.count_nonzero(found.inside)
    assert n_inside > 0


def give_layout(tree, slot, layout):
    return tree.layouts.set_layout(slot, layout, 16)


@pytest.fixture(scope="module")
def many_ranks():
    return Scene(40 * layout.LANES, 5, WORK)


@pytest.mark.parametrize("lanes", [2, 3, layout.LANES])
@pytest.mark.parametrize("requests_max", [0, 40])
def test_the_cheapest_are_shown_from_any_slot(many_ranks, lanes, requests_max):
    """Check also ranks that share few lanes, or have equal costs."""
    scene, ring = many_ranks, DecisionRing(1)
    eligible = np.arange(scene.n_ranks) % layout.LANES < lanes
    requests = scene.rng.integers(0, requests_max + 1, scene.n_ranks)
    scene.partition.load.totals[:, load_layout.REQUESTS] = requests
    placing, prompt = scene.partition.placer, scene.prompt()
    chosen = placing.place_prompt(prompt, WORK, eligible, draw=0.25, ring=ring)
    found, costs = decode_row(ring.draft_row()), placing.cost_terms(prompt, WORK, eligible)[COST]
    assert found.slots[0] == chosen
    assert np.array_equal(found.costs, costs[found.slots])
    shown, candidates = found.slots, np.flatnonzero(eligible)
    assert set(shown.tolist()) <= set(candidates.tolist())
    assert layout.CANDIDATES_MIN <= len(set(shown.tolist())) == len(shown) <= layout.CANDIDATES_MAX
    sure = layout.CANDIDATES_MIN
    assert np.array_equal(np.sort(costs[shown])[:sure], np.sort(costs[candidates])[:sure])


def check_which_are_shown(shown, candidates, costs):
    """Check that all candidates are shown, or the chosen candidate and the cheapest."""
    assert len(set(shown.tolist())) == len(shown) <= layout.CANDIDATES_MAX
    assert set(shown.tolist()) <= set(candidates.tolist())
    if len(candidates) <= layout.CANDIDATES_MAX:
        assert len(shown) == len(candidates)
        return
    assert len(shown) >= layout.CANDIDATES_MIN
    assert costs[shown].min() == costs[candidates].min()
    sure = layout.CANDIDATES_MIN
    assert np.array_equal(np.sort(costs[shown])[:sure], np.sort(costs[candidates])[:sure])


def test_long_ids_are_found_and_shown_by_their_beginning():
    selector = a_selector(decisions_kept=4)
    selector.register_worker(a_worker(1))
    for name in (LONG_ID, LONG_ID + "x", "", "a"):
        selector.select_and_reserve(a_select_and_reserve(8, reservation_id=name), 0.0)
        found = selector.followers.explanations.find_decision(name, 0.0)
        assert found.reservation_id == (name if len(name) < 2 else "é" * 20 + "...")
    assert selector.followers.explanations.find_decision(LONG_ID, 0.0).decision == 1


class Expected(NamedTuple):
    number: int
    ids: tuple[str | None, str | None]
    ranks: dict[Rank, float]
    chosen: Rank
    wait: QueueWait | None


NAMES = st.sampled_from((None, "a", "b", "r/1 %", LONG_ID))
WAITS = st.sampled_from((None, QueueWait("default", 3, 0.5), QueueWait("batch", 1, 2.0)))


class KeptDecisionsMatchList(RuleBasedStateMachine):
    """Comparison of a selector with changing ranks and a list of all decisions."""

    @initialize(
        config=st.sampled_from((CONFIGS[1], WORK)),
        kept=st.integers(1, 12),
        workers=st.sampled_from((1, 2, 3, 5, 70)),
    )
    def begin(self, config, kept, workers):
        self.selector = a_selector(config, decisions_kept=kept)
        self.kept, self.expected, self.workers_max = kept, [], workers
        self.newcomer = 1000
        for worker_id in range(workers):
            self.selector.register_worker(a_worker(worker_id))
        (self.partition,) = self.selector.fleet.partitions.values()
        self.ring = self.selector.decisions.ring

    @rule(
        tokens=st.integers(1, 40), selection_id=NAMES, name=NAMES, wait=WAITS, pinned=st.booleans()
    )
    def decide(self, tokens, selection_id, name, wait, pinned):
        if (
            name is not None
            and self.selector.ledger.reservations.find_reservation(name) is not None
        ):
            self.selector.free_reservation(name, 0.0)
        table = self.partition.table
        some = table.sorted_ranks()[0]
        more = {"pinned_worker": some._asdict()} if pinned else {}
        request = a_select_and_reserve(
            tokens, selection_id=selection_id, reservation_id=name, **more
        )
        job = self.selector._make_request(request, False, None, True, name)._replace(
            queue_wait=wait
        )
        eligible = np.zeros(table.n_slots, np.bool_)
        eligible[
            [table.find_slot(rank) for rank in ([some] if pinned else table.sorted_ranks())]
        ] = True
        selection = self.selector.decisions.decide(job, eligible, 1.0).selection
        costs = self.partition.placer.scratch.costs
        ranks = {rank: costs[slot] for rank, slot in table.iterate_slots() if eligible[slot]}
        chosen = Rank(selection.worker_id, selection.dp_rank)
        ids = (selection_id, selection.reservation_id)
        self.expected.append(Expected(len(self.expected) + 1, ids, ranks, chosen, wait))

    @rule(tokens=st.integers(1, 40))
    def only_ask(self, tokens):
        list(self.selector.inspection.potential_loads(a_select(tokens)))
        self.selector.followers.explanations.explain_request(a_select(tokens), None, None, 0.0)

    @rule(data=st.data())
    def replace_a_rank(self, data):
        """Delete a rank and give its slot to another."""
        ranks = self.partition.table.sorted_ranks()
        worker_id = data.draw(st.sampled_from(ranks)).worker_id
        self.workers_max += len(ranks) == 1
        if len(ranks) > 1:
            self.selector.delete_worker(worker_id, 0.0)
            self.selector.run_pending(0.0)
            for writer in self.selector.fleet.take_changes().retired:
                writer.close()
        self.selector.register_worker(a_worker(self.newcomer, taints=["x"]))
        self.newcomer += 1

    @rule(peer=st.integers(0, 3))
    def share_ranks(self, peer):
        """Raise the cost of some ranks for the next decisions."""
        ranks, slots = zip(*self.partition.table.iterate_slots(), strict=True)
        self.partition.table.set_outside(list(slots), find_outside(ranks, 77, range(peer)))

    @rule()
    def change_some(self):
        for rank in self.partition.table.sorted_ranks()[:3]:
            speed = 100.0 + rank.worker_id
            given = a_worker(rank.worker_id, taints=["y"], prefill_tokens_per_s=speed)
            self.selector.register_worker(given)

    @invariant()
    def the_newest_are_there(self):
        self.ring.check_invariants()
        rows = list(self.ring.iterate_rows())
        if self.workers_max <= 5:
            assert len(rows) == min(self.kept, len(self.expected))
        elif self.expected:
            assert 1 <= len(rows) <= self.kept
        newest = zip(rows[:CHECKED], reversed(self.expected), strict=False)
        oldest = zip(rows[-1:], self.expected[len(self.expected) - len(rows) :], strict=False)
        for row, expected in (*newest, *oldest):
            self.check(row, expected)

    def check(self, row, expected):
        assert row[layout.NUMBER] == expected.number
        assert row[layout.N_ELIGIBLE] == len(expected.ranks)
        for begin, name in zip(
            (layout.SELECTION_ID, layout.RESERVATION_ID), expected.ids, strict=True
        ):
            shown = "é" * 20 + "..." if name == LONG_ID else name
            assert read_id(row, begin) == shown
        if expected.wait is None:
            assert row[layout.POLICY_CLASS] == layout.NO_VALUE
        else:
            number, seconds = int(row[layout.POLICY_CLASS]), read_float(row, layout.WAITED_S)
            found = QueueWait(
                self.ring.policy_class_name(number), int(row[layout.QUEUE_POSITION]), seconds
            )
            assert found == expected.wait
        table, found = self.partition.table, decode_row(row)
        who = [
            table.rank_at(int(s), int(v)) for s, v in zip(found.slots, found.versions, strict=True)
        ]
        assert who[0] in (expected.chosen, None)
        for rank, cost in zip(who, found.costs.tolist(), strict=True):
            assert rank is None or expected.ranks[rank] == cost

    @invariant()
    def all_are_found_by_their_ids(self):
        there = self.expected[len(self.expected) - len(self.ring) :]
        for name in {name for each in there for name in each.ids if name is not None}:
            newest = max(each.number for each in there if name in each.ids)
            assert self.selector.followers.explanations.find_decision(name, 0.0).decision == newest


TestKept = explored(KeptDecisionsMatchList, runs=8, steps=20)


def test_fewer_long_rows_are_kept():
    selector = a_selector(decisions_kept=40)
    for worker_id in range(64):
        selector.register_worker(a_worker(worker_id))
    for number in range(60):
        selector.select(a_select(8, selection_id=str(number)), 0.0)
    found = [view.selection_id for view in list_kept(selector)]
    words = 40 * 256 - layout.ROW_WORDS_MAX
    row_words = layout.ROW_WORDS + 64 * layout.CANDIDATE_WORDS
    assert words // row_words - 3 <= len(found) <= words // row_words + 1
    assert found == [str(number) for number in range(59, 59 - len(found), -1)]


def list_kept(selector):
    return [
        row
        for row in selector.followers.explanations.list_decisions(DecisionFilter(), 0.0)
        if row is not None
    ]


def test_a_forgotten_rank_has_no_name():
    """Check a slot that has had five other ranks since."""
    selector = a_selector(decisions_kept=100)
    selector.register_worker(a_worker(0))
    selector.register_worker(a_worker(1))
    for generation in range(1, 8):
        selector.select(a_select(8, selection_id=str(generation)), 0.0)
        selector.delete_worker(generation, 0.0)
        selector.run_pending(0.0)
        for writer in selector.fleet.take_changes().retired:
            writer.close()
        selector.register_worker(a_worker(generation + 1))
    named = {
        int(view.selection_id): {
            c.worker_id
            for c in selector.followers.explanations.find_decision(
                view.selection_id, 0.0
            ).candidates
        }
        for view in list_kept(selector)
    }
    assert named == {g: {0, g if g > 3 else None} for g in range(1, 8)}


def test_decisions_of_a_partition_outlive_its_ranks():
    selector = a_selector(decisions_kept=10)
    selector.register_worker(a_worker(7, model_name="gone"))
    selector.select(a_select(8, model_name="gone", selection_id="s"), 0.0)
    selector.delete_worker(7, 0.0)
    selector.register_worker(a_worker(8, model_name="gone", block_size=8))
    found = selector.followers.explanations.find_decision("s", 2.0)
    assert (found.model_name, found.block_size, found.candidates[0].worker_id) == ("gone", 4, 7)
    assert found.seconds_ago == 2.0


def test_removed_partitions_are_forgotten_oldest_first():
    selector = a_selector(decisions_kept=200)
    for number in range(70):
        name = f"m{number}"
        selector.register_worker(a_worker(number, model_name=name))
        selector.select(a_select(8, model_name=name, selection_id=name), 0.0)
        selector.delete_worker(number, 0.0)
        selector.run_pending(0.0)
    names = [row.model_name for row in list_kept(selector)]
    assert names == [f"m{number}" for number in range(69, 69 - len(names), -1)]
    assert 64 <= len(names) <= 66


def test_nothing_is_kept_without_a_ring():
    selector = a_selector()
    selector.register_worker(a_worker(1))
    selector.select(a_select(8, selection_id="s"), 0.0)
    (partition,) = selector.fleet.partitions.values()
    assert partition.table._history is None
    assert len(selector.followers.explanations) == 0
