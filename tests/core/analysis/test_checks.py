"""Tests of prediction checks: ranks with the predicted events stay trusted, others are shown."""

from itertools import count

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from indexer.hashing.block_hashing import compute_block_hashes
from indexer.tiers import Tier
from select_service.core.analysis.accuracy import prediction_checks as checks_module
from select_service.core.analysis.accuracy.prediction_accuracy import CHECKS_MIN, PredictionAccuracy
from select_service.core.identity import Rank
from select_service.core.placement.router_config import RouterConfig
from tests.builders import a_select_and_reserve, a_selector, a_worker
from tests.builders.hypothesis_profiles import explored
from tests.builders.selector_scenes import KEY
from tests.models.trust_model import BookedPrompt, TrustModel

WORK = RouterConfig(policy="work")
BLOCK = 4


def listened_to(worker_id):
    return a_worker(worker_id, kv_events_endpoint=f"ipc:///nowhere/{worker_id}")


class Scene:
    """Selector with its engines."""

    def __init__(self, workers=(1, 2), config=WORK):
        self.selector = a_selector(config, use_kv_events=True, decisions_kept=256)
        self.checks = self.selector.followers.evaluation.predictions
        for worker_id in workers:
            self.selector.register_worker(listened_to(worker_id))
        self.names = map(str, count())

    @property
    def table(self):
        return self.selector.fleet.partitions[KEY].table

    def reserve(self, worker_id, tokens, now):
        """Book a prompt of these tokens; return the reservation id."""
        name = next(self.names)
        request = a_select_and_reserve(
            0,
            reservation_id=name,
            token_ids=tokens,
            pinned_worker={"worker_id": worker_id, "dp_rank": 0},
        )
        self.selector.select_and_reserve(request, now)
        return name

    def announce(self, worker_id, tokens):
        hashes = compute_block_hashes(np.array(tokens, np.uint32), BLOCK)
        writer = self.table.writer_of(Rank(worker_id, 0))
        writer.store(Tier.GPU, None, hashes, hashes + np.uint64(worker_id))

    def trust(self, worker_id):
        return self.checks.accuracy_of(self.table.writer_of(Rank(worker_id, 0)))


def tokens_of(family, n):
    return [family * 1000 + k for k in range(n)]


def serve_request(scene, worker_id, family, now, announced):
    """Run one request of 40 tokens from its booking to the check."""
    tokens = tokens_of(family, 40)
    name = scene.reserve(worker_id, tokens, now)
    scene.checks.run_turn(now)
    if announced:
        scene.announce(worker_id, tokens[: announced * BLOCK])
    scene.selector.complete_prefill(name, now + 0.5)
    scene.selector.free_reservation(name, now + 0.6) if family % 2 else None
    scene.checks.run_turn(now + 0.7)
    scene.checks.run_turn(now + 1.8)


def test_a_rank_without_the_predicted_blocks_loses_trust_and_the_other_keeps_it():
    scene = Scene()
    for number in range(CHECKS_MIN):
        assert not any(trust.is_suspect for trust in [scene.trust(2)] if trust)
        serve_request(scene, 1, 2 * number, 10.0 * number, announced=10)
        serve_request(scene, 2, 2 * number + 500, 10.0 * number + 5, announced=0)
    good, bad = scene.trust(1), scene.trust(2)
    assert (good.checks, good.trust, good.is_suspect) == (CHECKS_MIN, 1.0, False)
    assert (bad.checks, bad.trust, bad.is_suspect) == (CHECKS_MIN, 0.0, True)
    report = scene.checks.make_report(8)
    assert (report.suspects, report.pending) == (1, 0)
    assert report.proved.counts == [CHECKS_MIN, 0, 0, 0, 0, CHECKS_MIN, 0]
    serve_request(scene, 2, 900, 500.0, announced=10)
    assert bad.trust > 0.0


def test_a_broken_stream_is_found_although_the_old_prefix_is_still_there():
    scene = Scene([1])
    scene.announce(1, tokens_of(7, 36))
    serve_request(scene, 1, 7, 0.0, announced=0)
    assert scene.trust(1).trust == 0.0


def test_blocks_may_come_until_a_second_after_the_end():
    scene = Scene([1])
    tokens = tokens_of(1, 200)
    name = scene.reserve(1, tokens, 0.0)
    prompt = scene.selector.ledger.reservations.get_reservation(name).prompt_beginning(1024)
    assert np.array_equal(prompt, compute_block_hashes(np.array(tokens, np.uint32), BLOCK))
    scene.checks.run_turn(0.0)
    scene.selector.complete_prefill(name, 0.5)
    scene.checks.run_turn(0.6)
    scene.announce(1, tokens)
    scene.checks.run_turn(0.5 + checks_module.GRACE_S - 0.1)
    assert scene.trust(1).checks == 0
    scene.checks.run_turn(0.5 + checks_module.GRACE_S)
    assert scene.trust(1).trust == 1.0


def test_waits_are_compared_with_how_fast_the_rank_was_before():
    trust = PredictionAccuracy(Rank(1, 0))
    assert trust.add_wait(1000, 1.0) is None
    assert trust.add_wait(500, 0.5) == pytest.approx(1.0)
    assert trust.wait_error == pytest.approx(0.0)
    assert trust.add_wait(1000, 4.0) == pytest.approx(4.0)
    assert trust.wait_error == pytest.approx(0.75 / 2)


def test_nothing_is_followed_without_decisions_or_without_prompts():
    assert a_selector(WORK, use_kv_events=True).followers.evaluation.predictions is None
    assert a_selector(WORK, decisions_kept=8).followers.evaluation.predictions is None
    scene = Scene([1], RouterConfig(policy="reference"))
    serve_request(scene, 1, 2, 0.0, announced=10)
    assert scene.trust(1) is None


def test_the_number_of_followed_bookings_is_bounded():
    scene = Scene([1])
    for number in range(checks_module.PENDING_MAX + 3):
        scene.reserve(1, tokens_of(number, 8), 0.0)
        scene.checks.run_turn(0.0)
    assert scene.checks.make_report(1).pending == checks_module.PENDING_MAX
    scene.checks.run_turn(checks_module.PREFILL_S_MAX + 1)
    assert scene.checks.make_report(1).pending == 0


def test_a_returning_rank_is_judged_from_the_start():
    scene = Scene([1])
    serve_request(scene, 1, 1, 0.0, announced=0)
    scene.reserve(1, tokens_of(2, 40), 5.0)
    scene.checks.run_turn(5.0)
    scene.selector.delete_worker(1, 5.0)
    while scene.selector.run_pending(5.0):
        pass
    scene.selector.register_worker(listened_to(1))
    scene.checks.run_turn(20.0)
    assert scene.trust(1) is None
    assert scene.checks.make_report(1).pending == 0


class ChecksMatchModel(RuleBasedStateMachine):
    """Comparison with a twin that keeps everything."""

    @initialize()
    def begin(self):
        self.scene, self.model, self.now = Scene(), TrustModel(), 0.0
        self.live, self.announced = {}, {}

    @rule(worker_id=st.sampled_from((1, 2)), family=st.integers(0, 3), tokens=st.integers(1, 40))
    def reserve(self, worker_id, family, tokens):
        name = self.scene.reserve(worker_id, tokens_of(family, tokens), self.now)
        (chosen,) = [
            candidate
            for candidate in self.scene.selector.followers.explanations.find_decision(
                name, self.now
            ).candidates
            if candidate.chosen
        ]
        booking = self.scene.selector.ledger.reservations.get_reservation(name)
        left = chosen.left_work_tokens + booking.prefill_work
        cached = min(self.announced.get((worker_id, family), 0), tokens // BLOCK)
        assert booking.cached_blocks == cached
        booked = BookedPrompt(worker_id, family, tokens // BLOCK, cached, left, self.now, self.now)
        self.model.make_protocol.append(booked)
        self.live[name] = booked

    @rule(worker_id=st.sampled_from((1, 2)), family=st.integers(0, 3), blocks=st.integers(1, 10))
    def announce(self, worker_id, family, blocks):
        there = self.announced.get((worker_id, family), 0)
        if blocks > there:
            self.scene.announce(worker_id, tokens_of(family, blocks * BLOCK))
            self.announced[worker_id, family] = blocks

    @rule(data=st.data(), end=st.booleans())
    def complete_or_free(self, data, end):
        if not self.live:
            return
        name = data.draw(st.sampled_from(sorted(self.live)))
        booked = self.live[name]
        if end:
            self.scene.selector.free_reservation(name, self.now)
            self.live.pop(name).live = False
        else:
            self.scene.selector.complete_prefill(name, self.now)
            booked.prefilling, booked.renewed_at = False, self.now

    @rule(seconds=st.sampled_from((0.0, 0.05, 0.3, 1.0, 200.0)))
    def step(self, seconds):
        self.now += seconds
        self.scene.checks.run_turn(self.now)
        self.model.step(self.now, self.blocks_there)

    def blocks_there(self, booked):
        return min(self.announced.get((booked.worker_id, booked.family), 0), booked.blocks)

    @rule(worker_id=st.sampled_from((1, 2)))
    def replace_worker(self, worker_id):
        selector = self.scene.selector
        selector.delete_worker(worker_id, self.now)
        while selector.run_pending(self.now):
            pass
        selector.register_worker(listened_to(worker_id))
        for name, booked in list(self.live.items()):
            if booked.worker_id == worker_id:
                booked.rank_left, booked.live = True, False
                del self.live[name]
        for booked in self.model.make_protocol + self.model.pending:
            booked.rank_left |= booked.worker_id == worker_id
        self.model.ranks.pop(worker_id, None)
        self.announced = {at: n for at, n in self.announced.items() if at[0] != worker_id}

    @invariant()
    def they_agree(self):
        for worker_id in (1, 2):
            known, model = self.scene.trust(worker_id), self.model.ranks.get(worker_id)
            assert (known is None) == (model is None)
            if known is not None:
                assert known.checks == len(model.shares)
                assert known.trust == pytest.approx(model.trust())
                assert known.waits == len(model.ratios())
                assert known.wait_error == pytest.approx(model.wait_error())
        report = self.scene.checks.make_report(8)
        assert report.pending == len(self.model.pending) <= checks_module.PENDING_MAX


TestFollowed = explored(ChecksMatchModel)
