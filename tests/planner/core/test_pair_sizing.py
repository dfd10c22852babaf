"""Tests of sizing with pairs: prefill ranks for remote, decode ranks also for local prompts."""

from itertools import pairwise
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from select_service.planner.core.forecast_contracts import LatencyTargets, MeanRequest
from select_service.planner.core.performance.request_timings import RequestTimings
from select_service.planner.core.proposers.pair_demand import find_local_part, find_remote_part
from select_service.planner.core.proposers.throughput_proposer import (
    RoleEngine,
    SizedDemand,
    find_local_prefill,
    size_role,
)
from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import (
    DecodeTiming,
    LengthBins,
    PairWindow,
    Role,
    TrafficWindow,
)
from tests.planner.core.deployments import FORWARD, LIMITS, a_deployment, both, tick_input, traffic
from tests.vectors.planner_given import given_model

PREFILL = given_model("prefill", FORWARD["prefill"])
DECODE = given_model("decode", FORWARD["decode"])
SLO = LatencyTargets(2000.0, 40.0)
SETTINGS = DeploymentSettings(ttft_ms=2000.0, itl_ms=40.0, sizing="queue")


def bins(lengths):
    found = sorted(set(lengths))
    counts = tuple(float(lengths.count(each)) for each in found)
    return LengthBins(means=tuple(map(float, found)), counts=counts) if found else None


def a_window(local, remote, **pairs):
    """Return a window of prompts with these uncached tokens; a quarter of each prompt is cached."""
    every = [*local, *remote]
    window = PairWindow(
        remote=float(len(remote)),
        local=float(len(local)),
        local_uncached=bins(local),
        remote_uncached=bins(remote),
        **pairs,
    )
    return TrafficWindow(
        duration_s=60.0,
        requests=float(len(every)),
        isl=sum(every) / len(every) / 0.75,
        osl=150.0,
        kv_hit_rate=0.25,
        uncached_isl=bins(every),
        pairs=window,
    )


def shape_of(window):
    return MeanRequest(window.isl, window.osl, window.kv_hit_rate)


LENGTHS = st.lists(st.integers(1, 20_000), max_size=12)


@given(LENGTHS, LENGTHS.filter(bool))
def test_both_parts_are_the_whole(local, remote):
    """The oracle sums the tokens of each list."""
    window = a_window(local, remote)
    part, shape, of_prefill = find_remote_part(shape_of(window), window)
    n = len(local) + len(remote)
    assert part == pytest.approx(len(remote) / n)
    per_request = shape.isl * (1.0 - shape.hit_rate)
    assert per_request * part * n == pytest.approx(sum(remote), rel=1e-6)
    if local:
        assert of_prefill.uncached_isl == bins(remote)
    found = find_local_part(shape_of(window), window)
    assert (found is None) == (not local)
    if found is not None:
        assert found.requests == pytest.approx(len(local) / n)
        assert found.lengths.mean * found.requests * n == pytest.approx(sum(local), rel=1e-6)


def size_for(window, rate, role, sizing):
    model = PREFILL if role is Role.PREFILL else DECODE
    engine = RoleEngine(model, LIMITS, SLO, both=False, prefill=PREFILL)
    demand = SizedDemand(rate, shape_of(window), window, 0.95, expected=rate)
    settings = DeploymentSettings(ttft_ms=2000.0, itl_ms=40.0, sizing=sizing)
    return size_role(demand, role, engine, settings), find_local_prefill(demand, role, engine)


@pytest.mark.parametrize("sizing", ["mean", "queue"])
def test_prefill_ranks_are_sized_for_remote_prompts_alone(sizing):
    local, remote = [500] * 60, [4000] * 40
    with_pairs, _ = size_for(a_window(local, remote), 100.0, Role.PREFILL, sizing)
    alone, _ = size_for(a_window([], remote), 40.0, Role.PREFILL, sizing)
    assert with_pairs.replicas == alone.replicas
    everything, _ = size_for(a_window([], [*local, *remote]), 100.0, Role.PREFILL, sizing)
    assert with_pairs.replicas < everything.replicas


@pytest.mark.parametrize("sizing", ["mean", "queue"])
def test_decode_ranks_get_the_time_of_their_own_prefills(sizing):
    """500 tokens take 35 ms; 60 such prompts a second keep 2.1 ranks busy."""
    local, remote = [500] * 60, [4000] * 40
    shared, busy = size_for(a_window(local, remote), 100.0, Role.DECODE, sizing)
    apart, none = size_for(a_window([], [*local, *remote]), 100.0, Role.DECODE, sizing)
    assert (busy, none) == (pytest.approx(60 * (0.01 + 500 * 5e-5)), 0.0)
    assert 2 <= shared.replicas - apart.replicas <= 3
    if sizing == "queue":
        assert shared.replicas == ceil(shared.exact)
        assert shared.exact == pytest.approx(apart.exact + busy)


def test_without_pairs_nothing_changes():
    window = TrafficWindow(duration_s=60.0, requests=60.0, isl=3000.0, osl=150.0)
    part, shape, same = find_remote_part(shape := MeanRequest(3000.0, 150.0, 0.0), window)
    assert (part, shape, same) == (1.0, shape, window)
    assert find_local_part(shape, window) is None


@pytest.mark.parametrize(("use", "is_bound"), [(None, False), (0.79, False), (0.8, True)])
def test_busy_links_are_a_reason(use, is_bound):
    pairs = a_window([500] * 5, [4000] * 5, link_use=use).pairs
    effects = a_deployment().run_tick(tick_input(60.0, both(2, 2), of=traffic(60.0, pairs=pairs)))
    assert (Reason.LINKS_BUSY in effects.diagnostics.reasons) is is_bound


def test_a_decode_deployment_reports_prefills_that_it_cannot_size():
    pairs = a_window([500] * 5, [4000] * 5).pairs
    window = traffic(60.0, pairs=pairs)
    ready = {Role.DECODE: both(2, 2)[Role.DECODE]}
    effects = a_deployment(mode="decode").run_tick(tick_input(60.0, ready, of=window))
    assert Reason.LOCAL_PREFILL_UNKNOWN in effects.diagnostics.reasons


def test_blocks_with_local_prefills_between_them_do_not_teach_decoding():
    """Every second block contains a prefill of 35 ms."""
    blocks = tuple(
        DecodeTiming(float(n), 1000.0 * n, 0.006 + 1e-4 * n + 3e-5 * n + 0.035 * (n % 2))
        for n in range(1, 65)
    )
    seconds = []
    for local in ([], [500] * 30):
        timings = RequestTimings("decode", DeploymentSettings())
        window = replace(a_window(local, [4000] * 30), decode_samples=blocks)
        for now in range(60, 600, 60):
            timings.observe_traffic(window, float(now))
        assert timings.iteration_time is not None
        seconds.append(timings.iteration_time.seconds(0.0, 30_000.0, 30.0))
    assert seconds[1] == pytest.approx(0.006 + 30 * 1.3e-4, rel=0.05)
    assert seconds[0] > 1.5 * seconds[1]


def a_course(deployment, rate_at, until_s):
    """Simulate a selector that makes more prompts local the busier prefill ranks are."""
    ready = {Role.PREFILL: 2, Role.DECODE: 2}
    counts = []
    long, short = 4000, 600
    for now in range(60, until_s, 60):
        rate = rate_at(now)
        work_s = rate * (0.3 * (0.01 + long * 5e-5) + 0.7 * (0.01 + short * 5e-5))
        share = min(0.6, max(0.2, work_s / ready[Role.PREFILL] - 0.3))
        local = round(60 * rate * 0.7 * share)
        remote_long, remote_short = round(60 * rate * 0.3), round(60 * rate * 0.7) - local
        window = a_window([short] * local, [long] * remote_long + [short] * remote_short)
        effects = deployment.run_tick(tick_input(float(now), both(*ready.values()), of=window))
        counts.append(dict(ready))
        ready |= effects.scale_to or {}
    return counts


def test_a_split_fleet_ends_with_enough_of_both_roles_after_a_step():
    deployment = a_deployment(
        max_gpu_budget=64, ttft_ms=2000.0, itl_ms=40.0, sizing="queue", stabilise=True
    )
    counts = a_course(deployment, lambda now: 8.0 if now < 1200 else 40.0, 4800)
    settled = counts[-15:]
    assert all(each == settled[0] for each in settled), "no oscillation"
    prefills, decodes = settled[0][Role.PREFILL], settled[0][Role.DECODE]
    # Prompts of both kinds at 40 requests/s need 2.5 ranks for the long prompts alone.
    assert prefills >= 3
    assert decodes >= 2
    for role in Role:
        steps = [b[role] - a[role] for a, b in pairwise(counts)]
        turns = [step for step in steps if step]
        reversals = sum(a * b < 0 for a, b in pairwise(turns))
        assert reversals <= 1, (role, turns)
