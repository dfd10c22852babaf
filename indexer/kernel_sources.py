"""The sources of kernels: which modules have them, and what can end up in their machine code.

The checksum of a module does not depend on where the project lies or on times of files, so that a
copy, an image or another checkout finds the machine code of equal sources.

It is that of the files, and the code that of the modules as they were imported.  So a process whose
files are replaced while it runs, by an upgrade or another checkout, must keep no code any more.
"""

import importlib.util
import os
import re
import sys
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
from llvmlite import binding
from numba import config

PACKAGES = ("indexer", "select_service")

_DECORATOR = "indexer.compiled"
_IMPORT = re.compile(
    r"^from ((?:indexer|select_service)[\w.]*) import (\([^)]*\)|[^\n#]*)", re.MULTILINE
)
_ENTRY = re.compile(r"^@compiled\((?!\)|\w+=)", re.MULTILINE)
_SETTINGS: Any = config  # names that numba makes at run time


def _versions_of_files() -> dict[str, tuple[int, int]]:
    """(inode, time of the last change) of every source of the packages."""
    found = {}
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        for root in (spec and spec.submodule_search_locations) or ():
            for folder, _, files in os.walk(root):
                for path in (f"{folder}/{file}" for file in files if file.endswith(".py")):
                    found[path] = _version_of(path)
    return found


def _version_of(path: str | Path) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_ino, status.st_ctime_ns


_at_start = _versions_of_files()  # before any module with kernels is imported


def is_as_imported(module: str) -> bool:
    """Are its sources still the ones that this process has imported or will import?"""
    paths = filter(None, map(path_of, closure(module)))
    return all(_at_start.get(str(path)) == _version_of(path) for path in paths)


@cache
def kernel_modules() -> dict[str, int]:
    """Modules that hold kernels which Python calls -> how many."""
    found = {}
    for package in PACKAGES:
        path = path_of(package)
        for file in sorted(path.parent.rglob("*kernels.py")) if path else ():
            inside = file.relative_to(path.parent).with_suffix("") if path else file
            count = len(_ENTRY.findall(file.read_text()))
            if count:
                found[".".join((package, *inside.parts))] = count
    return found


@cache
def checksum_of(module: str) -> str:
    """Of all that can end up in the machine code of a module, as hexadecimal digits."""
    checksum = zlib.crc32(_machine())
    for name in sorted(closure(module)):
        checksum = zlib.crc32(_source_of(name), zlib.crc32(name.encode(), checksum))
    return f"{checksum:08x}"


@cache
def _machine() -> bytes:
    """What shapes machine code besides the sources."""
    given = _SETTINGS.CPU_NAME, _SETTINGS.CPU_FEATURES
    host = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    processor = given if given[0] else host
    versions = numba.__version__, llvmlite.__version__, sys.version_info[:2]
    return repr((versions, processor, bool(_SETTINGS.BOUNDSCHECK))).encode()


def size_of(module: str) -> int:
    """Bytes of its kernels and their helpers, a rough measure of the time that compiling takes."""
    return sum(len(_source_of(name)) for name in closure(module) if name.endswith("kernels"))


@cache
def closure(module: str) -> set[str]:
    """The module and all modules of the project that it imports, directly or not.

    What the decorator imports shapes no machine code.
    """
    found: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [] if name == _DECORATOR else _imports_of(name)
    return found


@cache
def _imports_of(module: str) -> list[str]:
    """Modules of the project that a module imports."""
    found = []
    for parent, names in _IMPORT.findall(_source_of(module).decode()):
        parts = (part.split(" as ")[0].strip() for part in names.strip("()\n ").split(","))
        inside = [f"{parent}.{part}" for part in parts if part and path_of(f"{parent}.{part}")]
        found += inside or [parent]
    return found


@cache
def _source_of(module: str) -> bytes:
    path = path_of(module)
    return b"" if path is None else path.read_bytes()


@cache
def path_of(module: str) -> Path | None:
    """Source file of a module or package of the project; None when there is none."""
    package, _, rest = module.partition(".")
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    path = root.joinpath(*rest.split(".")) if rest else root
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((each for each in candidates if each.is_file()), None)
