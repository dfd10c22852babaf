"""The decorator of all kernels and the sources that their machine code follows."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import njit

from indexer import kernel_sources
from indexer.events.msgpack_kernels import read_int
from indexer.kernel_sources import closure, kernel_modules

ROOT = Path(__file__).parents[2]
PACKAGES = [ROOT / "indexer", ROOT / "select_service"]
SOURCES = [path for package in PACKAGES for path in sorted(package.rglob("*.py"))]

LAYOUT = "FIRST, SECOND = {first}, {second}\n"
MIDDLE = "from indexer.layout import FIRST, SECOND\nCOLUMNS = (FIRST, SECOND)\n"
KERNEL = """\
from indexer.compiled import compiled
from indexer.middle import COLUMNS

FIRST = COLUMNS[0]


@compiled()
def nth(row, column):
    return row[column]


@compiled("int64(int64[::1])")
def first(row):
    return nth(row, FIRST)
"""
REPLACED = """\
from pathlib import Path
from indexer import compiled, middle
Path(middle.__file__).with_name("layout.py").write_text({layout!r})
"""
CALL = """\
import numpy as np
from indexer.some_kernels import first
print(first(np.array([10, 20])), sum(first.stats.cache_hits.values()))
"""


class Project:
    """A kernel that reads one of two columns of a layout two imports away, run by a process."""

    def __init__(self, folder: Path) -> None:
        self._root, self._cache = folder / "project", folder / "cache"
        self._sources = self._root / "indexer"
        self._sources.mkdir(parents=True)
        for name in ("__init__", "compiled", "kernel_cache", "kernel_sources"):
            shutil.copy(ROOT / "indexer" / f"{name}.py", self._sources)
        (self._sources / "middle.py").write_text(MIDDLE)
        (self._sources / "some_kernels.py").write_text(KERNEL)
        self.write_layout(0, 1)

    def write_layout(self, first: int, second: int) -> None:
        (self._sources / "layout.py").write_text(LAYOUT.format(first=first, second=second))

    def run(self, before: str = "", **more: str) -> tuple[int, bool]:
        """(what the kernel returns, whether its code came from the cache)

        before: what the process does before it imports the kernel
        """
        environment = {"PYTHONPATH": str(self._root), "NUMBA_CACHE_DIR": str(self._cache), **more}
        command = [sys.executable, "-c", before + CALL]
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
        return int(value), hits == "1"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_a_second_process_finds_the_code(project: Project) -> None:
    assert project.run() == (10, False)
    assert project.run() == (10, True)


def test_swapped_columns_of_a_layout_two_imports_away_do_not_hit_the_old_code(
    project: Project,
) -> None:
    assert project.run() == (10, False)
    project.write_layout(1, 0)
    assert project.run() == (20, False)
    project.write_layout(0, 1)
    assert project.run() == (10, True)


def test_a_process_whose_sources_are_replaced_leaves_no_code_to_others(project: Project) -> None:
    other = LAYOUT.format(first=1, second=0)
    assert project.run(REPLACED.format(layout=other)) == (10, False), "it has imported the old ones"
    assert project.run() == (20, False)
    assert project.run() == (20, True)


def test_code_with_bounds_checks_is_kept_apart(project: Project) -> None:
    assert project.run() == (10, False)
    assert project.run(NUMBA_BOUNDSCHECK="1") == (10, False)
    assert project.run() == (10, True)


def test_a_helper_called_from_python_says_that_it_has_no_entry() -> None:
    with pytest.raises(TypeError, match="read_int has no signature"):
        read_int(b"", 0)


def test_a_helper_is_part_of_the_kernels_that_call_it() -> None:
    call = njit(lambda data, at: read_int(data, at)[1])
    assert call(np.array([7], np.uint8), 0) == 1


def test_nothing_else_compiles() -> None:
    users = [path for path in SOURCES if "njit" in path.read_text()]
    assert users == [ROOT / "indexer" / "compiled.py"]


def test_every_kernel_stands_in_a_module_that_is_found_by_its_name() -> None:
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
def test_the_closure_of_a_kernel_module_is_what_python_imports(module: str) -> None:
    for name in closure(module) - {"indexer.compiled"}:
        path = kernel_sources.path_of(name)
        assert path is not None
        imported = _imports(ast.parse(path.read_text()))
        assert imported <= closure(module), name


def _imports(tree: ast.Module) -> set[str]:
    """Modules of the project, whatever the form of the import."""
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
