"""Tests of the decorator of all kernels, and of the sources that determine their machine code."""

import ast
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from numba import njit

from indexer.events.msgpack_kernels import read_int
from indexer.jit import kernel_compiler, kernel_sources
from indexer.jit.kernel_sources import import_closure, kernel_modules
from indexer.jit.machine_code import link_code

ROOT = Path(__file__).parents[2]
PACKAGES = [ROOT / "indexer", ROOT / "select_service"]
SOURCES = [path for package in PACKAGES for path in sorted(package.rglob("*.py"))]

LAYOUT = "FIRST, SECOND = {first}, {second}\n"
MIDDLE = "from indexer.layout import FIRST, SECOND\nCOLUMNS = (FIRST, SECOND)\n"
KERNEL = """\
from indexer.jit.decorators import compiled
from indexer.middle import COLUMNS

FIRST = COLUMNS[0]


@compiled()
def nth(row, column):
    return row[column]


@compiled("int64(int64[::1])")
def first(row):
    if row.shape[0] == 0:
        raise ValueError("empty")
    return nth(row, FIRST)
"""
CALL = """\
import sys
import numpy as np
from indexer.some_kernels import first
print(first(np.array([10, 20])), "numba" not in sys.modules)
"""
COPIED = (
    "__init__",
    "jit/__init__",
    "jit/decorators",
    "jit/kernel_cache",
    "jit/kernel_compiler",
    "jit/kernel_sources",
    "jit/wheel_code",
)
NO_BYTE_CODE = {"PYTHONDONTWRITEBYTECODE": "1"}
AGE_NS = 50_000_000
"""Age in ns from which a source is known to be older than a process started now."""


class Project:
    """Kernel that reads a column of a layout two imports away, run in a separate process."""

    def __init__(self, folder: Path) -> None:
        self._root, self._cache = folder / "project", folder / "cache"
        self._sources = self._root / "indexer"
        self._written_s = int(time.time()) - 1000
        (self._sources / "jit").mkdir(parents=True)
        for name in (*COPIED, "jit/machine_code"):
            shutil.copy(ROOT / "indexer" / f"{name}.py", self._sources / f"{name}.py")
        (self._sources / "middle.py").write_text(MIDDLE)
        (self._sources / "some_kernels.py").write_text(KERNEL)
        self.write_layout(0, 1)

    @property
    def layout(self) -> Path:
        return self._sources / "layout.py"

    def write_layout(self, first: int, second: int) -> None:
        """Write the layout with a new second as time, or Python would use the old byte code."""
        self.layout.write_text(LAYOUT.format(first=first, second=second))
        self._written_s += 1
        os.utime(self.layout, (self._written_s, self._written_s))

    def kernel_files(self) -> list[Path]:
        return sorted(self._cache.rglob("*.kernel"))

    def run(self, before: str = "", **more: str) -> tuple[int, bool]:
        """Return the kernel's result, and whether its code came from the cache.

        before: statements that the process executes before the import of the kernel
        """
        while time.time_ns() < self.layout.stat().st_ctime_ns + AGE_NS:
            time.sleep(AGE_NS / 1e9)
        environment = {"PYTHONPATH": str(self._root), "NUMBA_CACHE_DIR": str(self._cache), **more}
        command = [sys.executable, "-W", "ignore", "-c", before + CALL]
        done = subprocess.run(
            command,
            cwd=self._root,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        )
        value, hits = done.stdout.split()
        return int(value), hits == "True"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_a_second_process_finds_the_code(project):
    assert project.run() == (10, False)
    assert project.run() == (10, True)


def test_swapped_columns_of_a_layout_two_imports_away_do_not_hit_the_old_code(project):
    assert project.run() == (10, False)
    project.write_layout(1, 0)
    assert project.run() == (20, False)
    project.write_layout(0, 1)
    assert project.run() == (10, True)


def test_code_with_bounds_checks_is_kept_apart(project):
    assert project.run() == (10, False)
    assert project.run(NUMBA_BOUNDSCHECK="1") == (10, False)
    assert project.run() == (10, True)


def rewritten(project: Project) -> str:
    """Return statements that write the other layout."""
    return f"open({str(project.layout)!r}, 'w').write({LAYOUT.format(first=1, second=0)!r})\n"


@pytest.mark.parametrize(
    "step",
    [
        "import indexer.layout\n",
        "from indexer.jit.kernel_sources import checksum_of; checksum_of('indexer.some_kernels')\n",
        "",
    ],
    ids=["after the import", "after the checksum", "before anything is read"],
)
def test_code_of_sources_that_changed_under_the_process_is_not_kept(project, step):
    project.run(before=step + rewritten(project), **NO_BYTE_CODE)
    assert project.kernel_files() == []
    assert project.run(**NO_BYTE_CODE) == (20, False)
    assert project.run(**NO_BYTE_CODE) == (20, True)


def test_a_process_with_changed_sources_loads_no_code_of_the_new_sources(project):
    project.write_layout(1, 0)
    assert project.run(**NO_BYTE_CODE) == (20, False)
    project.write_layout(0, 1)
    change = "import indexer.layout\n" + rewritten(project)
    assert project.run(before=change, **NO_BYTE_CODE) == (10, False)


def test_code_made_from_outdated_byte_code_is_not_kept(project):
    """Python accepts byte code of a source of equal size, written in the same second."""
    status = project.layout.stat()
    stamps = status.st_atime_ns, status.st_mtime_ns
    project.run()
    (byte_code,) = (project.layout.parent / "__pycache__").glob("layout.*")
    os.utime(byte_code, ns=stamps)  # as on a machine that was fast enough
    shutil.rmtree(project.layout.parents[2] / "cache")
    project.write_layout(1, 0)
    os.utime(project.layout, ns=stamps)
    assert project.run() == (10, False), "Python no longer runs the old byte code"
    assert project.kernel_files() == []
    shutil.rmtree(project.layout.parent / "__pycache__")
    assert project.run() == (20, False)


@pytest.mark.parametrize("harm", ["empty", "short", "changed"])
def test_a_damaged_file_is_compiled_again(project, harm):
    assert project.run() == (10, False)
    (file,) = project.kernel_files()
    data = file.read_bytes()
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    file.write_bytes({"empty": b"", "short": data[:-1], "changed": flipped}[harm])
    assert project.run() == (10, False)
    assert project.run() == (10, True)


def test_loaded_code_raises_the_errors_of_the_kernel(project):
    """The process does not import numba until the error."""
    script = """\
import numpy as np
from indexer.some_kernels import first
for wrong in (np.empty(0, np.int64), np.empty(3, np.int32), None):
    try:
        first(wrong)
    except (ValueError, TypeError):
        continue
    raise AssertionError
"""
    assert project.run() == (10, False)
    assert project.run(before=script) == (10, False)


def test_with_bounds_checks_an_array_of_another_type_is_refused(project):
    wrong = "from indexer.some_kernels import first\nimport numpy as np\n{}first(np.array([1.5]))\n"
    caught = wrong.format("import contextlib\nwith contextlib.suppress(TypeError): ")
    assert project.run(before=caught, NUMBA_BOUNDSCHECK="1") == (10, False)
    with pytest.raises(subprocess.CalledProcessError):
        project.run(before=wrong.format(""), NUMBA_BOUNDSCHECK="1")


def test_a_helper_called_from_python_raises_an_error():
    with pytest.raises(TypeError, match="read_int has no signature"):
        read_int(b"", 0)


def test_a_helper_is_part_of_the_kernels_that_call_it():
    call = njit(lambda data, at: read_int(data, at)[1])
    assert call(np.array([7], np.uint8), 0) == 1


def test_nothing_else_compiles():
    users = [path for path in SOURCES if "njit" in path.read_text()]
    assert users == [ROOT / "indexer" / "jit" / "kernel_compiler.py"]


def test_every_kernel_is_in_a_module_named_for_kernels():
    found = set(kernel_modules())
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        entries = [each for each in ast.walk(tree) if _is_entry(each)]
        module = _name_of(path)
        assert (module in found) == bool(entries), module
        assert kernel_modules().get(module, 0) == len(entries), module


def _is_entry(node: ast.AST) -> bool:
    if not isinstance(node, ast.FunctionDef):
        return False
    decorators = [each for each in node.decorator_list if isinstance(each, ast.Call)]
    return any(ast.unparse(each.func) == "compiled" and each.args for each in decorators)


@pytest.mark.parametrize("module", sorted(kernel_modules()))
def test_the_closure_of_a_kernel_module_equals_its_imports(module):
    for name in import_closure(module) - {"indexer.jit.decorators", "indexer.jit.kernel_compiler"}:
        path = kernel_sources.path_of(name)
        assert path is not None
        imported = _imports(ast.parse(path.read_text()))
        assert imported <= import_closure(module), name


def _imports(tree: ast.Module) -> set[str]:
    """Return the imported modules of the project, for all forms of imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            parent = node.module or ""
            inside = {f"{parent}.{alias.name}" for alias in node.names}
            found |= {each for each in inside if _is_ours(each)} or {parent}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if _is_ours(name)}


def _is_ours(name: str) -> bool:
    return name.split(".")[0] in kernel_sources.PACKAGES and bool(kernel_sources.path_of(name))


def _name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def test_a_helper_is_compiled_once_for_all_constants():
    nth = kernel_compiler.make_helper(lambda row, column: row[column], {})

    @njit
    def sum_of_two(row: np.ndarray) -> int:
        return nth(row, 0) + nth(row, 1) + nth(row, column=2)  # type: ignore[no-any-return]

    assert sum_of_two(np.array([1, 2, 4])) == 7
    assert len(nth.signatures) == 1


def test_other_code_cannot_find_the_helpers_of_an_entry():
    """LLVM may change how helpers are called; numba code that found helpers by name crashed."""

    def halvings(number: int, unused: int) -> int:
        return 0 if number == 0 else 1 + again(number >> 1, unused)  # type: ignore[no-any-return]

    again = kernel_compiler.make_helper(halvings, {})

    def entry(number: int) -> int:
        return again(number, 7)  # type: ignore[no-any-return]

    code = kernel_compiler.compile_kernel(entry, "int64(int64)", {})
    assert f"\0{code.entry}\0".encode() in code.object_file
    assert b"\0_ZN5tests" not in code.object_file
    assert link_code(code, __name__, "entry")(10**6) == 20
    assert njit("int64(int64)")(entry)(10**6) == 20
