"""Tests of the places of the kernels' machine code, and of the removal of outdated code."""

import errno
import os
import threading
from pathlib import Path

import pytest

from indexer.jit import kernel_cache
from indexer.jit.kernel_cache import (
    DIRECTORIES_MAX,
    clear_root,
    directory_of,
    find_code,
    incomplete_modules,
    mark_complete,
    private_root,
    store_code,
    user_filled_roots,
)
from indexer.jit.kernel_sources import checksum_of, kernel_modules
from indexer.jit.machine_code import MachineCode

MODULE = "indexer.hashing.xxh3_kernels"
CODE = MachineCode("entry", "environment", b"\x7fELF of\nsomething")
NAME = f"{MODULE}-{checksum_of(MODULE)}"


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """Create a home, a package and a temporary directory, without a configured directory."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(kernel_cache.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    monkeypatch.setattr(kernel_cache, "package_root", lambda: tmp_path / "package")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    (tmp_path / "tmp").mkdir()
    directory_of.cache_clear()
    yield tmp_path
    directory_of.cache_clear()


def complete(root: Path) -> Path:
    directory = root / NAME
    directory.mkdir(parents=True)
    (directory / "complete").touch()
    return directory


def no_home(monkeypatch, places):
    """Make the home unusable: a path below a file cannot be created by any user."""
    (places / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(places / "file" / "home"))


def test_a_given_directory_goes_before_a_complete_one_elsewhere(places, monkeypatch):
    complete(places / "package")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(places / "given"))
    assert directory_of(MODULE) == places / "given" / NAME


def test_a_given_directory_that_cannot_be_used_is_passed_by(places, monkeypatch):
    (places / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(places / "file" / "given"))
    assert directory_of(MODULE) == places / "home" / "select-service" / "kernels" / NAME


def test_complete_code_beside_the_package_is_used(places):
    directory = complete(places / "package")
    assert directory_of(MODULE) == directory


def test_nothing_is_written_beside_the_package(places):
    (places / "package" / NAME).mkdir(parents=True)
    assert directory_of(MODULE) == places / "home" / "select-service" / "kernels" / NAME


def test_a_complete_directory_needs_not_be_writable(places, monkeypatch):
    directory = complete(places / "given")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(places / "given"))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert directory_of(MODULE) == directory
    assert MODULE not in incomplete_modules()


def test_without_a_home_the_code_is_kept_in_a_private_directory(places, monkeypatch):
    no_home(monkeypatch, places)
    assert directory_of(MODULE) == private_root() / NAME
    assert private_root().stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("make", ["shared", "link", "foreign"])
def test_a_temporary_directory_that_others_might_write_to_is_not_used(places, monkeypatch, make):
    no_home(monkeypatch, places)
    if make == "link":
        complete(places / "elsewhere")
        private_root().symlink_to(places / "elsewhere")
    else:
        complete(private_root())
        private_root().chmod(0o777 if make == "shared" else 0o700)
    if make == "foreign":
        real = os.getuid()
        root = private_root()
        monkeypatch.setattr(kernel_cache, "private_root", lambda: root)
        monkeypatch.setattr(os, "getuid", lambda: real + 1)
    assert directory_of(MODULE) is None
    assert MODULE not in incomplete_modules(), "there is no place where it could become complete"


def no_temporary_directory(monkeypatch):
    def none_usable():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(kernel_cache.tempfile, "gettempdir", none_usable)


def test_complete_code_is_found_without_a_temporary_directory(places, monkeypatch):
    """The file system is like a read-only root."""
    no_temporary_directory(monkeypatch)
    no_home(monkeypatch, places)
    directory = complete(places / "given")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(places / "given"))
    assert directory_of(MODULE) == directory
    assert private_root() is None


def test_without_a_home_and_a_temporary_directory_the_code_is_kept_nowhere(places, monkeypatch):
    no_temporary_directory(monkeypatch)
    no_home(monkeypatch, places)
    assert directory_of(MODULE) is None
    store_code(MODULE, "kernel", CODE)
    assert find_code(MODULE, "kernel") is None


def keep_all():
    for number in range(kernel_modules()[MODULE]):
        store_code(MODULE, f"kernel_{number}", CODE)


def test_marking_completes_a_module(places):
    assert incomplete_modules() == list(kernel_modules())
    keep_all()
    mark_complete(MODULE)
    assert MODULE not in incomplete_modules()


def test_a_module_of_which_a_kernel_could_not_be_kept_is_not_complete(places):
    store_code(MODULE, "kernel_0", CODE)
    mark_complete(MODULE)
    assert MODULE in incomplete_modules()


def test_code_is_found_as_it_was_kept(places):
    assert find_code(MODULE, "kernel_0") is None
    store_code(MODULE, "kernel_0", CODE)
    assert find_code(MODULE, "kernel_0") == CODE
    assert [path.name for path in directory_of(MODULE).iterdir()] == ["kernel_0.kernel"]


def test_a_reader_beside_many_writers_sees_whole_files_only(places):
    """The files may differ: two compilers number the same symbols differently."""
    codes = [CODE._replace(object_file=bytes([number]) * 100_000) for number in range(4)]
    store_code(MODULE, "kernel_0", codes[0])
    done = threading.Event()

    def write(code):
        while not done.is_set():
            store_code(MODULE, "kernel_0", code)

    threads = [threading.Thread(target=write, args=(code,)) for code in codes]
    for thread in threads:
        thread.start()
    found = [find_code(MODULE, "kernel_0") for _ in range(100)]
    done.set()
    for thread in threads:
        thread.join()
    assert all(code in codes for code in found)


def test_a_disk_that_is_full_leaves_nothing_behind(places, monkeypatch):
    directory = directory_of(MODULE)

    def full(path, data):
        path.touch()
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(Path, "write_bytes", full)
    store_code(MODULE, "kernel_0", CODE)
    assert list(directory.iterdir()) == []


def test_the_oldest_directories_of_a_module_go_and_nothing_else(places):
    root = places / "home" / "select-service" / "kernels"
    for age in range(DIRECTORIES_MAX + 2):
        old = root / f"{MODULE}-{age:08x}"
        old.mkdir(parents=True)
        (old / "kernels.f-k.py311.1.nbc").touch()
        os.utime(old, (1e9 - age, 1e9 - age))
    others = [
        root / "indexer.hashing.xxh3_kernels-notes",
        root / "indexer.index.store_kernels-00000000",
    ]
    for other in others:
        other.mkdir()
    foreign = root / f"{MODULE}-{DIRECTORIES_MAX:08x}" / "notes.txt"
    foreign.touch()
    os.utime(foreign.parent, (1e9 - DIRECTORIES_MAX, 1e9 - DIRECTORIES_MAX))

    keep_all()
    mark_complete(MODULE)

    left = {path.name for path in root.iterdir()}
    kept = {f"{MODULE}-{age:08x}" for age in range(DIRECTORIES_MAX - 1)}
    assert left == {NAME, *kept, foreign.parent.name, *(other.name for other in others)}
    assert foreign.exists()


def test_all_code_of_a_root_is_removed_and_the_root_with_it(places):
    keep_all()
    mark_complete(MODULE)
    (root,) = user_filled_roots()
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    assert clear_root(root) == size > 0
    assert list((places / "home").iterdir()) == []
    assert user_filled_roots() == []


def test_foreign_files_in_a_root_stay(places, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(places / "given"))
    directory_of.cache_clear()
    keep_all()
    others = [
        places / "given" / name
        for name in ("other.module-0123456789abcdef/f.kernel", "indexer/notes", "indexer-12/x.nbi")
    ]
    for path in others:
        path.parent.mkdir()
        path.touch()
    elsewhere = complete(places / "elsewhere")
    (places / "given" / "indexer.linked-0123456789abcdef").symlink_to(elsewhere)
    assert user_filled_roots() == [places / "given"]
    assert clear_root(places / "given") > 0
    assert not directory_of(MODULE).exists()
    assert all(path.exists() for path in others)
    assert (elsewhere / "complete").exists()


def test_a_module_directory_with_foreign_files_is_reported(places):
    (complete(places / "given") / "notes.txt").touch()
    with pytest.raises(OSError, match="not empty"):
        clear_root(places / "given")
    assert [path.name for path in (places / "given" / NAME).iterdir()] == ["notes.txt"]


def test_a_private_root_that_others_may_write_to_is_left_alone(places):
    private_root().mkdir(mode=0o700)
    assert user_filled_roots() == [private_root()]
    private_root().chmod(0o777)
    assert user_filled_roots() == []
