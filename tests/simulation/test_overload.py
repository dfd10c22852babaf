"""Tests of a fleet under 150 % load: stable with limits, collapsing without limits.

The tests run six minutes of virtual time on four ranks; scripts/test_slow runs the full hour on
six. docs/measurements/quality.md shows the same runs.
"""

from functools import cache

import pytest

from select_service.core.views.rank_views import list_loads
from tests.simulation.overload import World, capacity
from tests.simulation.overload_engine import BLOCK_TOKENS, Engine, Job, Speed
from tests.simulation.overload_record import WARM_MINUTES, figures
from tests.simulation.overload_rules import OVERLOAD, SCENARIOS, Fleet, Rules

SEED = 1
MINUTES = 6
LIMITED = [name for name in SCENARIOS if name != "nothing"]

WAIT_P99_S_MAX = 5.0
"""Largest time in s from acceptance to the first token."""
GOODPUT_SHARE_MIN = {"reference": 0.9, "work": 0.92}
"""Smallest share of the measured capacity, by policy.

If most ranks are refused, the choice is small, and a policy that profits more from its choice
loses more: docs/measurements/quality.md.
"""
LOAD_CV_MAX = 0.1
"""Largest standard deviation of the blocks booked on a rank, divided by the mean.
"""
GOODPUT_CV_MAX = 0.1
"""Largest standard deviation of the answers per minute, divided by the mean; by chance 0.05.
"""
WAVE_MAX = 2.0
"""Largest number of attempts in ten seconds, divided by the mean.
"""


@pytest.fixture(params=["work", pytest.param("reference", marks=pytest.mark.slow)])
def policy(request):
    """Return the policy that chooses ranks."""
    return request.param


@cache
def short_capacity(policy):
    return capacity(Fleet((1, 1, 2)), SEED, MINUTES, policy)


@cache
def short(name, policy):
    """Return the world after some minutes of overload, and its figures since the fleet was full."""
    rules = SCENARIOS[name]._replace(policy=policy)
    return after_overload(Fleet((1, 1, 2)), rules, short_capacity(policy), MINUTES)


def after_overload(fleet, rules, at_best, minutes):
    world = World(fleet, rules, SEED)
    record = world.run_open(OVERLOAD * at_best, 60.0 * minutes)
    return world, figures(record, WARM_MINUTES, minutes)


def assert_all_is_well(found, at_best, policy):
    assert found.wait_p99_s <= WAIT_P99_S_MAX
    assert found.answers_per_s >= GOODPUT_SHARE_MIN[policy] * at_best
    assert found.load_cv <= LOAD_CV_MAX
    assert found.goodput_cv <= GOODPUT_CV_MAX
    assert found.wave <= WAVE_MAX


def assert_nothing_is_left(world):
    world.selector.check_invariants()
    assert world.open == 0
    assert len(world.selector.ledger.reservations) == 0
    assert world.selector.gate.waiting.requests == 0
    assert {
        (row.potential_prefill_tokens, row.potential_decode_blocks, row.active_requests)
        for view in list_loads(world.partition, 0, 0)
        for row in view.loads
    } == {(0, 0, 0)}
    for engine in world.engines.values():
        assert not engine.running
        assert not engine.waiting
        assert not engine.pool.references


def assert_every_request_has_ended(record):
    ended = sum(sum(m.answered.values()) + sum(m.lost.values()) for m in record.minutes)
    assert ended == record.arrivals


@pytest.mark.parametrize("name", LIMITED)
def test_with_limits_the_wait_is_bounded_and_throughput_stays_and_nothing_swings(name, policy):
    found = short(name, policy)[1]
    assert_all_is_well(found, short_capacity(policy), policy)


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_is_left_when_all_clients_have_gone(name, policy):
    world, _ = short(name, policy)
    assert_nothing_is_left(world)
    assert_every_request_has_ended(world.record)


def test_thresholds_alone_keep_the_throughput_at_the_capacity_on_both_sides(policy):
    found = short("thresholds", policy)[1]
    share = found.answers_per_s / short_capacity(policy)
    assert abs(share - 1.0) <= 1.0 - GOODPUT_SHARE_MIN[policy]


def test_thresholds_alone_ignore_tiers(policy):
    served = short("thresholds", policy)[1].served
    assert max(served.values()) - min(served.values()) <= 0.05


def test_the_lowest_tier_is_shed_first(policy):
    """The other two tiers still offer 105 % of the capacity."""
    served = short("thresholds, shedding", policy)[1].served
    assert served["best_effort"] <= 0.1
    assert min(served["premium"], served["standard"]) >= 0.85


@pytest.mark.parametrize("name", ["queue", "thresholds, queue, shedding"])
def test_a_queue_accepts_the_higher_of_two_tiers_more_often(name, policy):
    found = short(name, policy)[1]
    accepted = found.acceptance
    assert accepted["premium"] > accepted["standard"] > accepted["best_effort"]
    assert found.served["premium"] >= 0.97


def test_the_tier_switch_does_not_flap(policy):
    assert short("thresholds, shedding", policy)[1].shed_changes <= 4
    assert short("thresholds, queue, shedding", policy)[1].shed_changes <= 4


def test_without_limits_the_fleet_melts_down(policy):
    world, found = short("nothing", policy)
    at_best = short_capacity(policy)
    at_the_end = figures(world.record, MINUTES - 2, MINUTES)
    assert at_the_end.answers_per_s <= 0.2 * at_best
    assert at_the_end.wait_p50_s >= 10 * WAIT_P99_S_MAX
    assert at_the_end.timed_out_per_s >= at_best
    assert at_the_end.attempts_per_s >= 2 * OVERLOAD * at_best
    assert found.goodput_cv > GOODPUT_CV_MAX


ENDLESS_S = 36_000.0


def test_without_limits_and_with_endless_patience_the_wait_grows_without_end(policy):
    rules, patience_s = Rules(policy=policy), (ENDLESS_S, ENDLESS_S)
    world = World(Fleet((1, 1, 2)), rules, SEED, patience_s=patience_s)
    record = world.run_open(OVERLOAD * short_capacity(policy), 480.0)
    early, late = figures(record, 2, 4).wait_p50_s, figures(record, 6, 8).wait_p50_s
    assert late >= 2 * early >= 2 * WAIT_P99_S_MAX
    assert_nothing_is_left(world)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_whole_hour_of_overload_is_like_its_first_minutes(policy):
    fleet = Fleet()
    at_best = capacity(fleet, SEED, 20, policy)
    for name in LIMITED:
        rules = SCENARIOS[name]._replace(policy=policy)
        world, found = after_overload(fleet, rules, at_best, minutes=60)
        assert_all_is_well(found, at_best, policy)
        assert_all_is_well(figures(world.record, 30, 60), at_best, policy)
        assert_nothing_is_left(world)
    rules = SCENARIOS["nothing"]._replace(policy=policy)
    world, _ = after_overload(fleet, rules, at_best, minutes=60)
    assert figures(world.record, 30, 60).answers_per_s <= 0.2 * at_best
    assert_nothing_is_left(world)


def run_until_idle(engine):
    """Return the seconds until the engine has no more work, and the finished jobs."""
    seconds, finished = 0.0, []
    while (step_s := engine.step()) is not None:
        seconds += step_s
        finished += engine.complete().finished
    return seconds, finished


def test_the_engine_preempts_when_answers_outgrow_its_memory_and_still_ends_all():
    engine = Engine(Speed(kv_blocks=30))
    jobs = [
        Job(list(range(100 * n, 100 * n + 20)), prompt_blocks=5, output_tokens=15 * BLOCK_TOKENS)
        for n in range(1, 5)
    ]
    for job in jobs:
        engine.add(job)
    _, finished = run_until_idle(engine)
    assert set(finished) == set(jobs)
    assert engine.preemptions > 0
    assert not engine.pool.references


def test_a_cached_prefix_is_not_computed_again():
    engine = Engine(Speed())
    keys = list(range(1, 40))
    engine.add(Job(keys, prompt_blocks=30, output_tokens=1))
    first_s, _ = run_until_idle(engine)
    engine.add(Job(keys, prompt_blocks=31, output_tokens=1))
    second_s, _ = run_until_idle(engine)
    assert engine.prefilled_blocks == 31
    assert second_s < first_s / 2


def test_a_token_takes_longer_in_a_larger_batch():
    def seconds_of(n):
        engine = Engine(Speed())
        for i in range(n):
            engine.add(Job([1, 100 + i, 200 + i], prompt_blocks=1, output_tokens=100))
        return run_until_idle(engine)[0]

    assert seconds_of(32) > 1.2 * seconds_of(1)
