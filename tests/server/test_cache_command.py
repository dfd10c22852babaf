"""Tests of `select-service cache clear`."""

from importlib.metadata import PackagePath
from pathlib import Path

import pytest

from indexer.jit import kernel_cache, wheel_code
from select_service.__main__ import main
from select_service.cli import cache

DIRECTORY = "indexer.hashing.xxh3_kernels-0123456789abcdef"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Move all folders of machine code below this folder."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(kernel_cache, "package_root", lambda: tmp_path / "package")
    monkeypatch.setattr(kernel_cache, "private_root", lambda: tmp_path / "private")
    monkeypatch.setattr(wheel_code, "wheel_root", lambda: tmp_path / "wheel")
    return tmp_path


def filled(root: Path) -> Path:
    (root / DIRECTORY).mkdir(parents=True, mode=0o700)
    root.chmod(0o700)
    (root / DIRECTORY / "hash_blocks.kernel").write_bytes(b"12345")
    (root / DIRECTORY / "complete").touch()
    return root


def test_all_that_was_left_is_removed(home, capsys, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(home / "given"))
    places = "given", "cache/select-service/kernels", "private", "package", "wheel"
    roots = [filled(home / place) for place in places]
    (home / "wheel" / "manifest.json").write_text("{}")
    assert main(["cache", "clear"]) == 0
    said = capsys.readouterr().out.splitlines()
    sizes = [5, 5, 5, 5, 7]
    assert said == [
        f"{size} bytes of machine code removed: {root}"
        for size, root in zip(sizes, roots, strict=True)
    ]
    assert [path.name for path in home.iterdir()] == ["cache"]
    assert list((home / "cache").iterdir()) == []


def test_an_empty_cache_is_reported(home, capsys):
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == "no machine code to remove\n"


def test_files_of_an_installation_stay(home, capsys, monkeypatch):
    (home / "wheel").mkdir()
    of_wheel = PackagePath("indexer/kernels_of_wheel/manifest.json")
    of_wheel.dist = type(
        "Dist", (), {"locate_file": lambda _, __: home / "wheel" / "manifest.json"}
    )()
    monkeypatch.setattr(cache, "files", lambda _: [of_wheel])
    assert main(["cache", "clear"]) == 0
    assert "no machine code" in capsys.readouterr().out
    assert (home / "wheel").is_dir()


def test_files_that_cannot_be_removed_are_reported_and_the_rest_goes(home, capsys):
    filled(home / "private")
    kept = filled(home / "cache/select-service/kernels") / DIRECTORY / "notes.txt"
    kept.touch()
    assert main(["cache", "clear"]) == 1
    said = capsys.readouterr()
    assert f"{kept.parent} cannot be removed: Directory not empty" in said.err
    assert not (home / "private").exists()
    assert kept.exists()


@pytest.mark.parametrize("words", [[], ["empty"], ["clear", "all"]])
def test_other_words_are_a_wrong_use(home, words):
    filled(home / "private")
    assert main(["cache", *words]) == 2
    assert (home / "private").exists()
