"""Tests of degradation levels of models, and of their effects at the gate."""

import pytest

from select_service.base.errors import CapacityShed, ModelDegraded
from select_service.core.health.capacity_estimate import ServiceObjective
from select_service.core.health.degradation.capacity_probation import PROVEN_S, STALE_S
from select_service.core.health.degradation.capacity_watch import CapacityWatch
from select_service.core.health.fleet_health.health_service import HealthService
from select_service.core.health.health_rules import HealthRules
from select_service.core.health.migration.booking_observer import BookingObserver
from select_service.core.load.move_constraints import MoveConstraintStore
from tests.builders import a_select, a_select_and_reserve, a_selector, a_worker
from tests.builders.refusals import is_refused


class Scene:
    def __init__(self, promises=None, is_auto=True, workers=4, **fields):
        self.selector = selector = a_selector(
            make_health=lambda fleet, ledger: HealthService(
                HealthRules(), lambda key: (), fleet, ledger, fleet.dirty
            )
        )
        self.health = selector.health
        gate = selector.gate if is_auto else None
        partitions, learnt = selector.fleet.partitions, BookingObserver(MoveConstraintStore())
        selector.ledger.add_listener(learnt, needs_moves=False)
        self.watch = CapacityWatch(
            self.health.monitor, partitions, learnt.speeds, promises or {}, gate
        )
        self.health.listeners.append(self.watch)
        for worker_id in range(1, workers + 1):
            selector.register_worker(a_worker(worker_id, **fields))
        self.now = 0.0
        self.wait(1)

    def drain(self, *worker_ids):
        for worker_id in worker_ids:
            self.health.drain_worker(worker_id, False, self.now)
        self.selector.run_pending(self.now)

    def wait(self, seconds):
        for _ in range(int(seconds)):
            self.now += 1.0
            self.health.advance_timers(self.now)
            self.selector.run_pending(self.now)
        self.selector.run_pending(self.now)
        self.watch.check_invariants()

    @property
    def level(self):
        return self.watch.models["m"].degradation.level

    def book(self, name, tokens):
        asked = a_select_and_reserve(tokens, reservation_id=name, priority_tier="premium")
        self.selector.select_and_reserve(asked, self.now)

    def live(self, name, tokens):
        """Run one request from beginning to end, with a block of output."""
        self.book(name, tokens)
        self.selector.add_output_block(name, None, self.now)
        self.wait(1)
        self.selector.free_reservation(name, self.now)

    def select(self, tier=None):
        return self.selector.select(a_select(priority_tier=tier), self.now)


def test_without_an_objective_the_ratio_follows_the_weights():
    scene = Scene()
    assert (scene.watch.models["m"].ratio, scene.level) == (1.0, 0)
    scene.drain(1)
    assert (scene.watch.models["m"].ratio, scene.level) == (0.75, 0)
    scene.wait(6)
    assert scene.level == 1
    scene.drain(2)
    scene.wait(6)
    assert scene.level == 2
    key = next(iter(scene.selector.fleet.partitions))
    view = scene.watch.capacity_of(key)
    assert (view.level, view.ratio) == (2, 0.5)


def test_level_2_sheds_the_lowest_tier_beside_the_switch_of_operators():
    scene = Scene()
    scene.drain(1, 2)
    scene.wait(6)
    tiers = scene.selector.gate.shedding.tiers.names
    is_refused(CapacityShed, scene.select, tiers[-1])
    scene.select(tiers[0])
    (shown,) = scene.selector.get_admission_state().degraded
    assert (shown.model_name, shown.level, shown.shed_tier) == ("m", 2, tiers[-1])
    assert scene.selector.get_admission_state().shed_tier is None
    scene.selector.set_shed_tier(None)  # does not lift the automatic shed tier
    is_refused(CapacityShed, scene.select, tiers[-1])
    scene.selector.set_shed_tier(tiers[0])  # the stricter tier counts
    is_refused(CapacityShed, scene.select, tiers[0])


def test_level_4_rejects_new_requests():
    scene = Scene(workers=5)
    scene.drain(1, 2, 3, 4)
    scene.wait(6)
    assert scene.level == 4
    with pytest.raises(ModelDegraded) as refused:
        scene.select()
    assert (refused.value.status, refused.value.retry_after_s) == (503, 30)


def test_a_level_gets_better_one_at_a_time_and_its_effects_end():
    scene = Scene()
    scene.drain(1, 2)
    scene.wait(6)
    partition = next(iter(scene.selector.fleet.partitions.values()))
    assert partition.effective_batch_share == 0.75
    for worker_id in (1, 2):
        scene.health.undrain_worker(worker_id, scene.now)
    scene.wait(45)
    assert scene.level == 1
    assert scene.selector.gate.shedding.rules["m"].shed_from is None
    scene.wait(90)
    assert (scene.level, partition.effective_batch_share) == (0, 1.0)
    assert not scene.selector.gate.shedding.rules
    assert scene.selector.gate.is_open


def test_observe_mode_changes_nothing():
    scene = Scene(is_auto=False)
    scene.drain(1, 2, 3, 4)
    scene.wait(6)
    assert scene.level == 4
    assert not scene.selector.gate.shedding.rules


def test_an_objective_is_compared_with_the_capacity_of_the_ranks():
    promises = {"m": ServiceObjective(ttft_ms=500.0, itl_ms=20.0, rps=10.0)}
    scene = Scene(promises, prefill_tokens_per_s=4096.0, decode_tokens_per_s=1280.0)
    known = scene.watch.models["m"]
    assert known.capacity.by_prefill_rps == pytest.approx(8.0)  # 4 * 4096 / 2048
    assert known.capacity.by_decode_rps == pytest.approx(20.0)  # 4 * 1280 / 256
    assert known.ratio == pytest.approx(0.8)
    scene.wait(6)
    assert scene.level == 1


def test_an_objective_for_unmeasured_ranks_is_judged_by_their_weights():
    scene = Scene({"m": ServiceObjective(500.0, 20.0, 10.0)})
    assert (scene.watch.models["m"].ratio, scene.watch.models["m"].capacity) == (1.0, None)


TOO_MUCH = {"m": ServiceObjective(ttft_ms=500.0, itl_ms=20.0, rps=100.0)}
"""Objective far above the 8 rps of four ranks with 4096 tokens/s and default prompts."""


def test_an_estimate_that_rejects_all_traffic_is_put_on_probation():
    scene = Scene(TOO_MUCH, prefill_tokens_per_s=4096.0)
    scene.wait(6)
    assert scene.level == 4
    scene.wait(STALE_S - 7)
    assert scene.level == 4
    assert not scene.watch.models["m"].probation.is_active
    scene.wait(120)
    key = next(iter(scene.selector.fleet.partitions))
    view = scene.watch.capacity_of(key)
    assert (view.on_trial, view.ratio) == (True, pytest.approx(0.08))
    assert scene.level == 1
    scene.wait(600)
    assert scene.level == 0  # without newer requests
    for at in range(5):
        scene.live(f"r{at}", tokens=16)
    assert not scene.watch.models["m"].probation.is_active
    assert scene.watch.capacity_of(key).ratio > 1.0  # 4 * 4096 / 16, by the prompts received
    scene.wait(700)
    assert scene.level == 0  # the lengths of prompts are kept while no more arrive


def test_an_estimate_that_requests_confirm_refuses_again():
    scene = Scene(TOO_MUCH, prefill_tokens_per_s=4096.0)
    scene.wait(STALE_S + 36)
    assert scene.level == 3
    scene.live("r", tokens=2048)
    scene.wait(6)
    assert scene.level == 4
    scene.wait(STALE_S - 8)
    assert not scene.watch.models["m"].probation.is_active


def test_an_estimate_counts_again_though_no_request_of_the_trial_ends():
    scene = Scene(TOO_MUCH, prefill_tokens_per_s=4096.0)
    scene.wait(STALE_S + 36)
    scene.book("r", tokens=2048)
    scene.wait(PROVEN_S - 2)
    assert scene.level < 3
    scene.wait(8)
    assert scene.level == 4


def test_drained_ranks_are_not_put_on_probation():
    scene = Scene(TOO_MUCH, prefill_tokens_per_s=4096.0)
    scene.drain(1, 2, 3, 4)
    scene.wait(2 * STALE_S)
    assert scene.level == 4


def test_a_model_that_has_gone_is_forgotten():
    scene = Scene(workers=1)
    scene.drain(1)
    assert scene.level == 4
    scene.selector.delete_worker(1, scene.now)
    scene.wait(2)
    assert not scene.watch.models
    assert not scene.selector.gate.shedding.rules
