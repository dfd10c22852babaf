"""Tests, by example, of requests that wait while every candidate has much work left."""

import numpy as np
import pytest

from select_service.core.admission import turn_budget
from select_service.core.admission.drain_rate import TOKEN_S, TOKEN_S_MAX, TOKEN_S_MIN, DrainRate
from select_service.core.load.new_reservation import DrainedTotals
from tests.builders import a_reservation
from tests.core.admission.scenes import Scene, hashes, one_class, pinned, store, where

MUCH, LITTLE, BLOCK = 9000, 8, 1024


def holding(**options):
    """Return a scene of two workers with a batch budget of at most 8,192 tokens each."""
    return Scene(one_class("work", 1.0), workers=2, **options)


def busy(scene, worker_id, tokens, name=None):
    """Book this much work of a caller on the rank."""
    name = name or f"load{worker_id}"
    scene.selector.reserve(
        a_reservation(
            name, worker_id, token_ids=None, sequence_hashes=[worker_id], isl_tokens=tokens
        ),
        scene.now,
    )


def test_a_request_waits_for_a_prefill_to_end_if_all_ranks_have_much_work():
    scene = holding()
    for worker_id in (1, 2):
        busy(scene, worker_id, MUCH)
    scene.ask("a")
    assert scene.gate.waiting.requests == 1
    scene.selector.complete_prefill("load2", scene.now)
    scene.serve()
    assert where(scene.outcomes["a"]) == (2, 0)


def test_no_request_waits_once_the_remaining_work_fits_into_one_batch():
    scene = holding(max_num_batched_tokens=MUCH)
    for worker_id in (1, 2):
        busy(scene, worker_id, MUCH)
    scene.ask("a")
    assert scene.served == ["a"]


def test_one_rank_with_room_opens_all_of_them():
    """Check that a full rank with the prompt cached is worth a wait in the engine."""
    scene, prompt = holding(block_size=BLOCK), list(range(1, 41))
    busy(scene, 1, MUCH)
    store(scene, 1, prompt)
    scene.ask("a", **hashes(prompt, 40 * BLOCK))
    assert where(scene.outcomes["a"]) == (1, 0)
    busy(scene, 2, MUCH)
    scene.ask("b", **hashes(prompt, 40 * BLOCK))
    assert scene.gate.waiting.requests == 1


def test_only_computed_blocks_of_an_engine_make_room():
    scene, prompt = holding(block_size=BLOCK), list(range(1, 13))
    scene.ask("long", **hashes(prompt, 12 * BLOCK))
    (worker_id, _) = where(scene.outcomes["long"])
    busy(scene, 3 - worker_id, MUCH)
    scene.ask("a")
    scene.gate.wake_by_progress(scene.now)
    scene.serve()
    assert scene.gate.waiting.requests == 1
    scene.wakes = 0
    scene.gate.wake_by_progress(scene.now)
    assert not scene.wakes
    store(scene, worker_id, prompt[:6])
    scene.gate.wake_by_progress(scene.now)
    assert scene.wakes == 1
    scene.serve()
    assert where(scene.outcomes["a"]) == (worker_id, 0)


def test_new_requests_wait_behind_those_that_an_engine_made_room_for():
    scene, prompt = holding(block_size=BLOCK), list(range(1, 13))
    scene.ask("long", **hashes(prompt, 12 * BLOCK))
    (worker_id, _) = where(scene.outcomes["long"])
    busy(scene, 3 - worker_id, MUCH)
    scene.ask("a", **hashes([70], MUCH))
    store(scene, worker_id, prompt[:6])
    scene.ask("b")
    assert scene.served == ["long", "a"]
    assert scene.gate.waiting.requests == 1


def test_an_arrival_leaves_excess_service_to_a_turn(monkeypatch):
    monkeypatch.setattr(turn_budget, "SERVED_PER_TURN_MAX", 2)
    scene, prompt = holding(block_size=BLOCK), list(range(1, 13))
    scene.ask("long", **hashes(prompt, 12 * BLOCK))
    (worker_id, _) = where(scene.outcomes["long"])
    busy(scene, 3 - worker_id, MUCH)
    for number in range(6):
        scene.look(f"r{number}")
    store(scene, worker_id, prompt[:6])
    assert not scene.wakes
    scene.look("late")
    assert scene.served == ["long", "r0", "r1"]
    while scene.wakes:
        scene.wakes = 0
        scene.serve()
    assert not scene.gate.waiting.requests


def test_less_own_work_goes_before_a_slightly_earlier_arrival():
    scene = Scene(one_class("work", 1.0))
    busy(scene, 1, MUCH)
    scene.ask("long", **hashes([70], 20_000))
    scene.now += 1.0
    scene.ask("short")
    scene.now += 5.0
    scene.ask("late")
    scene.selector.complete_prefill("load1", scene.now)
    scene.serve()
    assert scene.served == ["short", "long"]  # 20,000 tokens take 2.4 s
    assert scene.gate.waiting.requests == 1


def test_a_pinned_request_waits_for_its_own_rank():
    scene = holding()
    busy(scene, 1, MUCH)
    scene.ask("a", **pinned(1))
    scene.ask("b")
    assert scene.served == ["b"]
    assert scene.gate.waiting.requests == 1


def test_the_queue_timeout_bounds_the_wait():
    scene = Scene(one_class("work", 1.0, timeout_s=2.0))
    busy(scene, 1, MUCH)
    scene.ask("a")
    scene.tick(1.0)
    assert scene.gate.waiting.requests == 1
    scene.tick(1.0)
    assert scene.outcomes["a"].code == "queue_timeout"


def test_no_request_waits_without_reports_of_prefill_ends():
    scene = Scene(one_class("work", 1.0))
    busy(scene, 1, MUCH)
    for number in range(45):  # (63 / 64) ** 45 is below a half
        busy(scene, 1, LITTLE, f"silent{number}")
        scene.free(f"silent{number}")
    scene.ask("a")
    assert scene.served == ["a"]


def test_the_fast_path_may_choose_among_ranks_with_room_and_no_queue():
    scene = holding()
    busy(scene, 1, MUCH)
    assert np.flatnonzero(scene.gate.ranks_without_waiting(scene.partition)).tolist() == [0, 1]
    busy(scene, 2, MUCH)
    assert scene.gate.ranks_without_waiting(scene.partition) is None
    scene.ask("a")
    assert scene.gate.ranks_without_waiting(scene.partition) is None


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(0, TOKEN_S), (80_000, 2 / 80_000), (1, TOKEN_S_MAX), (10**9, TOKEN_S_MIN)],
)
def test_the_time_of_a_token_follows_the_drain_rate(tokens, expected):
    rate = DrainRate(DrainedTotals(), 0.0)
    rate.observe_totals(DrainedTotals(tokens), 1e9)
    rate.tokens_per_s = float(tokens)
    assert rate.seconds_per_token(2) == expected
