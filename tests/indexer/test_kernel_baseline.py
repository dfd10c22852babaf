"""Tests of machine code from the package: conditions under which the code is used or ignored."""

import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llvmlite import binding

from indexer.jit import kernel_cache, wheel_code
from indexer.jit.kernel_cache import directory_of, find_code, incomplete_modules, store_code
from indexer.jit.kernel_sources import baseline_settings, checksum_of, kernel_modules
from indexer.jit.machine_code import MachineCode
from indexer.jit.wheel_code import (
    FEATURES,
    MANIFEST,
    directory_name,
    unusable_reason,
    write_wheel_code,
)

MODULE = "indexer.hashing.xxh3_kernels"
NEEDED = FEATURES[platform.machine()]
CODE = MachineCode("entry", "environment", b"\x7fELF of\nsomething")
OWN_NAME = f"{MODULE}-{checksum_of(MODULE)}"


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Create an empty home and a package with code that no machine can run."""
    for name in [name for name in os.environ if name.startswith("NUMBA_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(kernel_cache, "package_root", lambda: tmp_path / "filled")
    monkeypatch.setattr(wheel_code, "wheel_root", lambda: tmp_path / "kernels_of_wheel")
    monkeypatch.setattr(wheel_code, "_is_ignored", False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(
        binding, "get_host_cpu_features", lambda: binding.FeatureMap.fromkeys(NEEDED, True)
    )
    write_wheel_code(made_below(tmp_path / "made"))
    _forget()
    yield tmp_path
    _forget()


def _forget() -> None:
    directory_of.cache_clear()
    unusable_reason.cache_clear()
    checksum_of.cache_clear()


def made_below(folder: Path) -> Path:
    """Write code of all modules below `folder`, as the compiler does."""
    for module in kernel_modules():
        directory = folder / directory_name(module)
        directory.mkdir(parents=True)
        (directory / "some.kernel").write_bytes(kernel_cache._encode(CODE))
        (directory / "complete").touch()
    return folder


def rewrite(places: Path, **fields: Any) -> None:
    """Write the manifest with other fields."""
    path = places / "kernels_of_wheel" / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def assert_left_alone(places: Path, why: str) -> None:
    """Check that the package's code is ignored.

    why: part of the reason
    """
    _forget()
    assert why in (unusable_reason() or "nothing")
    assert directory_of(MODULE) == places / "home" / "select-service" / "kernels" / OWN_NAME
    assert incomplete_modules() == list(kernel_modules())


def test_code_of_the_package_is_used_where_there_is_none_of_ones_own(places):
    assert unusable_reason() is None
    assert incomplete_modules() == []
    assert kernel_cache.is_from_wheel()
    assert find_code(MODULE, "some") == CODE


def test_a_directory_that_is_given_and_empty_is_not_filled(places, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(places / "given"))
    assert incomplete_modules() == []
    assert not (places / "given").exists()


@pytest.mark.parametrize("given", [True, False])
def test_ones_own_code_goes_before_it(places, monkeypatch, given):
    root = places / "given" if given else places / "home" / "select-service" / "kernels"
    if given:
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(root))
    (root / OWN_NAME).mkdir(parents=True)
    (root / OWN_NAME / "complete").touch()
    assert directory_of(MODULE) == root / OWN_NAME


def test_nothing_is_written_to_it(places):
    before = sorted((places / "kernels_of_wheel").rglob("*"))
    store_code(MODULE, "another", CODE)
    assert sorted((places / "kernels_of_wheel").rglob("*")) == before


def test_a_compiling_process_ignores_code_of_the_package(places):
    wheel_code.ignore_wheel_code()
    assert incomplete_modules() == list(kernel_modules())
    assert not kernel_cache.is_from_wheel()


def test_without_code_in_the_package_there_is_no_fault(places, monkeypatch):
    monkeypatch.setattr(wheel_code, "wheel_root", lambda: places / "nothing")
    assert unusable_reason() is None
    assert incomplete_modules() == list(kernel_modules())


@pytest.mark.parametrize("name", ["machine", "abi", "numba", "llvmlite"])
def test_code_for_another_environment_is_left_alone(places, name):
    rewrite(places, **{name: "another"})
    assert_left_alone(places, f"built for {name} another, running on ")


@pytest.mark.parametrize("feature", ["avx2", "bmi2", "fma", "movbe"])
def test_code_for_a_better_processor_is_left_alone(places, monkeypatch, feature):
    less = binding.FeatureMap({name: name != feature for name in NEEDED})
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: less)
    assert_left_alone(places, f"the processor lacks {feature}")


def test_code_of_other_sources_is_left_alone(places):
    digests = json.loads((places / "kernels_of_wheel" / MANIFEST).read_text())["digests"]
    del digests[directory_name(MODULE)]
    rewrite(places, digests=digests)
    assert_left_alone(places, f"the sources of {MODULE} have changed since the code was compiled")


def flip(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.parametrize(
    ("harm", "why"),
    [(flip, "some.kernel is damaged"), (Path.unlink, "unreadable: FileNotFoundError")],
)
def test_damaged_code_is_left_alone(places, harm, why):
    harm(places / "kernels_of_wheel" / directory_name(MODULE) / "some.kernel")
    assert_left_alone(places, why)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": 2}', '{"format": 1}', "\xff", " " * (1 << 20) + "{}"],
    ids=["empty", "list", "no fields", "format", "few fields", "bytes", "long"],
)
def test_an_invalid_manifest_is_left_alone(places, text):
    (places / "kernels_of_wheel" / MANIFEST).write_bytes(text.encode("latin-1"))
    assert_left_alone(places, "unreadable: ")


@pytest.mark.parametrize(
    "where", ["", MANIFEST, directory_name(MODULE), f"{directory_name(MODULE)}/some.kernel"]
)
@pytest.mark.parametrize("bits", [0o002, 0o020])
def test_code_that_more_can_write_than_the_sources_is_left_alone(places, where, bits):
    path = places / "kernels_of_wheel" / where
    assert not Path(wheel_code.__file__).stat().st_mode & bits, "the checkout is open itself"
    path.chmod(path.stat().st_mode | bits)
    assert_left_alone(places, "other users can write to ")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_code_of_a_stranger_is_left_alone(places):
    os.chown(places / "kernels_of_wheel" / directory_name(MODULE) / "some.kernel", 12_345, 0)
    assert_left_alone(places, "other users can write to ")


@pytest.mark.parametrize(
    ("variable", "value"), [("NUMBA_CPU_NAME", "generic"), ("NUMBA_BOUNDSCHECK", "1")]
)
def test_variables_for_other_code_exclude_code_of_the_package(places, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    _forget()
    assert unusable_reason() == "NUMBA_... variables request other code"
    assert not kernel_cache.is_from_wheel()


def test_variables_for_the_same_code_allow_code_of_the_package(places, monkeypatch):
    for name, value in baseline_settings() or ():
        monkeypatch.setenv(f"NUMBA_{name}", value)
    _forget()
    assert unusable_reason() is None
    assert directory_name(MODULE) == f"{MODULE}-{checksum_of(MODULE)}"
    assert incomplete_modules() == []


def test_filling_replaces_existing_code(places):
    (places / "kernels_of_wheel" / "old").mkdir()
    size = write_wheel_code(places / "made")
    assert size == len(kernel_modules()) * len(kernel_cache._encode(CODE))
    names = {path.name for path in (places / "kernels_of_wheel").iterdir()}
    assert names == {MANIFEST, *map(directory_name, kernel_modules())}
    assert not (places / "kernels_of_wheel.part").exists()
