"""Tests of engine speeds learnt from selectors' times, despite waiting and interruptions."""

import pytest

from select_service.planner.core.forecast_contracts import LatencyTargets, MeanRequest
from select_service.planner.core.performance.engine_capacity import (
    LinearIterationTime,
    aggregated_capacity,
    chunked_prefill_s,
    decode_capacity,
)
from select_service.planner.core.performance.engine_model import EngineModel
from select_service.planner.core.performance.line_fit import HALF_LIFE_S
from select_service.planner.core.performance.request_timings import (
    ALONE_MIN,
    RequestTimings,
    fastest_blocks,
)
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import (
    DecodeTiming,
    ForwardPass,
    PrefillTiming,
    TrafficWindow,
)
from select_service.planner.replay.simulated_engine import EngineSpeed
from tests.planner.core.performance.iterations import FAST, Load, observed

SLOW_BASE = EngineSpeed(0.02, 2e-5, 6e-8, 2e-4)
SHAPE, SLO = MeanRequest(2500, 160), LatencyTargets(1000, 50)
NOW = ForwardPass(
    worker="a", queued_prefill_tokens=6000, decode_requests=20, decode_kv_tokens=60_000
)


def truth(speed: EngineSpeed) -> LinearIterationTime:
    return LinearIterationTime(
        speed.base_s, speed.per_prefill_token_s, speed.per_kv_token_s, speed.per_request_s
    )


def learnt_model(kind: str, load: Load) -> EngineModel:
    model = EngineModel(kind, DeploymentSettings())  # type: ignore[arg-type]
    for now, traffic in observed(load):
        model.observe_traffic(traffic, now)
    assert model.source == "selector"
    return model


@pytest.mark.parametrize("jitter", [0.0, 0.15])
@pytest.mark.parametrize("rate", [1.0, 6.0, 18.0])
def test_prompts_of_engines_that_prefill(rate, jitter):
    load = Load(rate, split=True, jitter=jitter)
    model = learnt_model("prefill", load)
    for tokens in (3000, 12_000):
        expected = chunked_prefill_s(truth(FAST), tokens, load.chunk_max)
        assert model.prefill_s(tokens, load.limits) == pytest.approx(expected, rel=0.15)
    waiting = chunked_prefill_s(truth(FAST), NOW.queued_prefill_tokens, load.chunk_max)
    assert model.ttft_s(NOW, load.limits, 0.0) == pytest.approx(waiting, rel=0.15)


@pytest.mark.parametrize("speed", [FAST, SLOW_BASE])
@pytest.mark.parametrize("rate", [6.0, 15.0])
def test_blocks_of_engines_that_decode(rate, speed):
    load = Load(rate, split=True, speed=speed)
    model = learnt_model("decode", load)
    for requests in (4, 20, 80):
        expected = truth(speed).seconds(0, requests * 3000, requests)
        assert model.decode_s(requests, requests * 3000) == pytest.approx(expected, rel=0.15)
    best = decode_capacity(truth(speed), SHAPE, load.limits, SLO)
    found = model.find_capacity(SHAPE, load.limits, SLO)
    assert best is not None
    assert found is not None
    assert found.rps == pytest.approx(best.rps, rel=0.15)


@pytest.mark.parametrize("jitter", [0.0, 0.15])
@pytest.mark.parametrize(
    ("rate", "speed", "chunk_max"),
    [
        (1.0, FAST, 8192),
        (4.0, FAST, 8192),
        (9.0, FAST, 8192),
        (12.0, FAST, 8192),
        (6.0, FAST, 2048),
        (9.0, SLOW_BASE, 8192),
    ],
)
def test_engines_that_do_both(rate, speed, chunk_max, jitter):
    load = Load(rate, split=False, speed=speed, chunk_max=chunk_max, jitter=jitter)
    model, real = learnt_model("aggregated", load), truth(speed)
    prefill_s = chunked_prefill_s(real, 3000, chunk_max)
    assert model.prefill_s(3000, load.limits) == pytest.approx(prefill_s, rel=0.15)
    for requests in (6, 40):
        expected = real.seconds(0, requests * 3000, requests)
        assert model.decode_s(requests, requests * 3000) == pytest.approx(expected, rel=0.15)
    ttft_s = chunked_prefill_s(real, NOW.queued_prefill_tokens, chunk_max, 60_000, 20)
    assert model.ttft_s(NOW, load.limits, 0.0) == pytest.approx(ttft_s, rel=0.15)
    best = aggregated_capacity(real, SHAPE, load.limits, SLO)
    found = model.find_capacity(SHAPE, load.limits, SLO)
    assert best is not None
    assert found is not None
    assert found.rps == pytest.approx(best.rps, rel=0.15)


def prompts(n: int, ahead: float, per_token_s: float) -> TrafficWindow:
    """Return prompts from 100 tokens on, half a second late if other prompts were ahead."""
    late = 0.5 if ahead else 0.0
    samples = [
        PrefillTiming(100.0 * i, 0.01 + late + (100.0 * i + ahead) * per_token_s, ahead)
        for i in range(1, n + 1)
    ]
    return TrafficWindow(duration_s=60.0, prefill_samples=tuple(samples))


def test_prompts_that_waited_count_only_while_too_few_did_not():
    timed = RequestTimings("prefill", DeploymentSettings())
    timed.observe_traffic(prompts(40, 5000.0, 5e-5), 10.0)
    assert timed.iteration_time is not None
    assert timed.iteration_time.base == pytest.approx(0.51)
    timed.observe_traffic(prompts(ALONE_MIN, 0.0, 5e-5), 20.0)
    assert timed.iteration_time.base == pytest.approx(0.01)


def test_old_prompts_do_not_describe_a_permanently_busy_engine():
    timed = RequestTimings("prefill", DeploymentSettings())
    timed.observe_traffic(prompts(ALONE_MIN, 0.0, 5e-5), 0.0)
    timed.observe_traffic(prompts(60, 5000.0, 5e-4), HALF_LIFE_S)
    assert timed.iteration_time is not None
    assert timed.iteration_time.per_prefill_token == pytest.approx(5e-5)
    timed.observe_traffic(prompts(1, 5000.0, 5e-4), HALF_LIFE_S + 1.0)
    assert timed.iteration_time.per_prefill_token == pytest.approx(5e-4, rel=0.2)


def test_an_engine_that_does_both_needs_prompts_and_blocks():
    timed = RequestTimings("aggregated", DeploymentSettings())
    timed.observe_traffic(prompts(20, 0.0, 5e-5), 10.0)
    assert timed.iteration_time is None
    blocks = tuple(DecodeTiming(n, n * 3000.0, 0.008 + n * 1.9e-4) for n in range(1, 40))
    timed.observe_traffic(TrafficWindow(duration_s=60.0, decode_samples=blocks), 20.0)
    assert timed.iteration_time is not None
    assert timed.iteration_time.base == pytest.approx(0.008)


def test_no_iteration_takes_less_than_nothing():
    timed = RequestTimings("prefill", DeploymentSettings())
    samples = tuple(PrefillTiming(n, (n - 900.0) * 5e-5, 0.0) for n in range(1000, 3000, 100))
    timed.observe_traffic(TrafficWindow(duration_s=60.0, prefill_samples=samples), 10.0)
    assert timed.iteration_time is not None
    assert timed.iteration_time.base == 0.0


def test_the_fastest_samples_of_each_load_are_kept():
    undisturbed = [DecodeTiming(n, n * 1000.0, n * 0.001) for n in range(1, 17) for _ in range(2)]
    disturbed = [
        DecodeTiming(n, n * 1000.0, n * 0.002 + 0.01) for n in range(1, 17) for _ in range(14)
    ]
    kept = list(fastest_blocks([*disturbed, *undisturbed]))
    assert kept == undisturbed
    few = undisturbed[:9]
    assert list(fastest_blocks(few)) == few


def test_a_falling_slope_is_dropped_for_the_better_one():
    timed = RequestTimings("decode", DeploymentSettings())
    blocks = tuple(
        DecodeTiming(n, n * 1000.0 + 300.0 * (n % 3), 0.01 + n * 1e-3 - (n % 3) * 1e-4)
        for n in range(1, 30)
    )
    timed.observe_traffic(TrafficWindow(duration_s=60.0, decode_samples=blocks), 5.0)
    assert timed.iteration_time is not None
    assert timed.iteration_time.per_kv_token == 0.0
    assert timed.iteration_time.per_request == pytest.approx(1e-3, rel=0.05)
