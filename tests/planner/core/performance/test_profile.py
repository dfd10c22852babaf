"""Tests of profiles: exact at the measured points, monotone in between, and read with checks."""

import json
import zipfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.planner.core.performance import measured_profile as profiles
from select_service.planner.core.performance.engine_model import EngineModel
from select_service.planner.core.performance.measured_profile import (
    DecodeSurface,
    PrefillCurve,
    ProfileArraysError,
)
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import EngineLimits
from select_service.planner.profile_files import DECODE, PREFILL, ProfileFileError, read_profile

USAGES, CONTEXTS = (0.1, 0.35, 0.7, 0.95), (500.0, 2000.0, 8000.0)
GRID = [(u, c) for c in CONTEXTS for u in USAGES]
DECODE_ARRAYS = {
    "x_kv_usage": [u for u, _ in GRID],
    "y_context_length": [c for _, c in GRID],
    "z_itl": [6.0 + 20.0 * u + c / 2000.0 for u, c in GRID],
    "max_kv_tokens": [300_000.0],
}
PREFILL_ARRAYS = {
    "prefill_isl": [1000.0, 4000.0, 2000.0, 8000.0, 16000.0],
    "prefill_ttft": [60.0, 210.0, 110.0, 450.0, 1100.0],
}


def surface() -> DecodeSurface:
    columns = (DECODE_ARRAYS[name] for name in ("x_kv_usage", "y_context_length", "z_itl"))
    return DecodeSurface(*columns, 300_000.0)


@given(
    st.dictionaries(st.integers(1, 100_000), st.floats(0.1, 1e6), min_size=2, max_size=12),
    st.lists(st.floats(0.0, 200_000.0), min_size=1, max_size=20),
)
def test_a_curve_meets_its_points_and_rises_where_they_rise(points, asked):
    times = sorted(points.values())
    curve = PrefillCurve(sorted(points), times)
    for tokens, ms in zip(sorted(points), times, strict=True):
        assert curve.seconds(tokens) == pytest.approx(ms / 1000.0, rel=1e-9)
    answers = [curve.seconds(tokens) for tokens in sorted(asked)]
    for before, after in pairwise(answers):
        assert after >= before - 1e-9 * abs(before)


def test_outside_a_curve_goes_on_as_it_ends_and_never_below():
    curve = PrefillCurve(isl=[100, 200, 400], ttft_ms=[10.0, 20.0, 40.0])
    assert curve.seconds(1) == 0.010
    assert curve.seconds(800) == pytest.approx(0.080)
    falls = PrefillCurve([100, 200, 400], [10.0, 40.0, 30.0])
    assert falls.seconds(10_000) == pytest.approx(0.030)


def test_a_curve_agrees_with_naive_pieces_of_a_straight_line():
    x = np.array([1.0, 2.0, 5.0, 9.0])
    curve = PrefillCurve(x.tolist(), (x * 7.0).tolist())
    for tokens in np.linspace(1.0, 20.0, 50):
        assert curve.seconds(float(tokens)) == pytest.approx(tokens * 0.007)


@given(st.floats(-1.0, 2.0), st.floats(1.0, 20_000.0))
def test_a_surface_is_bilinear_and_the_nearest_outside(usage, context):
    inside_u = min(max(usage, USAGES[0]), USAGES[-1])
    inside_c = min(max(context, CONTEXTS[0]), CONTEXTS[-1])
    expected = (6.0 + 20.0 * inside_u + inside_c / 2000.0) / 1000.0
    assert surface().seconds(usage, context) == pytest.approx(expected)


def test_a_cell_without_a_point_has_the_nearest():
    found = DecodeSurface([0.1, 0.1, 0.9], [500, 2000, 500], [5.0, 6.0, 9.0], 1000.0)
    assert found.seconds(0.9, 2000) in (0.006, 0.009)


@pytest.mark.parametrize(
    ("isl", "ttft"), [([1], [1.0]), ([1, 1], [1.0, 2.0]), ([1, 2], [1.0]), ([1, 2], [1.0, np.nan])]
)
def test_invalid_curves_are_refused(isl, ttft):
    with pytest.raises(ProfileArraysError):
        PrefillCurve(isl, ttft)


def write_profile(directory: Path, form: str) -> Path:
    for name, arrays in ((PREFILL, PREFILL_ARRAYS), (DECODE, DECODE_ARRAYS)):
        (directory / name).mkdir()
        path = directory / name / f"raw_data.{form}"
        if form == "npz":
            np.savez(path, **{key: np.array(value) for key, value in arrays.items()})
        else:
            path.write_text(json.dumps(arrays))
    return directory


@pytest.mark.parametrize("form", ["npz", "json"])
def test_both_forms_give_the_same_profile(tmp_path, form):
    found = read_profile(str(write_profile(tmp_path, form)))
    assert found.prefill is not None
    assert found.decode is not None
    assert found.prefill.seconds(4000) == pytest.approx(0.210)
    assert found.decode.seconds(0.35, 2000.0) == pytest.approx(0.014)


def test_the_files_of_a_config_map(tmp_path):
    """Dynamo's operator mounts two flat files, with a number in place of the sweep's array."""
    for half, arrays in ((PREFILL, PREFILL_ARRAYS), (DECODE, DECODE_ARRAYS)):
        flat = {name: list(values) for name, values in arrays.items()}
        if half is DECODE:
            (flat["max_kv_tokens"],) = flat["max_kv_tokens"]
            flat["z_thpt_per_gpu"] = {"any": "form"}
        name = "prefill" if half is PREFILL else "decode"
        (tmp_path / f"{name}_raw_data.json").write_text(json.dumps(flat))
    found = read_profile(str(tmp_path))
    assert found.prefill.seconds(4000) == pytest.approx(0.210)
    assert found.decode.seconds(0.35, 2000.0) == pytest.approx(0.014)
    flat["max_kv_tokens"] = [1, 2]
    (tmp_path / "decode_raw_data.json").write_text(json.dumps(flat))
    with pytest.raises(ProfileFileError, match=r"decode_raw_data\.json: max_kv_tokens: exp"):
        read_profile(str(tmp_path))


def header(shape: str, kind: str = "<f8") -> bytes:
    """Return the header of an array with any declared shape and type."""
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (header("(1000000000000,)"), "at most 100000 values, got 1000000000000 in the header"),
        (header("(100000, 100000, 100000)"), "at most 100000 values"),
        (header("(-5,)"), "at most 100000 values, got -5 in the header"),
        (
            header("(1000,)") + bytes(16),
            "expected 1000 values as in the header, the file is shorter",
        ),
        (header("(1000000000000,)", "|V0"), "expected numbers"),
        (header("(1000000000000,)", "|S0"), "expected numbers"),
        (header("(2,)", "<c16") + bytes(32), "expected numbers, got complex128"),
        (header("(2,)", "|O") + bytes(16), "expected numbers, got object"),
        (header("2"), "raw_data.npz"),
        (header("(2,"), "raw_data.npz"),
        (b"\x93NUMPY\x01\x00\xff\xff{", "raw_data.npz"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\x7f{", "raw_data.npz"),
        (b"", "raw_data.npz"),
    ],
)
def test_absurd_headers_of_arrays_are_refused_in_a_line(tmp_path, content, told):
    (tmp_path / PREFILL).mkdir()
    with zipfile.ZipFile(tmp_path / PREFILL / "raw_data.npz", "w") as packed:
        packed.writestr("prefill_isl.npy", content)
    with pytest.raises(ProfileFileError, match=r"\A[^\n]+\Z") as error:
        read_profile(str(tmp_path))
    assert told in str(error.value)


def test_faults_of_files_are_named(tmp_path, monkeypatch):
    with pytest.raises(ProfileFileError, match=r"selected_prefill_interpolation/raw_data"):
        read_profile(str(tmp_path))
    path = write_profile(tmp_path, "json") / PREFILL / "raw_data.json"
    path.write_text('{"prefill_isl": [1, 2]}')
    with pytest.raises(ProfileFileError, match=r"raw_data\.json: prefill_ttft missing; arrays: "):
        read_profile(str(tmp_path))
    path.write_text('{"prefill_isl": "x"}')
    with pytest.raises(ProfileFileError, match="prefill_isl: expected numbers"):
        read_profile(str(tmp_path))
    packed = path.with_suffix(".npz")
    np.savez(packed, prefill_isl=np.array([object()], dtype=object))
    with pytest.raises(ProfileFileError, match="prefill_isl: expected numbers, got object"):
        read_profile(str(tmp_path))
    packed.write_bytes(b"PK nothing")
    with pytest.raises(ProfileFileError, match=r"raw_data\.npz"):
        read_profile(str(tmp_path))
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("prefill_isl.npy", b"0" * 100)
    monkeypatch.setattr("select_service.planner.profile_files.FILE_BYTES_MAX", 50)
    with pytest.raises(ProfileFileError, match="larger than 50 bytes"):
        read_profile(str(tmp_path))


def test_a_model_goes_by_its_profile_until_it_has_learnt():
    curve = PrefillCurve(PREFILL_ARRAYS["prefill_isl"], PREFILL_ARRAYS["prefill_ttft"])
    both = profiles.MeasuredProfile(curve, surface())
    prefill = EngineModel("prefill", DeploymentSettings(), profile=both)
    decode = EngineModel("decode", DeploymentSettings(), profile=both)
    limits = EngineLimits(max_num_batched_tokens=2048)
    assert (prefill.source, decode.source) == ("profile", "profile")
    assert prefill.prefill_s(4000, limits) == pytest.approx(0.210)
    assert decode.decode_s(105, 210_000) == pytest.approx(surface().seconds(0.7, 2000.0))
    aggregated = EngineModel("aggregated", DeploymentSettings(), profile=both)
    assert aggregated.source == "profile"
    assert EngineModel("prefill", DeploymentSettings()).source is None
