"""Tests of the quality benchmark over HTTP and ZMQ: a real service and paced virtual time."""

import time

import numpy as np
import pytest

from scripts.bench.quality import over_http, quality_runs
from scripts.bench.quality.quality_figures import RunKey, compute_ratio
from scripts.bench.quality.quality_report import MEAN
from scripts.bench.quality.service_router import EventStreams, PacedWorld, ServiceRouter, tokens_of
from select_service.sim.engine.gpu_hardware import BLOCK_TOKENS, EQUAL
from tests.builders.in_thread import InThread


def test_the_tokens_of_a_block_follow_from_its_number_alone():
    tokens = tokens_of(np.array([3, 5], np.int32))
    assert len(set(tokens)) == 2 * BLOCK_TOKENS
    assert tokens[BLOCK_TOKENS:] == tokens_of(np.array([5], np.int32))


def test_virtual_time_waits_for_the_clock_and_is_not_caught_up_with():
    workload = quality_runs.make_cases(None, None, 10)["few-shot"].workload(1)
    world = PacedWorld(workload, EQUAL, pace=1000.0)
    begin = time.monotonic()
    world.pass_time(20.0)
    assert world.time == 20.0
    assert time.monotonic() - begin >= 0.02
    late_s = world.late_s
    world.pass_time(20.0)
    assert world.late_s > late_s


def test_a_service_reads_all_events_and_keeps_no_reservation():
    case = quality_runs.make_cases(None, None, 30)["few-shot"]
    workload = case.workload(1)
    world, streams = PacedWorld(workload, case.fleet, pace=100.0), EventStreams(len(case.fleet))
    with InThread(environment={}) as service:
        chooser = ServiceRouter(service.port, world, streams)
        chooser.register_workers(case.fleet)
        record = world.run_open(chooser, 20.0)
        assert chooser.unread_batches() == 0
        assert chooser.count_reservations() == 0
        assert all(life.end_s > life.first_s > life.arrived_s for life in record.histories)
        asked = {"model_name": "m", "token_ids": tokens_of(workload.sessions[-1][0].chain)}
        rows = service.call("POST", "/overlap_scores", asked).body["workers"]
    last = record.histories[-1]
    matched = {row["worker_id"]: row["device_blocks"] for row in rows}
    assert matched[last.rank] == len(workload.sessions[-1][0].chain)
    streams.close()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_default_policy_is_the_better_one_over_http_and_zmq():
    found, keys = {}, []
    all_cases = quality_runs.make_cases(None, None, 300)
    for name in ("tenants", "bursts"):
        for policy in over_http.POLICIES:
            key = RunKey(name, 0.85, 1, policy)
            done = over_http.run_over_http(key, all_cases[name], over_http.PACE, found)
            assert (done.unread, done.held) == (0, 0)
            keys.append(key)
    both = compute_ratio(found, {key.cell for key in keys}, "work", "reference", MEAN)
    assert both.mean <= 0.85
