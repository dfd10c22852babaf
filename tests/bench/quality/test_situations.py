"""Tests of selectors that see exact events, sessions or assumed blocks."""

from itertools import pairwise

import numpy as np
import pytest

from scripts.bench.quality import quality_runs, rollout_steps
from scripts.bench.quality.knowledge_workloads import (
    BLOCK,
    FLEET,
    SHAPES,
    Rollouts,
    conversation_workload,
    make_session_workload,
    make_step,
)
from scripts.bench.quality.quality_figures import RunKey, compute_outcome
from scripts.bench.quality.situations import CHOOSER_SETS, SITUATIONS
from select_service.files.request_trace import RecordedRequest
from select_service.sim.engine.replay_world import RankRequest
from select_service.sim.engine.simple_routers import SessionHashRouter

REQUESTS = 400


def run(chooser, workload="agentic", load=0.7, seed=1):
    case = quality_runs.make_cases(None, None, REQUESTS)[workload]
    return quality_runs.run_cell(RunKey(workload, load, seed, chooser), case)


@pytest.mark.parametrize("name", [*SHAPES, "rlasync"])
def test_a_session_workload_follows_from_its_seed(name):
    first, again, other = (make_session_workload(name, seed, REQUESTS) for seed in (1, 1, 2))
    assert first.requests >= REQUESTS
    assert np.array_equal(first.units, again.units)
    assert not np.array_equal(first.units[:20], other.units[:20])
    for session in first.sessions:
        for turn in session:
            assert len(turn.chain) == (turn.prompt_tokens + turn.output_tokens) // BLOCK
        for turn, following in pairwise(session):
            assert np.array_equal(following.chain[: len(turn.chain)], turn.chain)


def test_members_of_a_group_begin_together_with_one_prompt():
    workload = make_session_workload("rlasync", 1, REQUESTS)
    members = workload.sessions[:16]
    assert len(set(workload.units[:16].tolist())) == 1
    assert workload.units[16] > workload.units[15]
    assert len({tuple(session[0].chain[:5].tolist()) for session in members}) == 1
    other = workload.sessions[16][0].chain
    assert np.array_equal(other[:2], members[0][0].chain[:2])
    assert other[2] != members[0][0].chain[2]


def test_a_trace_request_continues_the_session_with_its_blocks():
    ids = [(0, 1, 2), (0, 3, 4), (0, 1, 2, 5), (0, 6), (0, 1, 2, 5, 7)]
    rows = [RecordedRequest(10.0 * n, BLOCK * len(x), 20, x, BLOCK) for n, x in enumerate(ids)]
    workload = conversation_workload(rows, 1, len(rows))
    assert workload.labels == (0, 1, 0, 3, 0)


def test_routers_see_the_label_of_a_session():
    rows = [RecordedRequest(10.0 * n, 2 * BLOCK, 20, (0, 1), BLOCK) for n in range(4)]
    workload = conversation_workload(rows, 1, 4)
    world, _ = quality_runs.make_world("hash", workload, FLEET, 1)
    seen = []

    class Recorder(SessionHashRouter):
        def pick_rank(self, ask):
            seen.append(ask.session)
            return super().pick_rank(ask)

    record = world.run_open(Recorder(8, 1), 1.0)
    assert seen == [0, 0, 0, 0]
    assert len({life.rank for life in record.histories}) == 1


def ask(number, session):
    return RankRequest(number, np.zeros(1, np.int32), BLOCK, session)


def test_a_hash_pins_sessions_and_spreads_them():
    router = SessionHashRouter(8, 1)
    first = [router.choose(ask(n, n), 0.0) for n in range(800)]
    again = [router.choose(ask(800 + n, n), 0.0) for n in range(800)]
    assert first == again
    assert min(first.count(rank) for rank in range(8)) > 40


def test_a_bounded_hash_never_exceeds_its_bound():
    router = SessionHashRouter(4, 1, 1.25)
    for number in range(100):
        router.choose(ask(number, 7), 0.0)
        assert max(router.requests) <= -(-125 * (number + 1) // 400)
    assert sum(router.requests) == 100


@pytest.mark.parametrize("situation", SITUATIONS)
def test_all_requests_end_in_every_situation(situation):
    workload = make_session_workload("agentic", 1, REQUESTS)
    world, router = quality_runs.make_world(f"work, session in {situation}", workload, FLEET, 1)
    record = world.run_open(router, 1.0)
    assert all(life.end_s > life.first_s > life.arrived_s for life in record.histories)
    assert len(router.selector.ledger.reservations) == 0
    assert sorted(router.claimed) == list(range(len(record.histories)))
    router.selector.check_invariants()


def test_without_events_the_index_stays_empty():
    workload = make_session_workload("agentic", 1, REQUESTS)
    world, router = quality_runs.make_world("work in no index", workload, FLEET, 1)
    world.run_open(router, 1.0)
    assert router.partition.index.stats().memberships == 0


def test_sessions_find_blocks_missing_from_the_index():
    blind, informed = run("work in no index"), run("work, session in no index")
    assert blind.hit_rate < run("work in exact").hit_rate - 0.2
    assert informed.hit_rate > blind.hit_rate + 0.2
    assert informed.ttft_mean < 0.6 * blind.ttft_mean


def test_with_exact_events_sessions_change_nothing():
    assert run("work, session in exact") == run("work in exact")


def test_exact_events_claim_too_little_only_for_their_delay():
    found = run("work in exact")
    assert found.over_claimed < 0.001
    assert run("work in no index").under_claimed > found.under_claimed + 0.2
    assert run("hash in exact").over_claimed is None


def test_wrong_claims_are_shares_of_the_counted_prompts():
    workload = make_session_workload("tenants, H100", 1, 100)
    world, router = quality_runs.make_world("hash", workload, FLEET, 1)
    record = world.run_open(router, 1.0)
    warm, counted = len(record.histories) // 5, record.histories[len(record.histories) // 5 :]
    tokens = sum(life.turn.prompt_tokens for life in counted)
    claims = {n: life.cached + 1000 for n, life in enumerate(record.histories)}
    claims[warm] -= 3000
    found = compute_outcome(record, FLEET, claims)
    assert found.over_claimed == pytest.approx(1000 * (len(counted) - 1) / tokens)
    assert found.under_claimed == pytest.approx(2000 / tokens)


def test_the_choosers_of_all_sets_exist():
    workload = make_session_workload("agentic", 1, 20)
    for chooser in {name for names in CHOOSER_SETS.values() for name in names}:
        _, known, situation = chooser.rpartition(" in ")
        assert not known or situation in SITUATIONS
        quality_runs.make_world(chooser, workload, FLEET, 1)


def test_a_step_ends_with_its_last_rollout():
    found = rollout_steps.run_step("work", 2, 16, 1)
    assert found == rollout_steps.run_step("work", 2, 16, 1)
    assert 1.0 <= found.busiest <= 2.0
    assert found.hit_rate > 0.8
    slowest = max(
        sum(turn.think_s for turn in session[:-1])
        for session in make_step(rollout_steps.ROLLOUTS, 16, 1).sessions
    )
    assert found.seconds > slowest


def test_a_hash_waits_for_the_engine_with_the_most_rollouts():
    hashed, chosen = (rollout_steps.run_step(name, 4, 64, 1) for name in ("hash", "work"))
    assert hashed.seconds > 1.1 * chosen.seconds
    assert hashed.busiest > chosen.busiest


def test_groups_share_their_task():
    sessions = make_step(Rollouts(4, (1, 1), 2, 3, 50, 50, 1.0), 8, 1).sessions
    first = [session[0].chain[:5].tolist() for session in sessions]
    assert first[0] == first[3] != first[4]
    assert first[0][:2] == first[4][:2]


def assumed_router(situation, requests=REQUESTS):
    workload = make_session_workload("agentic", 1, requests)
    world, router = quality_runs.make_world(f"work in {situation}", workload, FLEET, 1)
    world.run_open(router, 2.0)
    return world, router


def sizes(router):
    ranks = router.partition.assumed.ranks
    return {slot: rank.size.blocks for slot, rank in ranks.items()}


@pytest.mark.parametrize("situation", [name for name in SITUATIONS if name.startswith("assumed")])
def test_assumed_blocks_replace_events(situation):
    found, blind = (run(f"work in {name}") for name in (situation, "no index"))
    assert found.hit_rate > blind.hit_rate + 0.2
    assert found.ttft_mean < 0.7 * blind.ttft_mean


def test_while_nothing_is_evicted_assumptions_with_answers_are_exact():
    exact, without = run("work in exact"), run("work in assumed")
    assert run("work in assumed, answers") == exact
    assert without.under_claimed > 0.0 == exact.under_claimed


def test_as_many_blocks_are_assumed_as_a_rank_declares():
    _, router = assumed_router("assumed")
    assert set(sizes(router).values()) == {FLEET[0].kv_blocks}
    _, router = assumed_router("assumed, 0.8")
    assert set(sizes(router).values()) == {int(0.8 * FLEET[0].kv_blocks)}
    assert router.partition.index.stats().memberships == 0


def test_undeclared_sizes_are_learned_from_reports():
    _, unreported = assumed_router("assumed, 120 s")
    (first,) = set(sizes(unreported).values())
    assert first > 5 * FLEET[0].kv_blocks
    small = tuple(hardware._replace(declared_blocks=200) for hardware in FLEET)
    workload = make_session_workload("agentic", 1, REQUESTS)
    world, learned = quality_runs.make_world("work in assumed, learned", workload, small, 1)
    world.run_open(learned, 2.0)
    assert min(sizes(learned).values()) < first


def test_reported_answers_are_assumed():
    _, without = assumed_router("assumed")
    _, told = assumed_router("assumed, answers")
    count = [
        sum(router.partition.assumed.count_blocks(slot) for slot in range(8))
        for router in (without, told)
    ]
    assert count[1] > count[0]


def test_assumed_blocks_end_with_their_time_to_live():
    world, router = assumed_router("assumed, 30 s")
    turn = router.selector.followers.assumptions.run_turn
    for second in range(40):
        turn(world.time + second)
    assert [router.partition.assumed.count_blocks(slot) for slot in range(8)] == [0] * 8
