"""Tests of waking the queue: the causes, their frequency, and the work per turn."""

import numpy as np
import pytest

from select_service.base.errors import NotFound
from select_service.core.admission import partition_queue, turn_budget
from select_service.core.identity import Rank
from select_service.core.replication.load_events import (
    PrefillCompleted,
    ReservationAdmitted,
    ReservationFreed,
)
from tests.builders import a_patch
from tests.core.admission.scenes import METRICS, Scene, one_class, pinned, where


def full_scene(queue=None, **options):
    """Return a scene of one worker without room, and `a` waiting for it."""
    scene = Scene(queue or one_class(), **options)
    scene.fill(1)
    scene.ask("a")
    assert scene.gate.waiting.requests == 1
    scene.wakes = 0
    return scene


def a_peers(kind, name):
    return kind(
        model_name="m",
        tenant_id="default",
        block_size=4,
        reservation_id=name,
        rank=Rank(1, 0),
        router_id=7,
    )


FREED_BY = {
    "a reservation is freed": lambda s: s.free("load1"),
    "a prefill is complete": lambda s: s.selector.complete_prefill("load1", s.now),
    "a peer frees": lambda s: s.selector.followers.replicas.apply_event(
        a_peers(ReservationFreed, "load1"), s.now
    ),
    "a peer completes a prefill": lambda s: s.selector.followers.replicas.apply_event(
        a_peers(PrefillCompleted, "load1"), s.now
    ),
    "a worker is added": lambda s: s.register(2),
    "a worker gets more ranks": lambda s: s.selector.patch_worker(1, a_patch(data_parallel_size=2)),
    "a worker moves to another model": lambda s: s.register(1, model_name="n"),
    "the last worker is deleted": lambda s: s.selector.delete_worker(1, 0.0),
}


@pytest.mark.parametrize("event", FREED_BY)
def test_the_queue_is_woken_once_when(event):
    scene = full_scene()
    FREED_BY[event](scene)
    assert scene.wakes == 1
    scene.serve()
    assert scene.gate.waiting.requests == 0
    assert scene.wakes == 1


def test_the_queue_is_woken_when_a_larger_batch_makes_room():
    scene = full_scene(one_class(frac=0.5))
    scene.selector.patch_worker(1, a_patch(max_num_batched_tokens=64))
    assert scene.wakes == 1
    scene.serve()
    assert scene.served == ["a"]


def test_the_queue_is_woken_when_a_threshold_is_lifted():
    scene = above_a_threshold()
    scene.set_thresholds(decode=None)
    assert scene.wakes == 1
    scene.serve()
    assert scene.served == ["a"]


def above_a_threshold(**shape):
    """Return a scene in which `a` waits for a worker with free tokens but a full cache."""
    scene = Scene(one_class(), decode=0.5, total_kv_blocks=8, **shape)
    scene.fill(1, 16, name="load1")
    scene.ask("a")
    scene.fill(1, token_ids=list(range(50, 66)), name="more", effective_prefill_tokens=0)
    scene.selector.complete_prefill("load1", scene.now)
    scene.serve()
    assert scene.gate.waiting.requests == 1
    scene.wakes = 0
    return scene


def test_the_queue_is_woken_when_output_makes_blocks_fade():
    scene = above_a_threshold()
    scene.selector.add_output_block("load1", None, scene.now)
    assert scene.wakes == 0
    scene.selector.add_output_block("load1", 0.0, scene.now)
    assert scene.wakes == 1
    scene.serve()
    assert scene.served == ["a"]


def test_the_queue_is_woken_when_an_engine_reports_free_cache():
    scene = above_a_threshold(metrics_endpoint=METRICS)
    scene.report_usage(0.4)
    assert scene.wakes == 1
    scene.serve()
    assert scene.served == ["a"]


def test_a_repeated_engine_reading_wakes_no_request():
    scene = above_a_threshold(metrics_endpoint=METRICS)
    scene.report_usage(0.9)
    scene.serve()
    scene.wakes = 0
    scene.report_usage(0.9)
    assert scene.wakes == 0


def test_the_queue_is_served_when_load_expires():
    scene = full_scene(ttl_s=50.0)
    scene.tick(49.0)
    assert scene.served == []
    scene.tick(1.0)
    assert scene.served == ["a"]


def test_an_empty_queue_is_not_woken():
    scene = Scene(one_class(), workers=2, ttl_s=10.0)
    scene.fill(1)
    scene.fill(2)
    scene.free("load1")
    scene.selector.complete_prefill("load2", scene.now)
    scene.free("load2")
    scene.selector.delete_worker(2, 0.0)
    scene.fill(1, name="expires")
    scene.selector.patch_worker(1, a_patch(taints=["x"]))
    scene.set_thresholds(prefill=5)
    scene.selector.set_shed_tier("best_effort")
    scene.selector.set_shed_tier(None)
    scene.tick(100.0)
    assert scene.wakes == 0


def test_room_in_another_partition_wakes_no_request():
    scene = full_scene()
    scene.register(2, model_name="n")
    scene.fill(2, model_name="n")
    scene.free("load2")
    assert scene.wakes == 0


def test_one_wake_is_enough_for_many_events():
    scene = full_scene()
    for number in range(5):
        scene.fill(1, name=f"r{number}")
    for number in range(5):
        scene.free(f"r{number}")
    assert scene.wakes == 1


def test_no_request_is_served_before_the_next_turn():
    scene = full_scene()
    scene.free("load1")
    assert scene.served == []


def test_serving_is_bounded_and_requests_another_turn(monkeypatch):
    monkeypatch.setattr(turn_budget, "SERVED_PER_TURN_MAX", 3)
    scene = many_wait(8)
    turns = []
    while scene.gate.waiting.requests:
        scene.wakes = 0
        scene.serve()
        turns.append((len(scene.served), scene.wakes))
    assert turns == [(3, 1), (6, 1), (8, 0)]
    assert scene.served == [f"r{n}" for n in range(8)]


def test_many_lanes_reduce_the_number_served_per_turn(monkeypatch):
    monkeypatch.setattr(turn_budget, "SERVED_PER_TURN_MAX", 4)
    monkeypatch.setattr(turn_budget, "SERVE_WORK", 3)
    monkeypatch.setattr(partition_queue, "LANE_WORK", 0)
    monkeypatch.setattr(partition_queue, "CLASS_WORK", 0)
    scene = Scene(one_class())
    scene.fill(1)
    for number in range(8):
        scene.look(f"r{number}", allowed_worker_ids=[1, 10 + number])
    scene.free("load1")
    turns = []
    while scene.gate.waiting.requests:
        scene.serve()
        turns.append(len(scene.served))
    # A search of 6 lanes costs 3 of 4: the next search would not end within the turn.
    assert turns == [1, 2, 3, 5, 8]
    assert scene.served == [f"r{n}" for n in range(8)]


def many_wait(count):
    """Return a scene of this many queued selections, and one free rank for all of them."""
    scene = Scene(one_class())
    scene.fill(1)
    for number in range(count):
        scene.look(f"r{number}")
    scene.free("load1")
    return scene


def test_a_request_between_two_turns_does_not_overtake(monkeypatch):
    monkeypatch.setattr(turn_budget, "SERVED_PER_TURN_MAX", 3)
    scene = many_wait(5)
    scene.look("late")
    assert scene.served == ["r0", "r1", "r2"]
    assert "late" in scene.tickets
    scene.serve()
    assert scene.served == ["r0", "r1", "r2", "r3", "r4", "late"]


def test_every_partition_gets_its_turn(monkeypatch):
    monkeypatch.setattr(turn_budget, "SERVED_PER_TURN_MAX", 2)
    scene = many_wait(2)
    scene.register(2, model_name="n")
    scene.fill(2, model_name="n")
    scene.look("other", model_name="n")
    scene.free("load2")
    scene.serve()
    assert "other" in scene.tickets
    scene.serve()
    assert scene.served == ["r0", "r1", "other"]


def test_an_id_taken_by_a_peer_rejects_only_its_own_request():
    scene = full_scene()
    scene.ask("b")
    event = ReservationAdmitted(
        model_name="m",
        tenant_id="default",
        block_size=4,
        reservation_id="a",
        rank=Rank(1, 0),
        router_id=7,
        sequence_hashes=np.zeros(0, np.uint64),
        prefill_tokens_hint=0,
    )
    assert scene.selector.followers.replicas.apply_event(event, scene.now) is None
    scene.free_and_serve("load1")
    assert scene.outcomes["a"].code == "conflict"
    assert scene.served == ["b"]


def test_the_pinned_are_served_with_the_others_in_order():
    scene = full_scene()
    scene.ask("b", **pinned(1))
    scene.ask("c")
    scene.free_and_serve("load1")
    assert scene.run_down() == ["a", "b", "c"]


def test_changes_of_workers_wake_the_same_requests_as_in_dynamo():
    """Check a trace of Dynamo 1.6.1: an idle worker, two pinned requests, the end of a worker."""
    scene = Scene(one_class(frac=0.5))
    scene.fill(1)
    scene.ask("q1")
    assert scene.ask("q1").status == 409
    with pytest.raises(NotFound):
        scene.free("q1")
    scene.register(2)
    scene.serve()
    assert where(scene.outcomes["q1"]) == (2, 0)
    scene.fill(2)
    scene.ask("q2", **pinned(1))
    scene.ask("q3", **pinned(2))
    scene.ask("q4")
    for name in ("load2", "q1"):
        scene.free_and_serve(name)
    assert (where(scene.outcomes["q3"]), list(scene.tickets)) == ((2, 0), ["q2"])
    assert where(scene.outcomes["q4"]) == (2, 0)
    scene.selector.delete_worker(1, scene.now)
    scene.serve()
    assert scene.outcomes["q2"].status == 503
    (loads,) = [row for row in scene.selector.inspection.partition_loads() if row is not None]
    assert (loads.pending_count, loads.pending_isl_tokens) == (0, 0)
