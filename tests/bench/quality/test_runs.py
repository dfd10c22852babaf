"""Tests of whole runs: all requests end, equal seeds give equal runs, and bookings are released."""

import json
import xml.etree.ElementTree as ET
from itertools import pairwise

import numpy as np
import pytest

from scripts.bench.quality import quality_report, quality_runs, trace_workloads
from scripts.bench.quality.generated_workloads import KINDS, make_workload
from scripts.bench.quality.named_routers import (
    BLIND,
    make_core,
    make_named_router,
    parse_link,
    router_names,
)
from scripts.bench.quality.quality_figures import RunKey, RunOutcome, compute_ratio, interval
from scripts.bench.quality.replicated_selectors import ReplicaNetwork, ReplicatedRouter
from scripts.bench.quality.work_rule import WORK, WorkRouter
from select_service.core.load.compiled.ledger_layout import FIELDS, SYNCED_TOKENS
from select_service.sim.engine.core_router import CoreRouter, CoreScene, SelectorUsage
from select_service.sim.engine.gpu_hardware import BLOCK_TOKENS, EQUAL
from select_service.sim.engine.replay_world import ReplayWorld
from tests.builders.request_traces import chat, write_lines

REQUESTS = 150


def a_run(chooser, workload="tenants", load=0.8, seed=3):
    """Return the key and the outcome of a small run."""
    key = RunKey(workload, load, seed, chooser)
    return key, quality_runs.run_cell(key, quality_runs.make_cases(None, None, REQUESTS)[workload])


@pytest.mark.parametrize("name", KINDS)
def test_a_workload_follows_from_its_seed(name):
    first, again, other = (make_workload(KINDS[name], seed, REQUESTS) for seed in (1, 1, 2))
    assert first.requests >= REQUESTS
    assert np.array_equal(first.units, again.units)
    assert not np.array_equal(first.units, other.units[: len(first.units)])
    for session in first.sessions:
        for turn in session:
            assert len(turn.chain) == (turn.prompt_tokens + turn.output_tokens) // BLOCK_TOKENS
            assert len(set(turn.chain.tolist())) == len(turn.chain)
            assert turn.chain.max(initial=0) < first.n_blocks


def test_turns_begin_with_the_conversation_so_far():
    for session in make_workload(KINDS["conversation"], 1, REQUESTS).sessions:
        for turn, following in pairwise(session):
            assert following.prompt_tokens > turn.prompt_tokens + turn.output_tokens
            assert np.array_equal(following.chain[: len(turn.chain)], turn.chain)


@pytest.mark.parametrize("chooser", [*BLIND, "reference", "trial work", "trial hold"])
def test_equal_seeds_give_equal_runs(chooser):
    (_, first), (_, again) = a_run(chooser), a_run(chooser)
    assert first == again
    assert 0.0 < first.ttft_mean <= first.ttft_p99 <= 60.0
    assert first.ttft_mean < first.e2e_mean
    assert 0.0 <= first.hit_rate < 1.0


def test_the_core_finds_more_than_taking_turns():
    assert a_run("reference")[1].hit_rate > a_run("round robin")[1].hit_rate + 0.1


def a_world(kind="conversation", seed=1):
    workload = make_workload(KINDS[kind], seed, REQUESTS)
    return ReplayWorld(workload, EQUAL), CoreScene(EQUAL, workload.n_blocks, seed)


def test_all_requests_end_and_the_core_holds_nothing():
    world, scene = a_world()
    chooser = CoreRouter(scene)
    record = world.run_open(chooser, 2.0)
    assert all(0.0 <= life.arrived_s < life.first_s <= life.end_s for life in record.histories)
    assert len(chooser.selector.ledger.reservations) == 0
    chooser.selector.check_invariants()
    for rank, engine in enumerate(world.engines):
        engine.check_invariants()
        blocks = np.array(sorted(engine.pool.cached_blocks()), np.int32)
        assert chooser.partition.index.stats().memberships >= len(blocks)
        for block in blocks[:20]:
            path = chooser.block_hashes[_chain_to(record, int(block))]
            assert chooser.partition.index.match(path)[rank, 0] <= len(path)


def _chain_to(record, block):
    for life in record.histories:
        at = np.flatnonzero(life.turn.chain == block)
        if len(at):
            return life.turn.chain[: at[0] + 1]
    raise AssertionError(block)


def test_the_index_matches_the_engines_caches():
    world, scene = a_world("agents")
    chooser = CoreRouter(scene)
    world.run_open(chooser, 1.0)
    held = sum(len(engine.pool.cached_blocks()) for engine in world.engines)
    assert chooser.partition.index.stats().memberships == held


@pytest.mark.parametrize("reports", [True, False])
def test_the_account_of_work_is_empty_at_the_end(reports):
    world, scene = a_world("mixed lengths")
    chooser = WorkRouter(scene, WORK._replace(hold_tokens=2048.0), SelectorUsage(reports=reports))
    record = world.run_open(chooser, 6.0)
    assert all(life.end_s > 0.0 for life in record.histories)
    chooser.account.check_invariants()
    assert [chooser.account.unfinished_work(rank) for rank in range(len(EQUAL))] == [0.0] * len(
        EQUAL
    )


def replicated_world(link, kind="tenants"):
    world, scene = a_world(kind)
    members = [make_core("reference", scene, number) for number in range(link.selectors)]
    return world, members, ReplicatedRouter(members, link, world, 1)


def bookings(members):
    return [
        {(b.reservation_id, b.rank) for b in member.selector.ledger.reservations}
        for member in members
    ]


def test_peers_replicate_their_bookings():
    world, members, group = replicated_world(ReplicaNetwork(2, 0.005))
    seen = []
    world.schedule_at(5.0, lambda: seen.extend(bookings(members)))
    world.run_open(group, 30.0)
    one, other = seen
    assert len(one) > 20
    assert len(one ^ other) <= 5, "only what is on its way"


@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_replicas_agree_in_the_end_though_events_are_lost(loss):
    world, members, group = replicated_world(ReplicaNetwork(3, 0.02, loss=loss), "conversation")
    record = world.run_open(group, 2.0)
    assert all(life.end_s > 0.0 for life in record.histories)
    for member in members:
        member.selector.check_invariants()
    held = set().union(*bookings(members))
    assert len(held) <= (0 if not loss else 40), "repair has mended nearly all of what was lost"


@pytest.mark.parametrize("helps", [True, False])
def test_cores_exchange_the_progress_of_prefills(helps):
    """Both cores know the same remaining work of a rank, except for the last tenth of a second."""
    world, scene = a_world("mixed lengths")
    members = [make_core("work", scene, number) for number in range(2)]
    link = ReplicaNetwork(2, 0.005) if helps else ReplicaNetwork(2, 0.005, help=frozenset())
    group = ReplicatedRouter(members, link, world, 1)
    told = [0, 0]

    def look():
        for at, member in enumerate(members):
            for booking in member.selector.ledger.reservations:
                rows = member.selector.ledger.reservations.memory.fields
                of_peer = booking.origin is not None and booking.prefill_work
                told[at] += bool(of_peer and rows[booking.row * FIELDS + SYNCED_TOKENS])

    world.schedule_every(0.1, look, first=1.05)
    world.run_open(group, 20.0)
    assert all(told) == any(told) == helps
    for member in members:
        member.selector.check_invariants()


def test_links_are_read_from_names():
    assert parse_link("2 x 5 ms") == ReplicaNetwork(2, 0.005)
    assert parse_link("4 x 50 ms, loss 20, sticky") == ReplicaNetwork(4, 0.05, 0.2, True)
    assert parse_link("2 x 1 ms, no help") == ReplicaNetwork(2, 0.001, help=frozenset())
    assert parse_link("2 x 1 ms, no work, no share") == ReplicaNetwork(2, 0.001, help={"progress"})


@pytest.mark.parametrize(
    "name",
    [
        "nobody",
        "trial nobody",
        "reference, queue some 1",
        "work, x",
        "work, option x",
        "nobody x10",
    ],
)
def test_names_that_there_are_not(name):
    _, scene = a_world()
    with pytest.raises(KeyError):
        make_core(name, scene, 0)


def test_every_name_is_a_chooser():
    world, scene = a_world()
    for name in router_names():
        assert make_named_router(name, scene, world) is not None


def test_with_a_queue_requests_wait_for_room_and_all_end():
    world, scene = a_world("mixed lengths")
    chooser = make_core("reference, queue fcfs 0.5", scene, 0)
    record = world.run_open(chooser, 60.0)
    assert all(life.first_s > life.arrived_s for life in record.histories)
    assert chooser.selector.gate.tally.waits, "somebody waited"
    chooser.selector.check_invariants()


def test_a_mooncake_trace_keeps_its_prefixes(tmp_path):
    rows = [
        {"timestamp": 3000 * (n // 4), "input_length": 1200, "output_length": 70, "hash_ids": ids}
        for n, ids in enumerate([[1, 2, 3], [1, 2, 4], [5, 6, 7], [1, 8, 9]] * 3)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    workload = trace_workloads.trace_workload(trace_workloads.read_trace(path), 1, 12, spread_s=3.0)
    chains = [turn.chain for (turn,) in workload.sessions]
    assert len({len(chain) for chain in chains}) == 1
    starts = {tuple(chain[:8].tolist()) for chain in chains}
    assert len(starts) == 2
    assert len(np.unique(workload.units)) == 12


def test_a_trace_of_the_user_runs_at_its_own_rate(tmp_path):
    rows = [chat(n, n - 10, n / 2, [*range(n % 10 * 99, n % 10 * 99 + 90), n]) for n in range(200)]
    path = write_lines(tmp_path / "trace.jsonl", *rows)
    case = quality_runs.make_cases(None, None, 150, path)["trace"]
    assert case.per_s == pytest.approx(200 / 99.5)
    workload = case.workload(1)
    assert workload.requests == 150
    assert len(set(workload.labels)) == 10
    found = quality_runs.run_cell(RunKey("trace", 1.0, 1, "hash"), case)
    assert found.hit_rate > 0.8


def test_an_azure_trace_shares_nothing(tmp_path):
    path = tmp_path / "trace.csv"
    lines = [f"2023-11-16 18:15:{n:02}.6805900,{300 + n},40" for n in range(20)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    workload = trace_workloads.trace_workload(trace_workloads.read_azure(path), 1, 20)
    assert workload.requests == 20
    assert len(np.unique(np.concatenate([t.chain for (t,) in workload.sessions]))) == (
        workload.n_blocks
    )


OUTCOME = RunOutcome(1.0, 4.0, 8.0, 0.05, 0.5, 0)


def test_ratios_are_geometric_means_with_intervals_over_seeds():
    halves = [OUTCOME._replace(ttft_mean=x) for x in (0.5, 0.25)]
    results = {RunKey("w", 0.5, seed, "reference"): OUTCOME for seed in (1, 2)}
    results |= {RunKey("w", 0.5, s, "other"): half for s, half in enumerate(halves, 1)}
    found = compute_ratio(results, [("w", 0.5)], "other", "reference", quality_report.MEAN)
    assert found.mean == pytest.approx(0.125**0.5)
    assert found.low < 0.25 < 0.5 < found.high
    assert interval([0.0]) == (1.0, 1.0, 1.0)


def test_results_are_shown_and_read_again(tmp_path):
    results = dict(
        [
            a_run("reference"),
            a_run("round robin"),
            a_run("reference", "few-shot"),
            a_run("round robin", "few-shot"),
        ]
    )
    path = tmp_path / "results.json"
    path.write_text(quality_report.to_json(results))
    assert quality_report.from_json(path) == results
    text = quality_report.render_markdown(results, "reference")
    assert "| round robin |" in text
    assert "tenants, 0.8" in text
    ET.fromstring(quality_report.render_svg(results, "reference"))
    head, *lines = quality_report.render_csv(results).splitlines()
    assert head.startswith("workload,load,chooser,seeds,ttft_mean,")
    assert {line.split(",")[2] for line in lines} == {"reference", "round robin"}
    assert len(lines) == len(results)


def test_results_that_are_not_complete_are_shown():
    results = {RunKey("w", 0.5, 1, "work"): OUTCOME, RunKey("v", 0.5, 1, "reference"): OUTCOME}
    for some in (results, dict([*results.items()][:1])):
        assert "| work |" in quality_report.render_markdown(some, "reference")
        ET.fromstring(quality_report.render_svg(some, "reference"))
