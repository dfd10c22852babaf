"""Tests of requests with a deadline: the order of service, and immediate rejections."""

import pytest

from select_service.base.errors import DeadlineExceeded, QueueTimeout
from select_service.core.admission import flow_clock
from select_service.core.decision_maker import PlacementDecision
from tests.builders import a_select
from tests.core.admission.scenes import Scene, a_class, classes, one_class

TOKENS = 10


def full_scene(queue=None):
    scene = Scene(queue or one_class(), workers=1)
    scene.fill()
    return scene


def busy_scene(waiting, seconds=6, queue=None):
    """Return a queue that serves one request of TOKENS each second and has some left."""
    scene = full_scene(queue)
    for number in range(waiting + seconds):
        scene.ask(f"r{number}", TOKENS)
    last = "load1"
    scene.tick()
    for _ in range(seconds):
        scene.free_and_serve(last)
        last = scene.served[-1]
        scene.tick()
    assert scene.gate.waiting.requests == waiting
    return scene


def is_refused(scene, name, deadline_ms, **fields):
    outcome = scene.ask(name, TOKENS, deadline_ms=deadline_ms, **fields)
    if isinstance(outcome, DeadlineExceeded):
        assert name not in scene.tickets
        return True
    assert name in scene.tickets
    scene.gate.remove_disconnected(scene.tickets[name])
    return False


def test_a_request_with_room_has_met_its_deadline():
    scene = Scene(one_class())
    assert isinstance(scene.ask("a", deadline_ms=0), PlacementDecision)


def test_a_past_deadline_is_rejected_with_its_own_code():
    scene = full_scene()
    error = scene.ask("a", deadline_ms=0, timeout_ms=1000)
    assert (type(error), error.status, error.code) == (DeadlineExceeded, 503, "deadline_exceeded")
    assert error.retry_after_s >= 1
    assert str(error) == (
        "deadline_ms 0 cannot be met: no worker had room within 0.000 s (policy class default); "
        "allow more time or send the request elsewhere"
    )
    assert scene.gate.tally.outcome_counts()["deadline_exceeded"] == 1
    assert scene.gate.tally.n_rejected == 1
    assert scene.gate.tally.missed_deadlines == {"default": 1}
    assert not scene.gate.waiting.requests


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({"deadline_ms": 1000}, DeadlineExceeded),
        ({"deadline_ms": 1000, "timeout_ms": 5000}, DeadlineExceeded),
        ({"deadline_ms": 5000, "timeout_ms": 1000}, QueueTimeout),
    ],
)
def test_the_earlier_of_deadline_and_timeout_ends_the_wait(limits, error):
    scene = full_scene()
    scene.ask("a", **limits)
    scene.tick(0.5)
    assert "a" in scene.tickets
    scene.tick(0.6)
    assert type(scene.outcomes["a"]) is error


def test_nothing_is_refused_at_once_while_the_speed_of_the_queue_is_not_known():
    scene = full_scene()
    for number in range(50):
        scene.ask(f"r{number}", 100)
    assert not is_refused(scene, "a", 1)
    scene.tick()  # no request has left the queue since
    scene.tick()
    scene.tick()
    assert not is_refused(scene, "b", 1)


def test_the_speed_of_a_fleet_without_a_queue_does_not_count():
    """Check that one request in 10 s counts as demand, not as capacity."""
    scene = Scene(one_class(), workers=1)
    for number in range(20):
        scene.ask(f"r{number}", TOKENS)
        scene.free(f"r{number}")
        scene.tick(10.0)
    scene.fill()
    scene.ask("first", TOKENS)
    assert not is_refused(scene, "second", 1000)


def test_a_deadline_that_the_queue_cannot_meet_is_refused_at_once():
    """Check a request that overtakes all without a deadline and follows the due one by a second."""
    scene = busy_scene(10)
    scene.ask("due", TOKENS, deadline_ms=500)
    error = scene.ask("late", TOKENS, deadline_ms=900)
    assert isinstance(error, DeadlineExceeded)
    assert str(error) == (
        "deadline_ms 900 cannot be met: the estimated wait for a rank is 1.000 s, 0.900 s are left "
        "(policy class default); allow more time or send the request elsewhere"
    )
    assert error.retry_after_s == 1
    assert scene.gate.waiting.requests == 11
    assert not is_refused(scene, "in time", 1_100)
    assert not is_refused(scene, "before all", 400)


def test_an_explanation_estimates_the_wait_and_predicts_the_refusal():
    scene = busy_scene(10)
    scene.ask("due", TOKENS, deadline_ms=500)
    before = scene.gate.tally.outcome_counts()
    explain = scene.selector.followers.explanations.explain_request
    for fields, wait_s in (({}, 11.0), ({"deadline_ms": 900}, 1.0), ({"deadline_ms": 1_100}, 1.0)):
        view = explain(a_select(TOKENS, **fields), None, None, scene.now)
        assert view.estimated_wait_s == pytest.approx(wait_s)
        assert view.would_wait is (fields != {"deadline_ms": 900})
        if not view.would_wait:
            error = view.refusal
    assert scene.gate.tally.outcome_counts() == before
    assert scene.gate.waiting.requests == 11
    refusal = scene.ask("late", TOKENS, deadline_ms=900)
    assert (error.code, error.error) == (refusal.code, str(refusal))


def test_equal_deadlines_are_accepted_only_as_far_as_they_can_be_met():
    scene = busy_scene(0)
    scene.fill(name="again")
    outcomes = [scene.ask(f"r{n}", TOKENS, deadline_ms=10_000) for n in range(100, 120)]
    assert [isinstance(each, DeadlineExceeded) for each in outcomes] == [False] * 11 + [True] * 9
    assert outcomes[-1].retry_after_s == 1
    assert not is_refused(scene, "later", 11_100)
    assert not is_refused(scene, "before all", 1_100)


def test_a_priority_waits_only_for_its_equals():
    scene = busy_scene(10)
    assert not is_refused(scene, "urgent", 1, strict_priority=1)
    for number in range(5):
        scene.ask(f"urgent{number}", TOKENS, strict_priority=1, deadline_ms=4_500)
    assert is_refused(scene, "late", 4_900, strict_priority=1)
    assert not is_refused(scene, "in time", 5_100, strict_priority=1)


def test_another_fairness_id_waits_for_its_share_only(monkeypatch):
    """Check that the flow gets half of ten tokens each second; other flows were served last."""
    monkeypatch.setattr(flow_clock, "BURST_TOKENS", 0)
    scene = busy_scene(10)
    assert not is_refused(scene, "next", 1, fairness_id="b")
    scene.ask("b1", 2 * TOKENS, fairness_id="b", deadline_ms=500)
    assert is_refused(scene, "late", 2_900, fairness_id="b")
    assert not is_refused(scene, "in time", 3_100, fairness_id="b")
    scene.ask("b2", TOKENS, fairness_id="b")
    scene.ask("c1", 2 * TOKENS, fairness_id="c")
    # The share is a third now, and a request of the same flow without a deadline is served later.
    assert is_refused(scene, "late", 4_900, fairness_id="b")
    assert not is_refused(scene, "in time", 5_100, fairness_id="b")


def test_a_burst_of_another_fairness_id_waits_for_itself_only(monkeypatch):
    monkeypatch.setattr(flow_clock, "BURST_TOKENS", 2 * TOKENS)
    scene = busy_scene(10)
    for number in range(3):
        assert not is_refused(scene, "in time", 1000 * number + 100, fairness_id="b")
        scene.ask(f"b{number}", TOKENS, fairness_id="b", deadline_ms=1000 * number + 100)
    # From here on the flow's next start is later than the other flow's.
    scene.ask("b3", TOKENS, fairness_id="b", deadline_ms=3_100)
    assert is_refused(scene, "late", 4_900, fairness_id="b")
    assert not is_refused(scene, "in time", 5_100, fairness_id="b")


def test_another_class_waits_for_its_quantum_only():
    rules = classes(a_class("main", quantum=1), a_class("other", quantum=3))
    scene = busy_scene(10, queue=rules)
    scene.ask("o1", 3 * TOKENS, "other", deadline_ms=500)
    # The class gets three quarters of ten tokens each second; thirty tokens are served before.
    error = scene.ask("o2", TOKENS, "other", deadline_ms=3_900)
    assert isinstance(error, DeadlineExceeded)
    assert scene.gate.tally.missed_deadlines == {"other": 1}
    scene.ask("o3", TOKENS, "other", deadline_ms=4_100)
    assert "o3" in scene.tickets


def test_more_ranks_are_faster_at_once():
    scene = busy_scene(10)
    scene.ask("due", TOKENS, deadline_ms=500)
    assert is_refused(scene, "a", 900)
    scene.register(2)
    scene.fill(2)
    assert not is_refused(scene, "b", 900)


def pinned_scene(waiting):
    """Return a scene of two ranks that serve ten tokens each second, and their queued requests.

    waiting: number of queued requests by worker
    """
    scene = Scene(one_class(), workers=2)
    here = {worker: {"pinned_worker": {"worker_id": worker, "dp_rank": 0}} for worker in (1, 2)}
    for worker, number in waiting.items():
        scene.fill(worker)
        for n in range(number + 6):
            scene.ask(f"{worker}-{n}", TOKENS, deadline_ms=10_000, **here[worker])
    scene.tick()
    last = [f"load{worker}" for worker in waiting]
    for n in range(6):
        for name in last:
            scene.free(name)
        scene.serve()
        last = [f"{worker}-{n}" for worker in waiting]
        scene.tick()
    assert scene.gate.waiting.requests == sum(waiting.values())
    return scene, here


def test_the_speed_of_one_rank_is_not_that_of_the_fleet():
    scene, here = pinned_scene({1: 10})
    scene.ask("due", TOKENS, deadline_ms=500, **here[1])
    assert is_refused(scene, "late", 900, **here[1])
    assert not is_refused(scene, "in time", 1_100, **here[1])
    scene.fill(2)
    scene.ask("any", TOKENS, deadline_ms=100)
    # Both ranks together need half the time.
    assert is_refused(scene, "late", 400)
    assert not is_refused(scene, "in time", 600)


def test_a_request_waits_for_its_own_ranks_only():
    """Check that requests for the other rank are no delay, while requests for both ranks are."""
    scene, here = pinned_scene({1: 2, 2: 8})
    assert not is_refused(scene, "short queue", 4_000, **here[1])
    assert is_refused(scene, "long queue", 4_000, **here[2])
    assert not is_refused(scene, "anywhere", 4_000)
    for n in range(8):
        scene.ask(f"any{n}", TOKENS, deadline_ms=3_500)
    # 80 tokens for both ranks, or 100 with the rank's own tokens.
    assert not is_refused(scene, "after both", 5_100, **here[1])
    assert is_refused(scene, "too late", 4_900, **here[1])


def test_the_speed_of_a_former_queue_is_forgotten():
    """Check that the speed of a formerly slow fleet is forgotten."""
    scene = busy_scene(10)
    for seconds, is_known in ((3, True), (10, False)):
        for ticket in list(scene.tickets.values()):
            scene.gate.remove_disconnected(ticket)
        for _ in range(seconds):
            scene.tick()
        scene.ask(f"first{seconds}", TOKENS, deadline_ms=500)
        assert is_refused(scene, "second", 900) is is_known
