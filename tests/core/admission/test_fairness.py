"""Tests of a queue's flows: their parts of the limits, and ranks left to waiting requests."""

import pytest

from select_service.base.errors import PolicyClassFull, QueueFull
from select_service.core.admission.admission_state import FLOWS_SHOWN_MAX, list_class_states
from select_service.schemas.admission import FlowState
from tests.core.admission.scenes import (
    Scene,
    a_class,
    bounds,
    classes,
    hashes,
    one_class,
    pinned,
    store,
    where,
)

BLOCKS = list(range(1, 101))


def full_scene(queue=None):
    scene = Scene(queue or one_class(), workers=1)
    scene.fill()
    return scene


def test_a_heavy_flow_does_not_delay_a_light_one():
    scene = full_scene()
    for number in range(10):
        scene.ask(f"much{number}", fairness_id="much")
    for number in range(2):
        scene.ask(f"little{number}", fairness_id="little")
    scene.free_and_serve("load1")
    names = scene.run_down()
    assert [names.index(f"little{number}") for number in range(2)] == [1, 3]


def test_requests_without_a_name_are_served_in_order_of_arrival_together():
    scene = full_scene()
    for number in range(6):
        scene.ask(str(number), 8 if number % 2 else 20)
    scene.free_and_serve("load1")
    assert scene.run_down() == [str(number) for number in range(6)]


@pytest.mark.parametrize(
    ("queue", "error"),
    [
        (one_class(bounds=bounds(requests=4)), QueueFull),
        (one_class(bounds=bounds(tokens=32)), QueueFull),
        (classes(a_class(request_queue_limit_per_worker=4)), PolicyClassFull),
        (classes(a_class(raw_isl_token_queue_limit_per_worker=32)), PolicyClassFull),
    ],
)
def test_a_name_leaves_as_much_of_a_limit_as_it_takes(queue, error):
    scene = full_scene(queue)
    scene.ask("a1", fairness_id="a")
    scene.ask("a2", fairness_id="a")
    assert type(scene.ask("a3", fairness_id="a")) is error
    scene.ask("b1", fairness_id="b")
    assert type(scene.ask("b2", fairness_id="b")) is error
    scene.ask("c1", fairness_id="c")
    assert type(scene.ask("d1", fairness_id="d")) is error
    assert sorted(scene.tickets) == ["a1", "a2", "b1", "c1"]


def test_without_names_the_whole_limit_is_used():
    scene = full_scene(one_class(bounds=bounds(requests=4)))
    for number in range(4):
        scene.ask(str(number))
    assert len(scene.tickets) == 4
    assert str(scene.ask("a", fairness_id="a")) == (
        "the queue is full: 4 requests are waiting, 0 of them of this fairness_id, the limit is 4"
    )


def test_the_names_with_most_waiting_requests_are_shown():
    scene = full_scene()
    scene.ask("unnamed")
    assert [state.flows for state in list_class_states(scene.gate)] == [[]]
    for number in range(20):
        scene.ask(f"r{number}", fairness_id=f"f{number:02}")
    scene.ask("more", 16, fairness_id="f07")
    (state,) = list_class_states(scene.gate)
    assert len(state.flows) == FLOWS_SHOWN_MAX
    assert state.flows[0] == FlowState(fairness_id="f07", waiting_requests=2, waiting_isl_tokens=24)


def test_a_request_with_room_somewhere_may_choose_the_rank_with_its_cache():
    scene = Scene(one_class(), workers=2)
    store(scene, 1, BLOCKS)
    scene.fill(1, tokens=4)
    assert where(scene.ask("cached", **hashes(BLOCKS, 400))) == (1, 0)


def test_ranks_for_which_others_wait_are_left_to_them():
    scene = Scene(one_class(), workers=2)
    store(scene, 1, BLOCKS)
    scene.fill(1, tokens=4)
    scene.ask("pinned", **pinned(1))
    assert "pinned" in scene.tickets
    assert where(scene.ask("cached", **hashes(BLOCKS, 400))) == (2, 0)
    # The same holds while both wait and room appears elsewhere.
    scene.ask("queued", **hashes(BLOCKS, 400))
    scene.free_and_serve("cached")
    assert where(scene.outcomes["queued"]) == (2, 0)
    scene.free_and_serve("load1")
    assert where(scene.outcomes["pinned"]) == (1, 0)
