"""Tests of fitted performance models against numpy and against known lines."""

import numpy as np
import pytest

from select_service.planner.core.forecast_contracts import LatencyTargets, MeanRequest
from select_service.planner.core.performance.bucketed_samples import BucketedSamples, LoadSample
from select_service.planner.core.performance.engine_capacity import (
    LinearIterationTime,
    decode_capacity,
    prefill_capacity,
)
from select_service.planner.core.performance.engine_model import EngineModel
from select_service.planner.core.performance.line_fit import fit_line, fit_robust_line
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import (
    DecodeTiming,
    EngineLimits,
    ForwardPass,
    PrefillTiming,
    TrafficWindow,
)
from tests.planner.invariants import check_samples

LIMITS = EngineLimits(max_num_batched_tokens=2048, max_num_seqs=256, max_kv_tokens=400_000)


def line_of(n: int) -> list[LoadSample]:
    return [LoadSample((100.0 * i,), 0.01 + 0.005 * i) for i in range(n)]


def test_least_squares_equal_numpy() -> None:
    rng = np.random.default_rng(7)
    x, y = rng.uniform(0, 1e5, (40, 2)), rng.uniform(0.01, 0.1, 40)
    found = fit_line([LoadSample(tuple(a), b) for a, b in zip(x.tolist(), y.tolist(), strict=True)])
    wanted = np.linalg.lstsq(np.column_stack([x, np.ones(40)]), y, rcond=None)[0]
    assert [*found.coefficients, found.intercept] == pytest.approx(wanted.tolist())


def test_one_stall_does_not_bend_the_robust_line() -> None:
    stalled = [*line_of(40), LoadSample((3900.0,), 30.0)]
    found = fit_robust_line(stalled, 0.0)
    assert found.coefficients[0] == pytest.approx(5e-5, rel=0.02)
    assert fit_line(stalled).coefficients[0] > 1e-4


def test_the_fullest_bucket_gives_up_its_oldest() -> None:
    samples = BucketedSamples(1, 8, 4)
    for x in [0.0, 100.0, *[50.0 + i / 10 for i in range(30)]]:
        samples.add_sample(LoadSample((x,), 1.0))
        check_samples(samples)
    assert {0.0, 100.0} <= {sample.x[0] for sample in samples}


def test_the_best_batch_keeps_the_promise() -> None:
    found = decode_capacity(
        LinearIterationTime(0.006, 0.0, 3e-8, 1e-4),
        MeanRequest(3000, 150, 0.9),
        LIMITS,
        LatencyTargets(500, 50),
    )
    assert found is not None
    assert (found.batch, found.eligible) == (130, True)
    assert found.rps == pytest.approx(27.9637546718)


def test_an_unreachable_target_is_reported() -> None:
    found = prefill_capacity(
        LinearIterationTime(0.01, 5e-5, 0, 0), MeanRequest(9000, 1), LIMITS, LatencyTargets(100, 50)
    )
    assert found is not None
    assert not found.eligible


@pytest.mark.parametrize("kind", ["prefill", "decode", "aggregated"])
def test_the_selector_alone_makes_a_model_ready(kind: str) -> None:
    model = EngineModel(kind, DeploymentSettings())  # type: ignore[arg-type]
    assert not model.is_ready
    assert model.source is None
    traffic = TrafficWindow(
        duration_s=60,
        isl=900,
        osl=100,
        prefill_samples=tuple(PrefillTiming(n, 0.01 + n * 5e-5, 0) for n in range(100, 2000, 100)),
        decode_samples=tuple(
            DecodeTiming(n, n * n * 90, 0.01 + n * n * 90 * 3e-8) for n in range(1, 20)
        ),
    )
    model.observe_traffic(traffic, 60.0)
    assert model.is_ready
    assert model.source == "selector"
    assert model.find_capacity(MeanRequest(900, 100), LIMITS, LatencyTargets(500, 50)) is not None


def test_forward_passes_come_before_the_selector() -> None:
    model = EngineModel("prefill", DeploymentSettings())
    passes = [
        ForwardPass(worker="a", wall_s=0.01 + n * 5e-5, prefill_requests=1, prefill_tokens=n)
        for n in range(100, 2000, 100)
    ]
    model.observe_passes(passes, 5.0)
    assert model.source == "fpm"
    now = ForwardPass(worker="a", queued_prefill_tokens=3096)
    assert model.ttft_s(now, LIMITS, 0.0) == pytest.approx(2 * 0.01 + 4096 * 5e-5)
