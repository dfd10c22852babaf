"""However much waits, one turn of the event loop refuses and looks at a bounded part of it."""

import pytest

from select_service.core.admission import gate, waiting, waiting_list
from tests.builders import a_patch
from tests.core.admission.scenes import Scene, one_class

WAITING = 7
PER_TURN = 3


def waiting_scene(**fields):
    """One busy worker, and requests that wait for it."""
    scene = Scene(one_class(), workers=2, taints=["x"])
    scene.fill(1)
    scene.fill(2)
    for number in range(WAITING):
        scene.look(f"r{number}", allowed_worker_ids=[1, 100 + number], **fields)
    scene.wakes = 0
    return scene


def turns(scene):
    """How many still wait, turn by turn, as long as another turn is asked for."""
    left = [scene.gate.waiting.requests]
    while scene.wakes:
        scene.wakes = 0
        scene.serve()
        left.append(scene.gate.waiting.requests)
    return left


def errors(scene):
    return {type(outcome).__name__ for outcome in scene.outcomes.values()}


def test_who_is_shed_is_refused_a_few_per_turn(monkeypatch):
    monkeypatch.setattr(gate, "SETTLED_PER_TURN_MAX", PER_TURN)
    scene = waiting_scene()
    scene.selector.shed("premium")
    assert turns(scene) == [4, 1, 0]
    assert errors(scene) == {"CapacityShed"}


def test_who_is_shed_is_not_served_before_its_refusal(monkeypatch):
    monkeypatch.setattr(gate, "SETTLED_PER_TURN_MAX", PER_TURN)
    scene = waiting_scene()
    scene.free("load1")
    scene.selector.shed("premium")
    turns(scene)
    assert errors(scene) == {"CapacityShed"}
    assert len(scene.outcomes) == WAITING


def test_whose_time_is_over_is_refused_a_few_per_turn(monkeypatch):
    monkeypatch.setattr(gate, "SETTLED_PER_TURN_MAX", PER_TURN)
    scene = waiting_scene(timeout_ms=500)
    left, more = [], True
    while more:
        more = scene.gate.tick(scene.now + 1.0)
        left.append(scene.gate.waiting.requests)
    assert left == [4, 1, 0]
    assert errors(scene) == {"QueueTimeout"}


def test_who_waits_for_a_partition_that_ended_is_refused_a_few_per_turn(monkeypatch):
    monkeypatch.setattr(waiting_list, "STRANDED_PER_TURN_MAX", PER_TURN)
    scene = waiting_scene()
    for worker_id in (1, 2):
        scene.selector.delete(worker_id, 0.0)
    assert turns(scene) == [7, 4, 1, 0]
    assert errors(scene) == {"NoWorkers"}


@pytest.mark.parametrize("gone", [True, False])
def test_the_candidates_of_lanes_are_found_anew_a_few_per_turn(monkeypatch, gone):
    monkeypatch.setattr(waiting, "REFRESHED_PER_TURN_MAX", PER_TURN)
    scene = waiting_scene()
    if gone:
        scene.selector.delete(1, 0.0)
        assert turns(scene) == [7, 4, 1, 0]
        assert errors(scene) == {"NoEligibleRank"}
    else:
        scene.selector.patch(1, a_patch(taints=["y"]))
        assert turns(scene) == [7] * 4
        scene.free("load1")
        assert turns(scene)[-1] == 0
        assert len(scene.served) == WAITING


@pytest.mark.parametrize("gone", [True, False])
def test_long_lists_of_allowed_workers_count_as_more_work(monkeypatch, gone):
    monkeypatch.setattr(waiting, "ALLOWED_PER_STEP", 1)
    monkeypatch.setattr(waiting, "REFRESHED_PER_TURN_MAX", PER_TURN)
    monkeypatch.setattr(gate, "SERVED_PER_TURN_MAX", PER_TURN)
    scene = waiting_scene()
    if gone:
        scene.selector.delete(1, 0.0)
    else:
        scene.free("load1")
    assert sorted(set(turns(scene)), reverse=True) == [7, 6, 5, 4, 3, 2, 1, 0]
