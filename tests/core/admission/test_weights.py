"""Tests of ranks out of rotation: no request waits in vain, and waiting requests are woken."""

import pytest

from select_service.core.identity import Rank
from tests.core.admission.scenes import Scene, one_class, pinned


def weigh(scene, worker_id, weight, dp_rank=0):
    scene.selector.fleet.set_weight(Rank(worker_id, dp_rank), weight, "unhealthy")


def test_a_queued_request_is_served_when_a_rank_returns():
    scene = Scene(one_class(), workers=2)
    weigh(scene, 1, 0.0)
    scene.fill(2)
    scene.ask("a")
    assert (scene.served, list(scene.tickets)) == ([], ["a"])
    before = scene.wakes
    weigh(scene, 1, 0.25)
    assert scene.wakes == before + 1
    scene.serve()
    assert scene.served == ["a"]
    assert scene.outcomes["a"].selection.worker_id == 1


def test_a_weight_that_opens_no_rank_wakes_no_request():
    scene = Scene(one_class(), workers=2)
    weigh(scene, 1, 0.5)
    for worker_id in (1, 2):
        scene.fill(worker_id)
    scene.ask("a")
    before = scene.wakes
    weigh(scene, 1, 0.75)
    assert scene.wakes == before


def test_a_request_for_a_rank_that_leaves_rotation_is_rejected():
    scene = Scene(one_class(), workers=2)
    for worker_id in (1, 2):
        scene.fill(worker_id)
    scene.ask("a", **pinned(1))
    scene.ask("b")
    weigh(scene, 1, 0.0)
    scene.serve()
    assert scene.outcomes["a"].code == "no_eligible_rank"
    assert scene.outcomes["a"].details["state"] == "unhealthy"
    assert list(scene.tickets) == ["b"]
    weigh(scene, 2, 0.0)
    scene.serve()
    assert scene.outcomes["b"].details["states"] == {"unhealthy": 2}


@pytest.mark.parametrize("queue", [None, one_class()])
def test_with_all_ranks_out_requests_are_refused_and_do_not_wait(queue):
    scene = Scene(queue, decode=0.5)
    weigh(scene, 1, 0.0)
    assert scene.ask("a").code == "no_eligible_rank"
    assert scene.gate.ranks_without_waiting(scene.partition) is None


def test_ranks_out_of_rotation_are_neither_busy_nor_free():
    scene = Scene(prefill=4, workers=3)
    judge, partition = scene.gate.busy_check, scene.partition
    for worker_id in (1, 2):
        scene.fill(worker_id)
    assert judge.count_busy(partition) == (2, 2)
    weigh(scene, 1, 0.0)
    weigh(scene, 3, 0.0)
    assert judge.count_busy(partition) == (1, 1)
    assert scene.ask("a").code == "service_unavailable"


def test_a_rank_is_busy_with_the_others_of_its_worker_that_are_in_rotation():
    scene = Scene(prefill=4, data_parallel_size=2)
    scene.fill(1)
    assert scene.look("a", **pinned(1)).selection.dp_rank == 0
    weigh(scene, 1, 0.0, dp_rank=1)
    assert scene.look("b", **pinned(1)).code == "service_unavailable"
