"""Tests of queue limits and timeouts: limits of classes, bounds of the process, longest waits."""

import pytest

from select_service.base.errors import PolicyClassFull, QueueFull, QueueTimeout
from select_service.core.admission import class_queue, partition_queue, waiting_list
from select_service.core.decision_maker import PlacementDecision
from tests.core.admission.scenes import Scene, a_class, bounds, classes, hashes, one_class, store


def full_scene(queue=None, **options):
    """Return a scene of workers without room; the queue can leave when `load1` is freed."""
    scene = Scene(queue or one_class(), **options)
    for worker_id in range(1, options.get("workers", 1) + 1):
        scene.fill(worker_id)
    return scene


def waits(scene, name, *arguments, **fields):
    scene.ask(name, *arguments, **fields)
    return name in scene.tickets


def test_a_class_limits_its_requests_and_names_the_limit():
    scene = full_scene(classes(a_class(request_queue_limit_per_worker=2)))
    assert waits(scene, "a")
    assert waits(scene, "b")
    error = scene.ask("c")
    assert (type(error), error.status, error.code) == (PolicyClassFull, 429, "queue_full")
    assert str(error) == (
        'router policy class "main" queue requests limit reached (current=2, limit=2)'
    )
    assert error.details == {
        "policy_class": "main",
        "limit_kind": "requests",
        "current": 2,
        "limit": 2,
    }
    assert error.retry_after_s >= 1
    assert scene.gate.tally.outcome_counts()["queue_full"] == 1


def test_a_class_limits_the_prompt_tokens_that_wait():
    scene = full_scene(classes(a_class(raw_isl_token_queue_limit_per_worker=20)))
    assert waits(scene, "a", 12)
    error = scene.ask("b", 9)
    assert error.details["limit_kind"] == "raw_isl_tokens"
    assert (error.details["current"], error.details["limit"]) == (12, 20)
    assert waits(scene, "c", 8)


def test_a_class_limits_the_cached_tokens_that_wait():
    scene = full_scene(classes(a_class(cached_token_queue_limit_per_worker=0)))
    store(scene, 1, [1])
    assert waits(scene, "not cached", **hashes([2, 3, 4], 12))
    error = scene.ask("cached", **hashes([1, 2, 3], 12))
    assert error.details["limit_kind"] == "cached_tokens"
    assert (error.details["current"], error.details["limit"]) == (0, 0)


def test_a_limit_of_zero_forbids_waits_but_passes_requests_with_room():
    scene = Scene(classes(a_class(request_queue_limit_per_worker=0)))
    assert isinstance(scene.ask("a"), PlacementDecision)
    assert isinstance(scene.ask("b"), QueueFull)


def test_limits_are_per_worker():
    scene = full_scene(classes(a_class(request_queue_limit_per_worker=1)), workers=2)
    assert waits(scene, "a")
    assert waits(scene, "b")
    assert scene.ask("c").details["limit"] == 2
    scene.selector.delete_worker(2, 0.0)
    assert scene.ask("d").details == {
        "policy_class": "main",
        "limit_kind": "requests",
        "current": 2,
        "limit": 1,
    }


def test_one_class_does_not_use_up_the_limit_of_another():
    rules = classes(a_class("main", request_queue_limit_per_worker=1), a_class("side"))
    scene = full_scene(rules)
    assert waits(scene, "a")
    assert waits(scene, "b", header="side")
    assert waits(scene, "c", header="side")
    assert isinstance(scene.ask("d"), QueueFull)


def test_distinct_constraints_in_the_queue_are_limited(monkeypatch):
    monkeypatch.setattr(class_queue, "LANES_MAX", 2)
    scene = full_scene(workers=3)
    assert waits(scene, "a", allowed_worker_ids=[1])
    assert waits(scene, "b", allowed_worker_ids=[1, 2])
    error = scene.ask("c", allowed_worker_ids=[1, 3])
    assert error.details["limit_kind"] == "constraints"
    assert waits(scene, "d", allowed_worker_ids=[2, 1, 1])


def test_classes_leave_constraints_to_each_other(monkeypatch):
    monkeypatch.setattr(partition_queue, "PARTITION_LANES_MAX", 4)
    scene = full_scene(classes(a_class("main"), a_class("side")), workers=3)
    assert waits(scene, "a", allowed_worker_ids=[1])
    assert waits(scene, "b", allowed_worker_ids=[2])
    error = scene.ask("c", allowed_worker_ids=[3])
    assert (error.details["limit_kind"], error.details["limit"]) == ("constraints", 4)
    assert waits(scene, "d", allowed_worker_ids=[2])
    assert waits(scene, "e", header="side")
    assert isinstance(scene.ask("f", header="side", allowed_worker_ids=[1]), QueueFull)


def test_the_process_bounds_queued_requests():
    scene = full_scene(one_class(bounds=bounds(requests=2)))
    scene.register(2, model_name="n")
    scene.fill(2, model_name="n")
    assert waits(scene, "a")
    assert waits(scene, "b", model_name="n")
    error = scene.ask("c")
    assert str(error) == "the queue is full: 2 requests are waiting, the limit is 2"
    assert error.details is None


def test_the_process_bounds_queued_prompt_tokens():
    scene = full_scene(one_class(bounds=bounds(tokens=20)))
    assert waits(scene, "a", 12)
    assert str(scene.ask("b", 9)) == (
        "the queue is full: 12 prompt tokens are waiting, the limit is 20"
    )
    assert waits(scene, "c", 8)


def test_the_process_bounds_queued_prompt_blocks(monkeypatch):
    monkeypatch.setattr(waiting_list, "WAITING_BLOCKS_MAX", 5)
    scene = full_scene()
    assert waits(scene, "a", 12)
    assert str(scene.ask("b", 12)) == (
        "the queue is full: 3 prompt blocks are waiting, the limit is 5"
    )
    assert waits(scene, "c", 11)


def test_the_process_bounds_queued_allowed_ids(monkeypatch):
    monkeypatch.setattr(waiting_list, "WAITING_ALLOWED_IDS_MAX", 5)
    scene = full_scene()
    ticket = scene.ask("a", allowed_worker_ids=[1, 7, 8])
    assert str(scene.ask("b", allowed_worker_ids=[1, 7, 8])) == (
        "the queue is full: 3 allowed ids are waiting, the limit is 5"
    )
    assert waits(scene, "c", allowed_worker_ids=[1, 7])
    assert waits(scene, "anywhere")
    scene.gate.remove_disconnected(ticket)
    assert waits(scene, "d", allowed_worker_ids=[1, 7, 8])


def test_a_bound_is_free_again_when_a_request_has_left():
    scene = full_scene(one_class(bounds=bounds(requests=1)))
    ticket = scene.ask("a")
    assert isinstance(scene.ask("b"), QueueFull)
    scene.gate.remove_disconnected(ticket)
    assert waits(scene, "c")


def test_a_refused_request_leaves_its_id_free():
    scene = full_scene(one_class(bounds=bounds(requests=0)))
    assert isinstance(scene.ask("a"), QueueFull)
    scene.free("load1")
    assert isinstance(scene.ask("a"), PlacementDecision)


def test_a_request_is_refused_when_its_own_time_is_over():
    scene = full_scene()
    scene.ask("a", timeout_ms=1500)
    scene.tick(1.499)
    assert "a" in scene.tickets
    scene.tick(0.001)
    error = scene.outcomes["a"]
    assert (type(error), error.status, error.code) == (QueueTimeout, 503, "queue_timeout")
    assert str(error) == ("queue_timeout: no worker had room within 1.500 s (policy class default)")
    assert error.retry_after_s >= 1
    assert scene.gate.tally.outcome_counts()["queue_timeout"] == 1


@pytest.mark.parametrize(
    ("own", "common", "seconds"), [(1000, 5.0, 1), (9000, 5.0, 5), (None, 5.0, 5)]
)
def test_the_sooner_of_the_two_timeouts_counts(own, common, seconds):
    scene = full_scene(one_class(timeout_s=common))
    ticket = scene.ask("a", timeout_ms=own)
    assert ticket.deadline == seconds


def test_without_timeouts_a_request_waits_until_it_is_served():
    scene = full_scene(ttl_s=0.0)
    scene.ask("a")
    for _ in range(3):
        scene.tick(1e6)
    assert "a" in scene.tickets


def test_a_timeout_of_zero_takes_room_or_nothing():
    scene = Scene(one_class())
    assert isinstance(scene.ask("a", timeout_ms=0), PlacementDecision)
    error = scene.ask("b", timeout_ms=0)
    assert isinstance(error, QueueTimeout)
    assert scene.gate.waiting.requests == 0


def test_a_deadline_may_be_called_by_a_timer_and_later_by_the_tick():
    scene = full_scene()
    ticket = scene.ask("a", timeout_ms=500)
    scene.now = 0.5
    scene.gate.time_out_ticket(ticket, scene.now)
    scene.gate.time_out_ticket(ticket, scene.now)
    scene.tick(1.0)
    assert scene.gate.tally.outcome_counts()["queue_timeout"] == 1


def test_a_request_that_was_served_cannot_time_out():
    scene = full_scene()
    ticket = scene.ask("a", timeout_ms=500)
    scene.free_and_serve("load1")
    scene.gate.time_out_ticket(ticket, 0.5)
    scene.tick(1.0)
    assert isinstance(scene.outcomes["a"], PlacementDecision)
    assert scene.gate.tally.outcome_counts()["queue_timeout"] == 0


def test_the_end_of_the_process_ends_all_waits():
    scene = full_scene()
    scene.ask("a", timeout_ms=500)
    scene.ask("b")
    error = QueueFull("over")
    scene.gate.refuse_all_waiting(error)
    assert (scene.outcomes["a"], scene.outcomes["b"]) == (error, error)
    assert scene.gate.waiting.requests == 0
    assert scene.gate.tally.outcome_counts()["no_rank"] == 2
    scene.selector.check_invariants()
