"""Tests that one turn rejects and examines a bounded number of requests, however long the queue."""

from itertools import pairwise

import pytest

from select_service.core.admission import (
    lane_kernels,
    partition_queue,
    turn_budget,
    waiting_list,
    waiting_ticket,
)
from select_service.core.admission.load_shed_rule import LoadShedRule
from select_service.core.admission.policy_classes import CLASSES_MAX
from select_service.core.admission.shed_tiers import ShedTiers
from select_service.core.load import active_load, growing_table
from select_service.core.load.ledger import Ledger
from tests.builders import a_patch
from tests.core.admission.scenes import Scene, a_class, classes, hashes, one_class, pinned

WAITING = 7
PER_TURN = 3
BLOCKS = 2000


def waiting_scene(**fields):
    """Return a scene of two busy workers and the requests that wait for them."""
    scene = Scene(one_class(), workers=2, taints=["x"])
    scene.fill(1)
    scene.fill(2)
    for number in range(WAITING):
        scene.look(f"r{number}", allowed_worker_ids=[1, 100 + number], **fields)
    scene.wakes = 0
    return scene


def refuse_a_few(monkeypatch, share=1):
    """Let a turn reject three requests.

    share: number of services that fit into a turn
    """
    monkeypatch.setattr(turn_budget, "SERVED_PER_TURN_MAX", share)
    monkeypatch.setattr(turn_budget, "REFUSE_WORK", turn_budget.SERVE_WORK // PER_TURN)
    monkeypatch.setattr(turn_budget, "SWEEP_WORK", 1)


def turns(scene):
    """Return the queue's length after each turn, while turns are requested."""
    left = [scene.gate.waiting.requests]
    while scene.wakes:
        scene.wakes = 0
        scene.serve()
        left.append(scene.gate.waiting.requests)
    return left


def blocks_of(number):
    first = number * BLOCKS
    return hashes(list(range(first, first + BLOCKS)), 4 * BLOCKS)


def long_scene(n=10):
    """Return a scene of n formerly busy workers and as many queued requests of many blocks."""
    scene = Scene(one_class(), workers=n)
    for worker_id in range(1, n + 1):
        scene.fill(worker_id)
    for number in range(n):
        scene.ask(f"r{number}", **blocks_of(number))
    assert scene.gate.waiting.requests == n
    for worker_id in range(1, n + 1):
        scene.free(f"load{worker_id}")
    return scene


def served_per_turn(scene):
    """Return the number of requests served per turn.

    Unlike `turns`, this helper skips the costly invariants of so many blocks.
    """
    left = [scene.gate.waiting.requests]
    while scene.wakes:
        scene.wakes = 0
        scene.selector.run_pending(scene.now)
        left.append(scene.gate.waiting.requests)
    return [before - after for before, after in pairwise(left)]


def test_bookings_of_many_blocks_leave_the_queue_a_few_per_turn():
    scene = long_scene()
    served = served_per_turn(scene)
    assert sum(served) == 10
    assert max(served) <= 1 + turn_budget.SERVED_PER_TURN_MAX // (
        BLOCKS // waiting_ticket.BOOKED_PER_STEP
    )


def test_the_queue_pauses_while_tables_are_prepared_for_many_blocks(monkeypatch):
    for module in (growing_table, active_load):
        monkeypatch.setattr(module, "TOUCHED_IN_A_STEP", 1 << 14)
    scene = long_scene()
    load, prepared, book = scene.partition.account.load, {}, Ledger._try_book

    def put(ledger, booking, *numbers):
        prepared.setdefault(booking.reservation_id, load.is_prepared(BLOCKS))
        return book(ledger, booking, *numbers)

    monkeypatch.setattr(Ledger, "_try_book", put)
    served = served_per_turn(scene)
    assert sum(served) == 10
    assert 0 in served
    assert all([*prepared.values()][1:])  # nothing was known before the first


def errors(scene):
    return {type(outcome).__name__ for outcome in scene.outcomes.values()}


def test_shed_requests_are_rejected_a_few_per_turn(monkeypatch):
    refuse_a_few(monkeypatch, share=2)
    scene = waiting_scene()
    scene.selector.set_shed_tier("premium")
    assert turns(scene) == [4, 1, 0]
    assert errors(scene) == {"CapacityShed"}


def test_shed_requests_are_not_served_before_their_rejection(monkeypatch):
    refuse_a_few(monkeypatch, share=2)
    scene = waiting_scene()
    scene.free("load1")
    scene.selector.set_shed_tier("premium")
    turns(scene)
    assert errors(scene) == {"CapacityShed"}
    assert len(scene.outcomes) == WAITING


def test_a_tier_accepted_again_before_its_refusal_is_served(monkeypatch):
    refuse_a_few(monkeypatch, share=2)
    scene = waiting_scene()
    scene.selector.set_shed_tier("premium")
    scene.selector.set_shed_tier(None)
    assert turns(scene) == [4, 4]
    scene.free("load1")
    assert turns(scene)[-1] == 0
    assert len(scene.served) == 4
    assert len(scene.outcomes) == WAITING


def test_a_rule_of_a_model_refuses_in_the_next_turns(monkeypatch):
    refuse_a_few(monkeypatch, share=2)
    scene = waiting_scene()
    scene.gate.set_load_shed_rule("other", LoadShedRule(level=1, refuses_all=True))
    assert turns(scene) == [7]
    scene.gate.set_load_shed_rule("m", LoadShedRule(level=1, refuses_all=True))
    assert turns(scene) == [7, 4, 1, 0]
    assert errors(scene) == {"ModelDegraded"}


def test_refusals_of_a_shed_tier_leave_half_of_a_turn_to_service(monkeypatch):
    refuse_a_few(monkeypatch, share=2)
    scene = waiting_scene(priority_tier="best_effort")
    for number in range(WAITING):
        scene.look(f"high{number}", priority_tier="premium", strict_priority=1)
    scene.free("load1")
    scene.gate.set_load_shed_rule("m", LoadShedRule(level=1, shed_from=2))
    scene.serve()
    assert scene.served == ["high0"]
    assert len(scene.outcomes) == 1 + PER_TURN


def test_a_full_queue_is_not_searched_for_a_shed_tier(monkeypatch):
    """Check that the time of a turn depends on its rejections, not on the queue's length."""
    scene = waiting_scene(priority_tier="premium")
    scene.look("low", priority_tier="best_effort")
    looked, is_shed = [], ShedTiers.is_shed
    monkeypatch.setattr(
        ShedTiers, "is_shed", lambda *given: looked.append(given) or is_shed(*given)
    )
    scene.selector.set_shed_tier("best_effort")
    assert errors(scene) == {"CapacityShed"}
    assert len(looked) < WAITING


def test_timed_out_requests_are_rejected_a_few_per_turn(monkeypatch):
    refuse_a_few(monkeypatch, share=2)
    scene = waiting_scene(timeout_ms=500)
    left, more = [], True
    while more:
        more = scene.gate.run_every_second(scene.now + 1.0)
        left.append(scene.gate.waiting.requests)
    assert left == [4, 1, 0]
    assert errors(scene) == {"QueueTimeout"}


def test_ends_of_waits_leave_half_of_a_turn_to_service(monkeypatch):
    refuse_a_few(monkeypatch, share=2)
    scene = waiting_scene(timeout_ms=500)
    for number in range(WAITING):
        scene.look(f"r{WAITING + number}")
    scene.free("load1")
    assert scene.gate.run_every_second(scene.now + 1.0)
    assert len(scene.served) == 1
    assert len(scene.outcomes) == 1 + PER_TURN


def test_requests_for_an_ended_partition_are_rejected_a_few_per_turn(monkeypatch):
    refuse_a_few(monkeypatch)
    scene = waiting_scene()
    for worker_id in (1, 2):
        scene.selector.delete_worker(worker_id, 0.0)
    assert turns(scene) == [7, 4, 1, 0]
    assert errors(scene) == {"NoWorkers"}


def many_partitions():
    """Return a scene of as many models as queued requests, each waiting for one busy worker."""
    scene = Scene(one_class(), workers=0)
    for number in range(WAITING):
        model = {"model_name": f"m{number}"}
        scene.register(1 + number, **model)
        scene.fill(1 + number, **model)
        scene.look(f"r{number}", **model)
    scene.wakes = 0
    return scene


def test_partitions_that_end_together_share_the_turns(monkeypatch):
    refuse_a_few(monkeypatch, share=2)
    scene = many_partitions()
    for number in range(WAITING):
        scene.selector.delete_worker(1 + number, 0.0)
    assert turns(scene) == [7, 3, 0]


def replace_workers(scene, workers=(1, 2), **shape):
    """End the partition and create a new one between two turns."""
    for worker_id in workers:
        scene.selector.delete_worker(worker_id, scene.now)
    for worker_id in workers:
        scene.register(worker_id, **shape)


def bound_per_turn(scene):
    """Return the number of queued requests bound to their current partition, after each turn."""
    partitions, bound = scene.selector.fleet.partitions, []
    while scene.wakes:
        scene.wakes = 0
        scene.serve()
        requests = [ticket.placement_request for ticket in scene.gate.waiting]
        bound.append(sum(partitions[r.partition.key] is r.partition for r in requests))
    return bound


def test_requests_are_bound_to_a_new_partition_a_few_per_turn(monkeypatch):
    monkeypatch.setattr(partition_queue, "REBOUND_PER_TURN_MAX", PER_TURN)
    scene = waiting_scene()
    replace_workers(scene)
    for worker_id in (1, 2):
        scene.fill(worker_id, name=f"other{worker_id}")
    assert bound_per_turn(scene) == [3, 6, 7]
    scene.free("other1")
    assert turns(scene)[-1] == 0
    assert len(scene.served) == WAITING


def test_new_partitions_share_the_turns(monkeypatch):
    monkeypatch.setattr(turn_budget, "SERVED_PER_TURN_MAX", 8)
    monkeypatch.setattr(turn_budget, "REBIND_WORK", 3 * turn_budget.SERVE_WORK)
    scene = many_partitions()
    for number in range(WAITING):
        replace_workers(scene, [1 + number], model_name=f"m{number}")
        scene.fill(1 + number, name=f"other{number}", model_name=f"m{number}")
    bound = bound_per_turn(scene)
    assert bound[-1] == WAITING
    assert max(after - before for before, after in pairwise([0, *bound])) == 2


def test_requests_not_bound_yet_are_served_in_their_turn(monkeypatch):
    monkeypatch.setattr(partition_queue, "REBOUND_PER_TURN_MAX", 1)
    monkeypatch.setattr(turn_budget, "SERVED_PER_TURN_MAX", PER_TURN)
    scene = Scene(one_class(), workers=1)
    scene.fill(1)
    for number in range(WAITING):
        scene.look(f"r{number}")
    replace_workers(scene, [1])
    assert turns(scene)[-1] == 0
    assert scene.served == [f"r{number}" for number in range(WAITING)]


def test_blocks_of_another_size_are_refused_a_few_per_turn_before_others_are_served(monkeypatch):
    refuse_a_few(monkeypatch)
    scene = waiting_scene()
    replace_workers(scene, block_size=8)
    assert scene.look("new") is scene.tickets["new"]
    assert turns(scene)[:4] == [5, 2, 1, 0]
    assert scene.served == ["new"]
    del scene.outcomes["new"]
    assert errors(scene) == {"NoWorkers"}
    assert len(scene.outcomes) == WAITING


def test_a_partition_replaced_in_every_turn_holds_up_no_request(monkeypatch):
    monkeypatch.setattr(partition_queue, "REBOUND_PER_TURN_MAX", 1)
    monkeypatch.setattr(turn_budget, "SERVED_PER_TURN_MAX", 2)
    scene = Scene(one_class(), workers=1)
    scene.fill(1)
    for number in range(WAITING):
        scene.look(f"r{number}")
    for _ in range(WAITING):
        replace_workers(scene, [1])
        scene.serve()
    assert scene.served == [f"r{number}" for number in range(WAITING)]


def test_ranks_of_many_partitions_that_change_together_share_the_turns(monkeypatch):
    monkeypatch.setattr(turn_budget, "SERVED_PER_TURN_MAX", 8)
    monkeypatch.setattr(turn_budget, "REFRESH_WORK", 3 * turn_budget.SERVE_WORK)
    scene, found = many_partitions(), []
    lane_bits = waiting_list.lane_bits
    monkeypatch.setattr(
        waiting_list, "lane_bits", lambda *given: found.append(given) or lane_bits(*given)
    )
    for number in range(WAITING):
        scene.selector.patch_worker(1 + number, a_patch(taints=["y"]))
    per_turn = []
    while scene.wakes:
        scene.wakes = 0
        scene.serve()
        per_turn.append(len(found))
        found.clear()
    assert sum(per_turn) == WAITING
    assert max(per_turn) == 2


@pytest.mark.parametrize("gone", [True, False])
def test_the_candidates_of_lanes_are_refreshed_a_few_per_turn(monkeypatch, gone):
    monkeypatch.setattr(partition_queue, "REFRESHED_PER_TURN_MAX", PER_TURN)
    scene = waiting_scene()
    if gone:
        scene.selector.delete_worker(1, 0.0)
        assert turns(scene) == [7, 4, 1, 0]
        assert errors(scene) == {"NoEligibleRank"}
    else:
        scene.selector.patch_worker(1, a_patch(taints=["y"]))
        assert turns(scene) == [7] * 4
        scene.free("load1")
        assert turns(scene)[-1] == 0
        assert len(scene.served) == WAITING


def test_requests_for_removed_ranks_are_rejected_a_few_per_turn(monkeypatch):
    refuse_a_few(monkeypatch)
    monkeypatch.setattr(turn_budget, "REFRESH_WORK", 1)
    scene = Scene(one_class(), workers=3)
    for worker_id in (1, 2):
        scene.fill(worker_id)
        for number in range(WAITING):
            scene.look(f"r{number}-{worker_id}", **pinned(worker_id))
    for worker_id in (1, 2):
        scene.selector.delete_worker(worker_id, 0.0)
    assert turns(scene) == [14, 11, 8, 6, 3, 0]
    assert errors(scene) == {"NoEligibleRank"}


def test_ranks_that_change_in_every_turn_hold_up_no_request(monkeypatch):
    monkeypatch.setattr(partition_queue, "REFRESHED_PER_TURN_MAX", PER_TURN)
    scene = waiting_scene()
    scene.free("load1")
    for number in range(WAITING):
        scene.selector.patch_worker(2, a_patch(taints=[f"y{number}"]))
        scene.serve()
    assert len(scene.served) == WAITING


def test_candidates_not_refreshed_yet_are_not_served_where_they_do_not_fit(monkeypatch):
    monkeypatch.setattr(partition_queue, "REFRESHED_PER_TURN_MAX", PER_TURN)
    scene = Scene(one_class(), workers=2, taints=["x"])
    for worker_id in (1, 2):
        scene.fill(worker_id)
    taint = {"routing_constraints": {"required_taints": ["x"]}}
    for number in range(4 * WAITING):
        scene.look(f"r{number}", allowed_worker_ids=[1, 2, 100 + number], **taint)
    scene.selector.patch_worker(1, a_patch(taints=[]))
    scene.free("load1")
    for number in range(5):
        scene.selector.patch_worker(2, a_patch(taints=["x", f"y{number}"]))
        scene.serve()
        assert scene.gate.waiting.requests == 4 * WAITING
    scene.selector.patch_worker(1, a_patch(taints=["x"]))
    turns(scene)
    assert len(scene.served) == 4 * WAITING


def test_the_lanes_searched_in_a_turn_are_bounded(monkeypatch):
    """Check that the lanes of all classes count, and every repeated search."""
    searched, find_heads = [], lane_kernels.find_heads

    def count(n_lanes, *arguments):
        searched.append(n_lanes)
        return find_heads(n_lanes, *arguments)

    monkeypatch.setattr(lane_kernels, "find_heads", count)
    monkeypatch.setattr(turn_budget, "SERVE_WORK", 20)
    monkeypatch.setattr(partition_queue, "CLASS_WORK", 1)
    scene = Scene(classes(*(a_class(name) for name in "abc"), family="a"), workers=1)
    scene.fill(1)
    for number in range(180):
        allowed = {"allowed_worker_ids": [1, 10 + number]}
        scene.ask(f"r{number}", header="abc"[number % 3], fairness_id=f"f{number % 7}", **allowed)
    scene.free("load1")
    most = 0
    while scene.gate.waiting.requests:
        searched.clear()
        scene.serve()
        scene.selector.complete_prefill(scene.served[-1], scene.now)
        most = max(most, sum(searched) * partition_queue.LANE_WORK)
    limit = 20 * turn_budget.SERVED_PER_TURN_MAX
    assert limit / 4 < most <= limit
    assert len(scene.served) == 180


def test_a_search_of_a_full_queue_fits_in_a_turn():
    work = partition_queue.PARTITION_LANES_MAX * (partition_queue.LANE_WORK + 1)
    work += CLASSES_MAX * partition_queue.CLASS_WORK
    assert work <= turn_budget.SERVED_PER_TURN_MAX * turn_budget.SERVE_WORK


@pytest.mark.parametrize("gone", [True, False])
def test_long_lists_of_allowed_workers_count_as_more_work(monkeypatch, gone):
    monkeypatch.setattr(waiting_ticket, "ALLOWED_PER_STEP", 1)
    monkeypatch.setattr(partition_queue, "REFRESHED_PER_TURN_MAX", PER_TURN)
    monkeypatch.setattr(turn_budget, "SERVED_PER_TURN_MAX", PER_TURN)
    scene = waiting_scene()
    if gone:
        scene.selector.delete_worker(1, 0.0)
    else:
        scene.free("load1")
    assert sorted(set(turns(scene)), reverse=True) == [7, 6, 5, 4, 3, 2, 1, 0]
