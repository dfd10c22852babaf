"""Tests of a sweep: the engine's times are found, and the files form a profile."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.planner.core.performance.engine_model import EngineModel
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.profile_files import read_profile
from select_service.planner.profiling import profile_command as command
from select_service.planner.profiling.engine_probe import ReportedLimits
from select_service.planner.profiling.sweep import (
    StreamTimes,
    measure_batch,
    plan_answer_tokens,
    spread_evenly,
)
from tests.planner.profiling.batching_engine import BatchingEngine, Pace


def run_sweep(
    monkeypatch: pytest.MonkeyPatch, engine: BatchingEngine, out: Path, *more: str
) -> int:
    monkeypatch.setattr(command, "EngineProbe", lambda *_, **__: engine)
    return command.profile_command(["--engine", "http://x:1", "--out", str(out), *more])


def test_the_profile_has_the_paces_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = BatchingEngine()
    assert run_sweep(monkeypatch, engine, tmp_path / "p") == 0
    profile = read_profile(str(tmp_path / "p"))
    settings = DeploymentSettings(profile_results_dir=str(tmp_path / "p"))
    pace = engine.pace
    prefill = EngineModel("prefill", settings, profile=profile).iteration_time
    assert prefill is not None
    assert prefill.seconds(4000, 0, 0) == pytest.approx(pace.base + 4000 * pace.token, rel=0.01)
    decode = EngineModel("decode", settings, profile=profile).iteration_time
    assert decode is not None
    for requests, kv in ((1, 1000), (16, 32_000), (32, 100_000)):
        expected = pace.base + pace.kv * kv + pace.request * requests
        assert decode.seconds(0, kv, requests) == pytest.approx(expected, rel=0.03)
    assert profile.decode is not None
    assert profile.decode.max_kv_tokens == 200_000
    told = capsys.readouterr()
    assert "16 points of prefill" in told.out
    assert "prefill of 100: 7.0 ms" in told.err
    # Prompts that do not fit would queue, and waiting is no pace.
    assert all(n * (length + 128) <= 190_000 for length, _, n in engine.asked)
    assert all(length + answer < 8192 for length, answer, _ in engine.asked)


def test_one_part_alone_needs_no_kv_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = BatchingEngine(facts=ReportedLimits("m", 2048, None))
    assert run_sweep(monkeypatch, engine, tmp_path, "--parts", "prefill") == 0
    assert read_profile(str(tmp_path)).decode is None
    with pytest.raises(command.UsageError, match=r"prefill_raw_data\.json exists: name another"):
        run_sweep(monkeypatch, engine, tmp_path)
    with pytest.raises(command.UsageError, match="--max-kv-tokens is missing"):
        run_sweep(monkeypatch, engine, tmp_path / "other")


@pytest.mark.parametrize("max_length", [10**12, 10**400])
def test_the_longest_prompt_is_bounded_for_any_reported_length(
    max_length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = BatchingEngine(facts=ReportedLimits("m", max_length, None))
    assert run_sweep(monkeypatch, engine, tmp_path / "p", "--parts", "prefill") == 0
    lengths = [length for length, _, _ in engine.asked]
    assert command.LENGTH_MAX // 2 < max(lengths) < command.LENGTH_MAX


@pytest.mark.parametrize(
    ("facts", "more", "told"),
    [
        (ReportedLimits("m", None, 1000), (), "--max-length is missing"),
        (ReportedLimits("m", 300, 1000), (), "--max-length: expected at least 329"),
        (ReportedLimits("m", 4096, 400), (), "points of decode, expected at least 5"),
        (ReportedLimits(None, 4096, 1000), (), "no model"),
    ],
)
def test_an_engine_that_cannot_be_measured_writes_nothing(
    facts: ReportedLimits,
    more: tuple[str, ...],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine = BatchingEngine(facts=facts)
    engine.model = facts.model
    try:
        assert run_sweep(monkeypatch, engine, tmp_path / "p", *more) == 1
        text = capsys.readouterr().err
    except command.UsageError as error:
        text = str(error)
    assert told in text
    assert not (tmp_path / "p").exists()


def test_answers_that_do_not_overlap_give_no_pace() -> None:
    early = StreamTimes(0.0, (1.0, 1.1, 1.2, 1.3, 1.4), 5)
    late = StreamTimes(0.0, (1.35, 1.5, 1.6, 1.7, 1.8), 5)
    assert measure_batch(100, [early, late]) is None
    assert measure_batch(100, [early]) is not None


def test_the_first_guess_of_an_answer_is_corrected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = BatchingEngine(Pace(token=0.00002, kv=0.0, request=0.0))
    monkeypatch.setattr(command, "plan_answer_tokens", lambda *_: 2)
    assert run_sweep(monkeypatch, engine, tmp_path, "--max-concurrency", "2") == 0
    assert max(answer for _, answer, _ in engine.asked[17:]) == 8


@given(
    st.lists(st.floats(0.001, 1.0), min_size=12, max_size=40),
    st.integers(1, 3),
    st.floats(0.0, 0.5),
)
def test_the_pace_of_a_single_answer_is_its_mean_interval(
    intervals: list[float], per_chunk: int, start: float
) -> None:
    times = [start]
    for each in intervals:
        times.append(times[-1] + each)
    found = measure_batch(10, [StreamTimes(0.0, tuple(times), per_chunk * len(times))])
    assert found is not None
    assert found.itl_s == pytest.approx(sum(intervals) / len(intervals) / per_chunk)
    assert 10 < found.context < 10 + per_chunk * len(times)


@given(st.integers(1, 10_000), st.integers(1, 100_000), st.integers(1, 64))
def test_lengths_are_spread_within_their_limits(low: int, high: int, count: int) -> None:
    found = spread_evenly(low, high, count)
    assert found[-1] == high
    assert list(found) == sorted(set(found))
    assert len(found) <= max(1, count)
    assert high <= low or min(found) >= low


@given(st.integers(1, 500), st.integers(1, 5000), st.integers(1, 64), st.floats(0.0, 100.0))
def test_answers_are_long_enough_and_fit(
    least: int, most: int, requests: int, prefill_s: float
) -> None:
    found = plan_answer_tokens(least, most, requests, prefill_s, 0.02)
    assert 1 <= found <= max(1, most)
    assert found == max(1, most) or found >= least + (requests - 1) * prefill_s / 0.02
