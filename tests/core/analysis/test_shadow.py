"""Tests of the shadow: the choice of another policy from the same numbers."""

from itertools import count

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from indexer.tiers import Tier
from select_service.core.analysis.comparison import shadow_policy as shadow_module
from select_service.core.identity import Rank
from select_service.core.placement.policies.policy_registry import PolicyChoice, parse_policy_choice
from select_service.core.placement.router_config import RouterConfig
from select_service.core.registry.fleet.scoped_policies import PolicyScope
from tests.builders import a_reservation, a_select, a_select_and_reserve, a_selector, a_worker
from tests.builders.hypothesis_profiles import explored
from tests.builders.selector_scenes import store
from tests.models.shadow_model import ShadowModel

CHOICES = ("work", "least_work", "reference", "work+decode-sensitive+no-memory")


class Scene:
    """Selector with a second policy that repeats the decisions."""

    def __init__(self, shadow, policy="work", workers=(1, 2, 3), kept=256):
        config = parse_policy_choice(policy).apply_to(RouterConfig())
        self.choice, self.shadow_choice = parse_policy_choice(policy), parse_policy_choice(shadow)
        self.selector = a_selector(config, decisions_kept=kept, shadow=self.shadow_choice)
        for worker_id in workers:
            self.selector.register_worker(a_worker(worker_id))
        self.names = map(str, count())

    def follow(self, choice):
        policies = self.selector.fleet.policies
        policies.put_rule(PolicyScope("m"), choice)
        for _ in policies.apply_to_partitions():
            pass

    def select(self, tokens=8, **fields):
        """Return the decision as made, and as the shadow would make it."""
        request = a_select(tokens, **fields)
        self.follow(self.shadow_choice)
        other = self.selector.followers.explanations.explain_request(request, None, None, 0.0)
        self.follow(self.choice)
        name = next(self.names)
        self.selector.select(a_select(tokens, selection_id=name, **fields), 0.0)
        return self.selector.followers.explanations.find_decision(name, 0.0), other

    def report(self):
        return self.selector.followers.evaluation.shadow.make_report()


def test_another_policy_would_have_chosen_the_rank_with_the_cache():
    scene = Scene("reference")
    store(scene.selector, Rank(1, 0), 400)
    pinned = {"worker_id": 1, "dp_rank": 0}
    blocks = [9 * 10**6 + k for k in range(180)]
    scene.selector.select_and_reserve(
        a_select_and_reserve(0, token_ids=blocks, pinned_worker=pinned), 0.0
    )
    scene.select(400)
    assert scene.report().backlog == 2
    scene.selector.followers.evaluation.shadow.run_turn(0.0)
    tally = scene.report().tallies["work"]
    assert (tally.decisions, tally.no_choice, scene.report().backlog) == (1, 1, 0)
    assert (tally.others, tally.regret) == (1, 10.0)
    assert (tally.wait_shadow, tally.prefill_shadow) == (180, 0)
    assert (tally.wait_made, tally.prefill_made) == (0, 399)


def test_the_same_policy_never_regrets():
    scene = Scene("work")
    for number in range(8):
        scene.selector.select_and_reserve(a_select_and_reserve(8 * number + 1), 0.0)
    scene.selector.followers.evaluation.shadow.run_turn(0.0)
    tally = scene.report().tallies["work"]
    assert (tally.decisions, tally.others, tally.regret) == (8, 0, 0.0)
    assert tally.wait_made == tally.wait_shadow


def test_the_shadow_reads_the_progress_that_the_real_decision_read():
    scene = Scene("reference", "work")
    for worker_id, tokens in ((1, 1), (2, 1), (3, 4)):
        reservation = a_reservation(next(scene.names), worker_id, tokens)
        scene.selector.reserve(reservation, 0.0)
    store(scene.selector, Rank(3, 0), 4)
    model = ShadowModel()
    model.waiting.append(scene.select(1))
    model.step()
    # The stored block ends the prefill of worker 3, which `work` counts and `reference` does not.
    assert model.by_policy["work"].waits == [(0, 1)]
    scene.selector.followers.evaluation.shadow.run_turn(0.0)
    tally = scene.report().tallies["work"]
    assert (tally.wait_made, tally.wait_shadow) == (0, 1)


def test_only_kept_candidates_are_compared():
    scene = Scene("reference", workers=range(70))
    scene.select()
    scene.selector.followers.evaluation.shadow.run_turn(0.0)
    assert scene.report().tallies["work"].partial == 1


def test_a_single_candidate_is_no_choice():
    scene = Scene("reference", workers=[1])
    scene.select()
    scene.selector.followers.evaluation.shadow.run_turn(0.0)
    assert scene.report().tallies["work"].no_choice == 1


def test_decisions_beyond_the_rate_are_skipped_and_counted(monkeypatch):
    monkeypatch.setattr(shadow_module, "BACKLOG_MAX", 12)
    scene = Scene("reference", kept=8)
    for _ in range(30):
        scene.selector.select(a_select(), 0.0)
    scene.selector.followers.evaluation.shadow.run_turn(0.0)
    report = scene.report()
    kept = report.tallies["work"].decisions
    assert (report.skipped, report.backlog) == (18 + 10 - kept, 2)
    assert kept == 6


def test_the_shadow_needs_a_policy_and_kept_decisions():
    assert a_selector(decisions_kept=8).followers.evaluation.shadow is None
    assert a_selector(shadow=PolicyChoice("work")).followers.evaluation.shadow is None


class ShadowMatchesModel(RuleBasedStateMachine):
    """Comparison with a twin that queries the shadow before each decision."""

    @initialize(policy=st.sampled_from(CHOICES), shadow=st.sampled_from(CHOICES))
    def begin(self, policy, shadow):
        self.scene, self.model, self.live = Scene(shadow, policy), ShadowModel(), []

    @rule(tokens=st.integers(1, 60), worker_id=st.sampled_from((None, None, None, 2)))
    def select(self, tokens, worker_id):
        fields = {}
        if worker_id is not None:
            fields["pinned_worker"] = {"worker_id": worker_id, "dp_rank": 0}
        self.model.waiting.append(self.scene.select(tokens, **fields))

    @rule(tokens=st.integers(1, 60), worker_id=st.integers(1, 3))
    def reserve(self, tokens, worker_id):
        """Book a rank chosen by the caller, which is no decision."""
        name = next(self.scene.names)
        request = a_reservation(name, worker_id, tokens)
        self.scene.selector.reserve(request, 0.0)
        self.live.append(name)

    @rule(data=st.data(), ends=st.booleans())
    def complete_or_free(self, data, ends):
        if self.live:
            name = data.draw(st.sampled_from(self.live))
            if ends:
                self.live.remove(name)
                self.scene.selector.free_reservation(name, 0.0)
            else:
                self.scene.selector.complete_prefill(name, 0.0)

    @rule(worker_id=st.integers(1, 3), blocks=st.integers(1, 15), tier=st.sampled_from(list(Tier)))
    def store(self, worker_id, blocks, tier):
        store(self.scene.selector, Rank(worker_id, 0), 4 * blocks, tier)

    @rule()
    def step(self):
        assert not self.scene.selector.followers.evaluation.shadow.run_turn(0.0)
        self.model.step()

    @invariant()
    def they_agree(self):
        report = self.scene.report()
        assert (report.backlog, report.skipped) == (len(self.model.waiting), self.model.skipped)
        assert set(report.tallies) == set(self.model.by_policy)
        for name, expected in self.model.by_policy.items():
            tally = report.tallies[name]
            assert tally.no_choice == expected.no_choice
            assert tally.decisions == len(expected.regrets)
            assert tally.others == sum(regret > 0 for regret in expected.regrets)
            assert tally.regret == pytest.approx(sum(expected.regrets), abs=0.1)
            assert tally.lowest_cost == pytest.approx(sum(expected.lowest), abs=0.1)
            for at, (wait, prefill) in enumerate(
                ((tally.wait_made, tally.prefill_made), (tally.wait_shadow, tally.prefill_shadow))
            ):
                assert wait == pytest.approx(sum(pair[at] for pair in expected.waits))
                assert prefill == pytest.approx(sum(pair[at] for pair in expected.prefills))


TestShadowed = explored(ShadowMatchesModel)
