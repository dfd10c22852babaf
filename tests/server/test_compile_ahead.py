"""Tests of the start errors on a processor that cannot run the selected kernels."""

import platform

import pytest
from llvmlite import binding

from indexer.jit import wheel_code
from indexer.jit.wheel_code import FEATURES
from tests.builders.running import complaint, run_script, run_to_end

WITHOUT_AVX2 = """
import sys
from llvmlite import binding
features = binding.get_host_cpu_features()
binding.get_host_cpu_features = lambda: binding.FeatureMap({**features, "avx2": False})
from select_service.__main__ import main
sys.exit(main(sys.argv[1:]))
"""

of_x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="of x86-64 alone")


def test_a_machine_without_portable_code_is_named():
    status, _, said = run_to_end("compile", "--portable", "--machine", "riscv64")
    assert status == 2
    assert said == ("select-service: error: --portable supports x86_64 and aarch64, not riscv64\n")


@of_x86_64
@pytest.mark.parametrize("arguments", [("--port", "0"), ("replay", "missing")])
def test_a_start_on_an_old_processor_names_the_missing_features(arguments):
    processor = {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": ""}
    status, _, errors = run_script(WITHOUT_AVX2, *arguments, **processor)
    assert status == 2
    said = complaint(errors)
    assert (
        "NUMBA_CPU_NAME=x86-64-v3: the kernels need processor features missing here: avx2" in said
    )
    assert "CPU=generic" in said


@of_x86_64
@pytest.mark.parametrize(
    ("wanted", "lacking"), [("x86-64-v3", ["fma"]), ("generic", []), ("znver4", []), (None, [])]
)
def test_missing_features_are_those_of_the_baseline(monkeypatch, wanted, lacking):
    monkeypatch.delenv("NUMBA_CPU_NAME", raising=False)
    if wanted is not None:
        monkeypatch.setenv("NUMBA_CPU_NAME", wanted)
    less = binding.FeatureMap({name: name != "fma" for name in FEATURES["x86_64"]})
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: less)
    assert wheel_code.lacking_requested_features() == lacking
    monkeypatch.setattr(
        binding,
        "get_host_cpu_features",
        lambda: binding.FeatureMap.fromkeys(FEATURES["x86_64"], True),
    )
    assert wheel_code.lacking_requested_features() == []
