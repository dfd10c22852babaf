"""Tests of observations: the counted requests, the time they are kept, and the cost."""

from itertools import pairwise
from random import Random

import pytest

from select_service.base.errors import NotFound, NoWorkers
from select_service.core.decision_maker import PlacementDecision
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.compiled.observation_layout import SAMPLES_MAX
from select_service.core.load.reservation_move import MoveTarget
from select_service.core.traffic import traffic_observer, watched_models, window_sums
from select_service.core.traffic.observation_view import build_observation
from select_service.core.traffic.rank_loads import RANKS_PER_STEP
from select_service.core.workers.engine_load import EngineReading, EngineTarget
from tests.builders import a_patch, a_reservation, a_select, a_worker
from tests.builders.selector_scenes import KEY, store
from tests.builders.steps import lines_of, longest_step, result_of
from tests.core.admission.scenes import Scene, one_class
from tests.core.traffic.scenes import Observed

HOUR = 3600


def seconds(scene, begin, end):
    """Step through these seconds, each at its end."""
    for now in range(begin, end):
        scene.step(float(now))


def test_after_a_start_nothing_is_complete_until_the_window_is_covered():
    scene = Observed()
    seconds(scene, 1, 31)
    covered = {w: scene.observe(w, 30.0) for w in (10, 29, 31, 60, HOUR)}
    assert {w: seen["complete"] for w, seen in covered.items()} == {
        10: True,
        29: True,
        31: False,
        60: False,
        HOUR: False,
    }
    assert [seen["window_s"] for seen in covered.values()] == [10.0, 29.0, 29.0, 29.0, 29.0]


def test_requests_before_the_first_second_are_in_no_window():
    scene = Observed()
    scene.reserve(0.5)
    seconds(scene, 1, 3)
    scene.reserve(2.5)
    seen = scene.observe(HOUR, 2.5)
    assert (seen["arrivals"], seen["window_s"]) == (1, 1.5)


def test_a_window_without_the_end_of_a_slot_reports_its_coverage():
    scene = Observed()
    seconds(scene, 1, 11)
    scene.step(40.0)
    seen = scene.observe(5, 40.5)
    assert (seen["window_s"], seen["complete"]) == (0.5, False)
    assert scene.observe(31, 40.5)["complete"]


def test_a_clock_that_goes_back_closes_nothing_and_loses_nothing():
    scene = Observed()
    seconds(scene, 100, 103)
    scene.reserve(102.0)
    for now in (50.0, 60.0, 102.5, 103.0):
        scene.step(now)
    assert scene.observe(3, 103.0)["arrivals"] == 1
    assert scene.observe(3, 50.0)["window_s"] == 0.0


def test_a_leap_of_hours_drops_slots_older_than_an_hour():
    scene = Observed()
    seconds(scene, 1, 3)
    scene.reserve(2.5)
    seconds(scene, 3, 5)
    seconds(scene, 20_000, 20_004)
    seen = scene.observe(HOUR, 20_003.0)
    assert (seen["arrivals"], seen["complete"]) == (0, False)
    assert not scene.selector.followers.traffic._oldest
    scene.selector.check_invariants()


def test_full_memory_drops_the_oldest_and_windows_report_that(monkeypatch):
    scene = Observed()
    seconds(scene, 1, 3)
    for now in range(3, 13):
        scene.reserve(now - 0.5)
        scene.step(float(now))
    assert scene.observe(10, 12.0)["complete"]
    monkeypatch.setattr(
        traffic_observer, "SLOT_BYTES_MAX", scene.selector.followers.traffic._bytes // 2
    )
    seconds(scene, 13, 14)
    scene.selector.check_invariants()
    long, short = scene.observe(11, 13.0), scene.observe(4, 13.0)
    assert not long["complete"]
    assert 0 < long["arrivals"] < 10
    assert (short["complete"], short["arrivals"]) == (True, 3)


def test_a_leap_forgets_a_bounded_number_in_a_step(monkeypatch):
    monkeypatch.setattr(traffic_observer, "FORGOTTEN_PER_STEP", 4)
    scene = Observed()
    for now in range(1, 30):
        scene.reserve(now - 0.5)
        scene.step(float(now))
    steps = 1
    while scene.selector.followers.traffic.close_slots(9000.0):
        steps += 1
    assert steps >= 7


def test_a_selection_and_its_booking_count_once():
    scene = Observed()
    seconds(scene, 1, 2)
    for tokens in (10, 20, 30):
        prompt = scene.prompt(tokens)
        scene.selector.select(a_select(0, token_ids=prompt), 1.5)
        name = next(scene.names)
        scene.selector.reserve(a_reservation(name, 1, 0, token_ids=prompt), 1.5)
    seen = scene.observe(1, 1.9)
    assert (seen["arrivals"], seen["isl"]["sum"]) == (3, 60.0)


def test_a_booking_without_a_selection_counts_as_well():
    scene = Observed()
    seconds(scene, 1, 2)
    scene.selector.reserve(a_reservation("a", 1, 0, token_ids=scene.prompt(10)), 1.5)
    seen = scene.observe(1, 1.9)
    assert (seen["arrivals"], seen["isl"]["sum"], seen["kv_hit_rate"]) == (1, 10.0, 0.0)


def test_the_cached_tokens_of_the_chosen_rank_are_observed():
    scene = Observed(workers=(1,), use_kv_events=False)
    rank = scene.selector.fleet.partitions[KEY].table.sorted_ranks()[0]
    store(scene.selector, rank, 12)
    seconds(scene, 1, 2)
    scene.selector.select(a_select(16), 1.5)
    seen = scene.observe(1, 1.9)
    assert (seen["uncached_isl"]["sum"], seen["kv_hit_rate"]) == (4.0, 0.75)


def observe_admission(scene, window_s=60):
    """Return the observation of a scene of the admission stage."""
    selector = scene.selector
    engines = selector.gate.busy_check.engines
    return result_of(
        build_observation(selector.followers.traffic, KEY, window_s, engines, None, scene.now)
    )


def observed_queue(**rules):
    """Return a scene of one worker without room after a caller's reservation."""
    scene = Scene(one_class(**rules))
    scene.tick()
    scene.fill(1)
    scene.tick()
    return scene


def test_a_queued_request_that_is_not_served_has_arrived_once():
    scene = observed_queue(timeout_s=5.0)
    for name in ("late", "gone", "shed", "waits"):
        scene.ask(name, 8, priority_tier="best_effort" if name == "shed" else None)
    seen = observe_admission(scene)
    assert (seen.arrivals, seen.queued_now, seen.queued_tokens) == (5, 4, 32)
    scene.tick()
    scene.gate.remove_disconnected(scene.tickets["gone"])
    scene.selector.set_shed_tier("best_effort")
    for _ in range(5):
        scene.tick()
    scene.selector.set_shed_tier(None)
    scene.ask("new")
    seen = observe_admission(scene)
    assert (seen.arrivals, seen.queued_now) == (6, 1)
    rejected = {reason: n for reason, n in seen.rejected.items() if n}
    assert rejected == {"queue_timeout": 2, "client_gone": 1, "shed": 1}


def test_a_queued_request_counts_at_its_arrival():
    scene = observed_queue()
    scene.ask("a")
    for _ in range(20):
        scene.tick()
    scene.free_and_serve("load1")
    assert isinstance(scene.outcomes["a"], PlacementDecision)
    assert observe_admission(scene, 10).arrivals == 0
    assert observe_admission(scene, 60).arrivals == 2


def test_rejections_by_busy_ranks_and_full_queues_are_arrivals():
    scene = Scene(prefill=4)
    scene.tick()
    scene.fill(1)
    scene.ask("a")
    scene.ask("b", priority_tier="nobody")
    seen = observe_admission(scene)
    assert (seen.arrivals, seen.rejected["busy"]) == (2, 1)


def test_a_model_that_has_lost_its_last_worker_is_still_observed():
    scene = Observed(workers=(1,))
    seconds(scene, 1, 2)
    scene.reserve(1.5)
    scene.step(2.0)
    scene.selector.delete_worker(1, 2.5)
    for _ in range(3):
        with pytest.raises(NoWorkers):
            scene.selector.select(a_select(), 2.5)
    seconds(scene, 3, 5)
    seen = scene.observe(3, 4.0)
    assert (seen["arrivals"], seen["rejected"]["no_workers"], seen["ranks"]) == (4, 3, [])
    scene.selector.register_worker(a_worker(1, block_size=8))
    scene.reserve(4.5)
    seconds(scene, 5, 6)
    assert scene.observe(4, 5.0)["arrivals"] == 5
    scene.selector.check_invariants()


def without_its_worker():
    scene = Observed(workers=(1,))
    seconds(scene, 1, 2)
    scene.reserve(1.5)
    scene.step(2.0)
    scene.selector.delete_worker(1, 2.5)
    scene.selector.run_pending(2.5)
    seconds(scene, 3, 5)
    return scene


def test_a_model_without_workers_and_traffic_is_forgotten_after_an_hour():
    scene = without_its_worker()
    seconds(scene, 4000, 4004)
    with pytest.raises(NotFound, match="model=m tenant=default"):
        scene.observe(10, 4003.0)


def test_nothing_is_kept_of_an_unknown_model():
    scene = Observed()
    for n in range(10):
        with pytest.raises(NoWorkers):
            scene.selector.select(a_select(model_name=f"made-up-{n}"), 1.0)
    seconds(scene, 1, 3)
    assert not scene.selector.followers.traffic._histories
    with pytest.raises(NotFound):
        scene.observe(10, 3.0, PartitionKey("made-up-1", "default"))


def refused(scene, model_name="m", now=1.0):
    with pytest.raises(NoWorkers):
        scene.selector.select(a_select(model_name=model_name), now)


def test_an_unserved_model_counts_after_a_query_by_an_autoscaler():
    scene = Observed(workers=())
    seconds(scene, 1, 4)
    refused(scene, now=3.5)
    with pytest.raises(NotFound, match="model=m tenant=default"):
        scene.observe(10, 3.6)
    for now in range(4, 16):
        refused(scene, now=now - 0.5)
        scene.step(float(now))
    long, short = scene.observe(14, 15.0), scene.observe(10, 15.0)
    assert (long["arrivals"], long["complete"]) == (
        12,
        False,
    )  # arrivals before the first query are missing
    assert (short["arrivals"], short["rejected"]["no_workers"]) == (10, 10)
    assert (short["complete"], short["ranks"]) == (True, [])
    scene.selector.check_invariants()


def test_a_formerly_served_model_counts_after_a_query_an_hour_later():
    scene = without_its_worker()
    seconds(scene, 5000, 5004)
    with pytest.raises(NotFound):
        scene.observe(3, 5003.0)
    seconds(scene, 8000, 8010)
    refused(scene, now=8009.5)
    seen = scene.observe(5, 8009.9)
    assert (seen["rejected"]["no_workers"], seen["complete"]) == (1, True)
    scene.selector.check_invariants()


def test_made_up_models_take_no_room_and_push_out_nothing(monkeypatch):
    monkeypatch.setattr(watched_models, "WATCHED_MAX", 4)
    scene = Observed(workers=())
    seconds(scene, 1, 2)
    with pytest.raises(NotFound):
        scene.observe(10, 1.5)
    for n in range(5000):
        refused(scene, f"made-up-{n}", 1.6)
    refused(scene, now=1.7)
    assert list(scene.selector.gate.tally.take_refused()) == [KEY]
    refused(scene, now=1.8)
    for n in range(3):  # callers may name unknown models
        with pytest.raises(NotFound):
            scene.observe(10, 1.9, PartitionKey(f"asked-{n}", "default"))
    assert scene.observe(10, 1.9)["arrivals"] == 1
    for n in range(3, 9):
        with pytest.raises(NotFound):
            scene.observe(10, 1.9, PartitionKey(f"asked-{n}", "default"))
        scene.observe(10, 1.9)
    scene.selector.check_invariants()
    assert not scene.selector.followers.traffic.counts_refusals(PartitionKey("asked-0", "default"))


def test_a_prefill_sample_has_the_work_before_it_and_its_duration():
    scene = Observed()
    seconds(scene, 1, 2)
    scene.reserve(1.25, 40, worker_id=1)
    name = scene.reserve(1.5, 12, worker_id=1)
    scene.selector.complete_prefill(name, 1.75)
    scene.selector.complete_prefill(name, 1.8)
    seen = scene.observe(1, 1.9)
    assert seen["prefill_s"] == [[12.0, 0.25, 40.0]]
    assert (sum(seen["ttft_s"]["counts"]), seen["ttft_s"]["sum"]) == (1, 0.25)


def move_to(scene, name, worker_id, now):
    """Move the booking to the worker, with a second prefill there."""
    rank = Rank(worker_id, 0)
    slot = scene.selector.fleet.partitions[KEY].table.find_slot(rank)
    booking = scene.selector.ledger.reservations.get_reservation(name)
    scene.selector.ledger.move(booking, MoveTarget(rank, slot, booking.isl_tokens), now)


def test_a_prefill_that_was_moved_is_no_sample_but_its_wait_counts():
    scene = Observed()
    seconds(scene, 1, 2)
    name = scene.reserve(1.25, 12, worker_id=1)
    move_to(scene, name, 2, 1.5)
    scene.selector.complete_prefill(name, 1.75)
    seen = scene.observe(1, 1.9)
    assert (seen["prefill_s"], seen["ttft_s"]["sum"]) == ([], 0.5)
    assert seen["arrivals"] == 1


def test_a_request_has_one_first_token_after_any_further_prefill():
    scene = Observed()
    seconds(scene, 1, 2)
    name = scene.reserve(1.25, 12, worker_id=1)
    scene.selector.complete_prefill(name, 1.5)
    move_to(scene, name, 2, 1.6)
    scene.selector.complete_prefill(name, 1.75)
    seen = scene.observe(1, 1.9)
    assert (sum(seen["ttft_s"]["counts"]), seen["ttft_s"]["sum"]) == (1, 0.25)


def test_a_decode_sample_has_the_time_per_token_and_the_load():
    scene = Observed()
    seconds(scene, 1, 2)
    other = scene.reserve(1.0, 40, worker_id=1)
    name = scene.reserve(1.0, 12, worker_id=1)
    scene.selector.add_output_block(other, None, 1.25)
    scene.selector.complete_prefill(name, 1.25)
    scene.selector.add_output_block(name, None, 1.75)
    seen = scene.observe(1, 1.9)
    assert seen["decode_s"] == [[2.0, 4 * (10 + 3 + 1), 0.125]]
    assert seen["itl_s"]["sum"] == 0.125


def test_answers_without_reported_blocks_have_no_length():
    scene = Observed()
    seconds(scene, 1, 2)
    first, second = scene.reserve(1.0), scene.reserve(1.0)
    for _ in range(3):
        scene.selector.add_output_block(first, None, 1.5)
    for name in (first, second):
        scene.selector.free_reservation(name, 1.6)
    seen = scene.observe(1, 1.9)
    assert (sum(seen["osl"]["counts"]), seen["osl"]["sum"]) == (1, 12.0)


def test_very_many_samples_are_thinned_out_evenly():
    scene = Observed(workers=(1,))
    seconds(scene, 1, 2)
    for now in range(2, 22):
        for n in range(100):
            name = scene.reserve(now - 0.9, 4 * (n + 1), worker_id=1)
            scene.selector.complete_prefill(name, now - 0.5)
            scene.selector.free_reservation(name, now - 0.5)
        scene.step(float(now))
    one, many = scene.observe(1, 21.0)["prefill_s"], scene.observe(20, 21.0)["prefill_s"]
    assert SAMPLES_MAX // 2 <= len(one) <= SAMPLES_MAX
    gaps = {after[0] - before[0] for before, after in pairwise(one)}
    assert len(gaps) == 1
    assert len(many) == window_sums.SAMPLES_MAX
    assert sum(scene.observe(20, 21.0)["ttft_s"]["counts"]) == 2000


def test_a_lease_that_ends_is_no_answer():
    scene = Observed(ttl_s=5.0)
    seconds(scene, 1, 2)
    name = scene.reserve(1.5)
    scene.selector.add_output_block(name, None, 1.6)
    scene.selector.expire_reservations(10.0)
    assert sum(scene.observe(10, 10.0)["osl"]["counts"]) == 0


@pytest.mark.parametrize(
    ("rate", "cluster", "low", "high"),
    [(40, 1, 0.7, 1.4), (40, 10, 6.0, 15.0), (None, 1, 0.0, 0.2)],
)
def test_arrivals_in_clusters_vary_more_and_regular_ones_less(rate, cluster, low, high):
    scene, rng, now = Observed(workers=(1,)), Random(5), 1.0
    scene.step(now)
    request = a_select(4)
    while now < 120.0:
        now += 0.02 if rate is None else rng.expovariate(rate / cluster)
        scene.step(now)
        for _ in range(cluster):
            scene.selector.select(request, now)
    assert low <= scene.observe(100, now)["arrival_variation"] <= high


def test_few_slots_or_no_arrivals_have_no_variation():
    scene = Observed()
    seconds(scene, 1, 40)
    assert scene.observe(30, 39.0)["arrival_variation"] is None
    scene.reserve(39.5)
    assert scene.observe(5, 39.5)["arrival_variation"] is None


def test_a_rank_has_its_role_its_limits_and_its_engines_readings():
    scene = Observed(workers=())
    scene.selector.register_worker(
        a_worker(7, role="prefill", total_kv_blocks=50, max_num_batched_tokens=64)
    )
    seconds(scene, 1, 2)
    scene.reserve(1.5, 12)
    reading = {0: EngineReading(0.5, 3, 4)}
    scene.selector.engine_readings.accept_readings(
        EngineTarget(7, "http://w7:8000/metrics", (0,)), reading, 1.5
    )
    (rank,) = scene.observe(1, 1.9)["ranks"]
    assert rank == {
        "worker_id": 7,
        "dp_rank": 0,
        "role": "prefill",
        "active_prefill_tokens": 12,
        "active_blocks": 3,
        "live_requests": 1,
        "block_size": 4,
        "total_kv_blocks": 50,
        "max_num_batched_tokens": 64,
    }
    scene.selector.patch_worker(
        7, a_patch(role="decode", metrics_endpoint="http://w7:8000/metrics")
    )
    target = EngineTarget(7, "http://w7:8000/metrics", (0,))
    scene.selector.engine_readings.accept_readings(target, reading, 2.0)
    (rank,) = scene.observe(1, 2.5)["ranks"]
    assert rank["role"] == "decode"
    assert rank["engine"] == {"requests_waiting": 3, "requests_running": 4, "kv_usage": 0.5}
    (rank,) = scene.observe(1, 1000.0)["ranks"]
    assert "engine" not in rank


def test_many_ranks_and_slots_are_shown_a_bounded_number_at_a_time():
    costs = []
    for n_ranks, n_slots in ((2 * RANKS_PER_STEP, 300), (8 * RANKS_PER_STEP, 900)):
        scene = Observed(workers=())
        scene.selector.register_worker(a_worker(1, data_parallel_size=n_ranks))
        scene.step(1.0)
        for now in range(2, n_slots):
            scene.reserve(now - 0.5)
            scene.step(float(now))
        engines = scene.selector.gate.busy_check.engines
        steps = build_observation(
            scene.selector.followers.traffic, KEY, HOUR, engines, None, float(n_slots)
        )
        next(steps)
        costs.append(longest_step(steps))
    assert costs[1] < 1.5 * costs[0]


def test_a_second_of_many_partitions_is_closed_some_at_a_time():
    scene = Observed(workers=())
    n = 3 * traffic_observer.PARTITIONS_PER_STEP
    for worker_id in range(n):
        scene.selector.register_worker(a_worker(worker_id, model_name=f"m{worker_id}"))
    scene.step(1.0)
    for worker_id in range(n):
        scene.selector.select(a_select(model_name=f"m{worker_id}"), 1.5)
    more, steps = [True], []
    while more[-1]:
        steps.append(
            lines_of(lambda: more.append(scene.selector.followers.traffic.close_slots(2.0)))
        )
    assert len(steps) >= 3
    keys = [PartitionKey(f"m{worker_id}", "default") for worker_id in range(n)]
    assert [scene.observe(1, 2.0, key)["arrivals"] for key in keys] == [1] * n
