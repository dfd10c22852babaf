"""Tests of ahead-of-time compilation by several processes that share the modules."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from indexer.jit.parallel_compile import CompileQueue

ROOT = Path(__file__).parents[2]
MODULES = (
    "__init__",
    "jit/__init__",
    "jit/decorators",
    "jit/kernel_cache",
    "jit/kernel_compiler",
    "jit/kernel_sources",
    "jit/machine_code",
    "jit/parallel_compile",
    "jit/wheel_code",
)
AGE_NS = 50_000_000
"""Age in ns from which a source is known to be older than a process started now."""
TWICE = """\
from indexer.jit.decorators import compiled


@compiled("int64(int64)")
def twice(number):
    return 2 * number
"""
FOUR_TIMES = """\
from indexer.jit.decorators import compiled
from indexer.twice_kernels import twice


@compiled("int64(int64)")
def four_times(number):
    return twice(twice(number))
"""
WRONG = FOUR_TIMES.replace("twice(number)", "twice('number')")
RUN = """\
import sys
from indexer.jit.parallel_compile import CompileError, compile_missing
said = []
try:
    compile_missing(lambda *counts: said.append(counts), excluded=("select_service",))
except CompileError as error:
    said.append(str(error))
from indexer.twice_kernels import twice
assert twice(7) == 14
print(said, "numba" in sys.modules)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "indexer"
    (folder / "jit").mkdir(parents=True)
    for name in MODULES:
        shutil.copy(ROOT / "indexer" / f"{name}.py", folder / f"{name}.py")
    (folder / "twice_kernels.py").write_text(TWICE)
    return folder


def run(project: Path, more: str) -> str:
    source = project / "more_kernels.py"
    source.write_text(more)
    while time.time_ns() < source.stat().st_ctime_ns + AGE_NS:
        time.sleep(AGE_NS / 1e9)
    root = project.parent
    environment = {**os.environ, "PYTHONPATH": str(root), "NUMBA_CACHE_DIR": str(root / "cache")}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, "-c", RUN]
    options: Any = {"cwd": root, "env": environment, "text": True, "timeout": 300}
    said: str = subprocess.run(command, check=True, stdout=subprocess.PIPE, **options).stdout
    return said.strip()


def test_each_kernel_is_compiled_once_despite_imports(project: Path) -> None:
    assert run(project, FOUR_TIMES) == "[(0, 2), (1, 2), (2, 2)] False"
    cache = project.parent / "cache"
    assert len(list(cache.glob("*/complete"))) == 2
    assert len(list(cache.glob("*/*.kernel"))) == 2


def test_a_compilation_error_is_reported(project: Path) -> None:
    said = run(project, WRONG)
    assert "a compiler process failed" in said


class Process:
    """Process that records the lines it receives."""

    def __init__(self) -> None:
        self.stdin = self
        self.told: list[str] = []
        self.is_closed = False

    def write(self, line: str) -> None:
        self.told.append(line.strip())

    def flush(self) -> None: ...

    def close(self) -> None:
        self.is_closed = True


def test_processes_take_small_and_large_modules_from_both_ends() -> None:
    small, large = "indexer.jit.mutex_kernels", "indexer.index.store_kernels"
    last = "select_service.core.load.compiled.ledger_kernels"
    work, processes = CompileQueue([large, last, small]), [Process(), Process()]
    for number in (0, 1, 1, 0, 1):
        work.send_next(number, processes[number])  # type: ignore[arg-type]
    assert [process.told for process in processes] == [[last], [small, large]]
    assert all(process.is_closed for process in processes)
