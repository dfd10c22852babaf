"""Tests of the waiting queue: the order of service, and requests that block others."""

import pytest

from select_service.base.errors import Conflict, NoWorkers
from select_service.core.decision_maker import PlacementDecision
from tests.builders import a_patch, a_reservation
from tests.core.admission.scenes import (
    KEY,
    Scene,
    a_class,
    classes,
    hashes,
    one_class,
    pinned,
    store,
    where,
)


def full_scene(queue=None, **options):
    """Return a scene of one worker without room; the queue can leave when `load1` is freed."""
    scene = Scene(queue or one_class(), **options)
    scene.fill(1)
    return scene


def test_an_idle_worker_with_a_batch_budget_of_zero_has_room():
    scene = Scene(one_class(frac=2.0), max_num_batched_tokens=0)
    scene.ask("a")
    scene.ask("b")
    assert scene.served == ["a"]
    scene.free_and_serve("a")
    assert scene.served == ["a", "b"]


def test_a_worker_that_names_no_batch_budget_is_incomplete_while_requests_may_wait():
    record = Scene(one_class(frac=2.0)).register(2, max_num_batched_tokens=None)
    assert record.not_schedulable_reasons == [
        "max_num_batched_tokens is required while queueing is enabled"
    ]


@pytest.mark.parametrize(("policy", "order"), [([], "abc"), ([one_class("lcfs")], "cba")])
def test_the_first_that_came_or_the_last_is_served_first(policy, order):
    scene = full_scene(*policy)
    for name in "abc":
        scene.ask(name)
        scene.now += 1.0
    scene.free_and_serve("load1")
    assert scene.run_down() == list(order)


def test_the_least_uncached_prompt_goes_first_under_wspt():
    scene = full_scene(one_class("wspt"))
    for name, tokens in (("long", 40), ("short", 4), ("middle", 20)):
        scene.ask(name, tokens)
    scene.free_and_serve("load1")
    assert scene.run_down() == ["short", "middle", "long"]


def test_cached_tokens_make_a_prompt_short_under_wspt():
    scene = full_scene(one_class("wspt"))
    store(scene, 1, [1, 2, 3])
    scene.ask("cached", **hashes([1, 2, 3], 12))
    scene.ask("short", **hashes([4], 4))
    scene.ask("long", **hashes([5, 6, 7], 12))
    scene.free_and_serve("load1")
    assert scene.run_down() == ["cached", "short", "long"]


def test_equal_scores_leave_in_the_order_of_arrival():
    scene = full_scene(one_class("wspt"))
    for name in "abc":
        scene.ask(name, 8)
    scene.free_and_serve("load1")
    assert scene.run_down() == ["a", "b", "c"]


@pytest.mark.parametrize("policy", ["fcfs", "lcfs", "wspt"])
def test_strict_priority_goes_before_every_score(policy):
    scene = full_scene(one_class(policy))
    scene.ask("first", 4, priority_jump=100.0)
    scene.now += 1.0
    scene.ask("urgent", 100, strict_priority=1)
    scene.now += 1.0
    scene.ask("last", 4, priority_jump=100.0)
    scene.free_and_serve("load1")
    assert scene.run_down()[0] == "urgent"


def test_a_priority_jump_counts_as_seconds_of_earlier_arrival():
    scene = full_scene()
    scene.ask("a")
    scene.now += 10.0
    scene.ask("jumps 9", priority_jump=9.0)
    scene.ask("jumps 11", priority_jump=11.0)
    scene.free_and_serve("load1")
    assert scene.run_down() == ["jumps 11", "a", "jumps 9"]


def test_a_priority_jump_multiplies_the_score_under_wspt():
    scene = full_scene(one_class("wspt"))
    scene.ask("10 tokens", 10)
    scene.ask("40 tokens", 40, priority_jump=3.5)
    scene.free_and_serve("load1")
    assert scene.run_down() == ["40 tokens", "10 tokens"]


@pytest.mark.parametrize("policy", ["fcfs", "lcfs", "wspt"])
def test_a_negative_priority_jump_counts_as_none(policy):
    scene = full_scene(one_class(policy))
    scene.ask("a", priority_jump=-50.0)
    scene.ask("b")
    scene.free_and_serve("load1")
    assert scene.run_down() == ["a", "b"]


def test_classes_take_turns_by_their_quanta():
    rules = classes(a_class("main", quantum=16), a_class("side", quantum=8))
    scene = full_scene(rules)
    for number in range(4):
        scene.ask(f"m{number}", 8)
        scene.ask(f"s{number}", 8, header="side")
    scene.free_and_serve("load1")
    assert scene.run_down() == ["m0", "m1", "s0", "m2", "m3", "s1", "s2", "s3"]


def test_a_class_with_more_room_does_not_wait_for_one_with_less():
    patient = a_class("main")
    vip = {"name": "vip", "prefill_busy_threshold": 100}
    scene = full_scene(classes(patient, vip))
    scene.ask("a")
    assert isinstance(scene.ask("b", header="vip"), PlacementDecision)
    assert list(scene.tickets) == ["a"]


def test_the_bucket_is_that_of_the_uncached_tokens():
    short = a_class("main-short", policy_family="main", cache_bucket="short")
    long = a_class("main-long", policy_family="main", cache_bucket="long")
    scene = full_scene(classes(short, long, buckets=((0, "short"), (9, "long"))))
    store(scene, 1, [1, 2])
    scene.ask("cached", **hashes([1, 2, 3], 12))
    scene.ask("not", **hashes([4, 5, 6], 12))
    assert [scene.tickets[n].policy_class for n in ("cached", "not")] == ["main-short", "main-long"]


def test_a_request_for_other_ranks_blocks_no_request():
    scene = full_scene(workers=2)
    scene.ask("for 1", **pinned(1))
    assert where(scene.ask("for any")) == (2, 0)
    assert where(scene.outcomes["for any"]) == (2, 0)
    scene.ask("for any again")
    scene.free("load1")
    scene.serve()
    assert scene.served == ["for any", "for 1"]


def test_no_request_overtakes_another_on_a_common_rank():
    scene = full_scene(workers=2)
    scene.fill(2)
    scene.ask("any")
    scene.now += 1.0
    scene.ask("only 2", allowed_worker_ids=[2])
    scene.ask("only 1", allowed_worker_ids=[1])
    scene.free_and_serve("load2")
    assert where(scene.outcomes["any"]) == (2, 0)
    assert scene.served == ["any"]
    scene.free_and_serve("load1")
    assert scene.served == ["any", "only 1"]


def test_a_new_request_is_served_after_earlier_ones_when_room_appears():
    scene = full_scene()
    scene.ask("waits")
    scene.free("load1")
    scene.ask("comes")
    assert scene.served == ["waits"]
    assert list(scene.tickets) == ["comes"]


def test_pinned_requests_wait_and_are_judged_by_worker():
    """Check a pinned rank above the busy threshold while another rank of the worker is below."""
    scene = Scene(one_class(), decode=0.5, total_kv_blocks=8, data_parallel_size=2)
    scene.fill(1, 4 * 6)
    assert not isinstance(scene.ask("a", **pinned(1, 0)), PlacementDecision)
    scene.selector.complete_prefill("load1", scene.now)
    assert scene.gate.busy_check.count_busy(scene.partition) == (1, 0)
    scene.serve()
    assert where(scene.outcomes["a"]) == (1, 0)


def test_a_request_without_room_is_refused_when_all_its_ranks_are_above_a_busy_threshold():
    scene = full_scene(prefill=15)
    assert scene.ask("a").code == "service_unavailable"
    assert scene.gate.waiting.requests == 0


def test_a_new_request_is_rejected_if_earlier_ones_make_all_ranks_busy():
    scene = Scene(one_class(), decode=0.5, total_kv_blocks=4, data_parallel_size=2)
    for dp_rank in (0, 1):
        scene.fill(1, 4, name=f"load{dp_rank}", dp_rank=dp_rank)
    scene.ask("a", 12)
    scene.ask("b", 12, token_ids=list(range(100, 112)))
    scene.free("load0")
    scene.free("load1")
    error = scene.ask("late")
    assert scene.served == ["a", "b"]
    assert error.code == "service_unavailable"


def test_a_disconnected_client_makes_no_room_and_leaves_no_trace():
    scene = full_scene()
    gone = scene.ask("gone")
    scene.ask("next")
    scene.gate.remove_disconnected(gone)
    scene.gate.remove_disconnected(gone)
    assert scene.gate.waiting.requests == 1
    assert scene.gate.tally.outcome_counts()["client_gone"] == 1
    scene.free_and_serve("load1")
    assert scene.served == ["next"]
    assert isinstance(scene.ask("gone", priority_jump=1.0), type(gone))


def test_overlap_is_read_again_when_a_request_leaves_the_queue():
    scene = full_scene()
    scene.ask("a", **hashes([1, 2], 8))
    store(scene, 1, [1, 2])
    scene.free_and_serve("load1")
    selection = scene.outcomes["a"].selection
    assert (selection.overlap.gpu, selection.effective_prefill_tokens) == (8, 0)


def test_a_decision_has_the_data_of_its_wait():
    scene = full_scene()
    scene.ask("a")
    scene.ask("b")
    scene.now += 2.5
    scene.free_and_serve("load1")
    assert scene.outcomes["a"].queue_wait == ("default", 1, 2.5)
    scene.now += 1.0
    scene.free_and_serve("a")
    assert scene.outcomes["b"].queue_wait == ("default", 2, 3.5)
    waits = scene.gate.tally.waits["default"]
    assert (sum(waits.counts), waits.total_s) == (2, 6.0)


def test_the_position_follows_the_order_of_service_not_of_arrival():
    scene = full_scene()
    assert scene.ask("a").position == 1
    assert scene.ask("b").position == 2
    assert scene.ask("urgent", strict_priority=1).position == 1


def test_the_queue_is_shown_with_the_loads():
    scene = full_scene()
    scene.ask("a", 8)
    scene.look("b", 5)
    (loads,) = scene.selector.inspection.partition_loads()
    assert (loads.pending_count, loads.pending_isl_tokens) == (2, 13)
    assert scene.gate.backlog_by_class()["default"] == (2, 13)


def test_a_waiting_request_holds_no_tokens():
    scene = full_scene()
    ticket = scene.ask("a", 8)
    assert ticket.request.token_ids is None
    assert ticket.placement_request.request.token_ids is None


def test_a_reservation_id_belongs_to_the_request_that_waits_for_it():
    scene = full_scene()
    scene.ask("a")
    error = scene.ask("a")
    assert (type(error), error.status) == (Conflict, 409)
    assert str(error) == "reservation a is already waiting for a worker"
    with pytest.raises(Conflict):
        scene.selector.reserve(a_reservation("a"), scene.now)
    assert scene.gate.waiting.requests == 1


def test_an_id_is_free_again_when_its_request_has_given_up():
    scene = full_scene()
    scene.gate.remove_disconnected(scene.ask("a"))
    scene.fill(1, name="a")
    scene.free("a")
    scene.ask("a")
    assert list(scene.tickets) == ["a"]


def test_reservations_and_questions_never_wait():
    scene = full_scene()
    scene.ask("a")
    scene.fill(1, name="one more")
    row = next(scene.selector.inspection.partition_loads()).loads[0]
    assert (row.active_requests, row.potential_prefill_tokens) == (2, 32)


def test_requests_are_rejected_at_once_when_the_last_worker_leaves():
    scene = full_scene()
    for name in "abc":
        scene.ask(name)
    scene.selector.delete_worker(1, 0.0)
    scene.serve()
    assert [type(scene.outcomes[name]) for name in "abc"] == [NoWorkers] * 3
    assert str(scene.outcomes["a"]) == "no schedulable workers for model=m tenant=default"
    assert scene.gate.tally.outcome_counts()["no_rank"] == 3


def test_requests_for_a_removed_worker_are_rejected_and_others_wait_on():
    scene = full_scene(workers=2)
    scene.fill(2)
    for name, fields in (("a", pinned(1)), ("b", {"allowed_worker_ids": [1]}), ("c", {})):
        scene.ask(name, **fields)
    scene.selector.delete_worker(1, 0.0)
    scene.serve()
    assert [scene.outcomes[name].code for name in "ab"] == ["no_eligible_rank"] * 2
    assert list(scene.tickets) == ["c"]


def test_requests_are_rejected_after_their_taints_have_gone():
    scene = full_scene(taints=["a100"])
    scene.ask("a", routing_constraints={"required_taints": ["a100"]})
    scene.selector.patch_worker(1, a_patch(taints=["h100"]))
    scene.serve()
    assert scene.outcomes["a"].code == "no_eligible_rank"


def test_requests_follow_to_the_workers_that_replace_all_others():
    scene = full_scene()
    scene.ask("a")
    scene.ask("b")
    scene.selector.delete_worker(1, 0.0)
    scene.register(2)
    scene.serve()
    assert where(scene.outcomes["a"]) == (2, 0)
    assert scene.tickets["b"].placement_request.partition is scene.selector.fleet.partitions[KEY]
    scene.free_and_serve("a")
    assert scene.served == ["a", "b"]


def test_requests_that_followed_know_all_ranks_of_the_new_workers():
    """Check that candidates are searched anew in the new table."""
    scene = full_scene()
    scene.ask("a")
    scene.tick()
    scene.selector.delete_worker(1, 0.0)
    scene.register(2, data_parallel_size=2)
    scene.fill(2)
    scene.serve()
    assert where(scene.outcomes["a"]) == (2, 1)


def test_requests_do_not_follow_to_workers_with_another_block_size():
    scene = full_scene()
    scene.ask("a")
    scene.ask("b")
    scene.selector.delete_worker(1, 0.0)
    scene.register(2, block_size=8)
    scene.serve()
    assert [type(scene.outcomes[name]) for name in "ab"] == [NoWorkers] * 2
    assert str(scene.outcomes["a"]) == "the block size of model=m changed: send the request again"
