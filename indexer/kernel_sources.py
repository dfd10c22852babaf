"""The sources of kernels: which modules have them, and what can end up in their machine code.

The checksum of a module does not depend on where the project lies or on times of files, so that a
copy, an image or another checkout finds the machine code of equal sources.

Python itself reads a source once, at the import; the checksum is of what stands there later.  The
two are the same thing only when no source changed in between, as a checkout does that is updated
under a running process.  `is_what_runs` says so; machine code is neither kept nor used otherwise.
"""

import hashlib
import importlib.util
import os
import platform
import re
import sys
import time
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import NamedTuple

import llvmlite
from llvmlite import binding

PACKAGES = ("indexer", "select_service")

_DECORATOR = "indexer.compiled"
_COMPILER = ["indexer.kernel_compiler"]
_IMPORT = re.compile(
    r"^from ((?:indexer|select_service)[\w.]*) import (\([^)]*\)|[^\n#]*)", re.MULTILINE
)
_VERSION = re.compile(r'"version": "([^"]+)"')
_ENTRY = re.compile(r"^@compiled\((?!\)|\w+=)", re.MULTILINE)
_SETTINGS = ("CPU_NAME", "CPU_FEATURES")
"""Variables NUMBA_... that shape machine code, besides the bounds checks."""
Settings = tuple[tuple[str, str], ...]
"""Those that are set, with their values."""
BASELINES: dict[str, Settings] = {
    "x86_64": (("CPU_NAME", "x86-64-v3"), ("CPU_FEATURES", "")),
    "aarch64": (("CPU_NAME", "generic"), ("CPU_FEATURES", "")),
}
"""Architecture -> settings of code for all its servers: x86-64 since 2013 to 2017, any ARMv8."""
MACHINE_VARIABLE = "SELECT_SERVICE_COMPILE_FOR"
"""The architecture that is compiled for, where it is another one than that of this machine."""
_CLOCK_NS = 10_000_000
"""Times of files and of the begin of a process are rounded down by up to this much."""
_YOUNG_S = 2
"""Byte code names its source by size and second: written so soon, it may be of an older source."""


def _begun_ns() -> int:
    """When this process began, or earlier; where the system does not tell, now.  [ns since 1970]"""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return time.time_ns()
    ticks = int(fields[19])
    running_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ticks * (
        1_000_000_000 // os.sysconf("SC_CLK_TCK")
    )
    return time.time_ns() - running_ns


_BEGUN_NS = _begun_ns()


class _Source(NamedTuple):
    text: bytes
    stamp: tuple[int, ...]
    """what changes with every change of the file: inode, size, time of the last change [ns]"""


def with_bounds_checks() -> bool:
    return os.environ.get("NUMBA_BOUNDSCHECK", "") not in ("", "0")


def is_what_runs(module: str) -> bool:
    """Is the checksum that of the code which this process imported, and still that of the files?

    True only when no source of the closure has changed since the process began.
    """
    return all(_is_as_read(name) and _runs_from_source(name) for name in closure(module))


def _is_as_read(module: str) -> bool:
    path, (_, stamp) = path_of(module), _source_of(module)
    try:
        now = path and _stamp(path.stat())
    except OSError:
        return False
    return now == stamp and stamp[-1] + _CLOCK_NS <= _BEGUN_NS


@cache
def _runs_from_source(module: str) -> bool:
    """Is the byte code, if there is any, that of the source?"""
    path = path_of(module)
    assert path is not None
    try:
        written = os.stat(importlib.util.cache_from_source(path)).st_mtime
    except (OSError, NotImplementedError):  # no byte code is kept: the source is what runs
        return True
    if written > path.stat().st_mtime + _YOUNG_S:
        return True
    source = compile(_source_of(module).text, path, "exec", dont_inherit=True)
    return SourceFileLoader(module, str(path)).get_code(module) == source


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


def target_machine() -> str:
    """Return the architecture whose machine code is wanted, as `platform.machine` names it."""
    return os.environ.get(MACHINE_VARIABLE) or platform.machine()


def is_for_another_machine() -> bool:
    return target_machine() != platform.machine()


def baseline() -> Settings | None:
    """Return the settings of code for every server of the architecture; None: it has none."""
    return BASELINES.get(target_machine())


def settings_of_environment() -> Settings:
    found = ((name, os.environ.get(f"NUMBA_{name}")) for name in _SETTINGS)
    return tuple((name, value) for name, value in found if value is not None)


@cache
def checksum_of(module: str, settings: Settings | None = None) -> str:
    """Of all that can end up in the machine code of a module, as hexadecimal digits.

    settings: those it would be compiled with, instead of the environment's
    """
    given = settings_of_environment() if settings is None else settings
    checksum = hashlib.blake2b(_machine(given), digest_size=8)
    for name in sorted(closure(module)):
        text = _source_of(name).text
        checksum.update(f"\0{name} {len(text)}\0".encode() + text)
    return checksum.hexdigest()


@cache
def _machine(given: Settings) -> bytes:
    """What shapes machine code besides the sources."""
    settings = [dict(given).get(name) for name in _SETTINGS]
    host = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    processor = None if settings[0] else host
    python = *sys.version_info[:2], *sys.abiflags  # flags: another layout of objects
    versions = _statement_of_numba(), llvmlite.__version__, python
    machine = target_machine()
    return repr((versions, machine, processor, with_bounds_checks(), settings)).encode()


@cache
def _statement_of_numba() -> bytes:
    """Of its version, without importing it."""
    numba = importlib.util.find_spec("numba")
    assert numba is not None
    assert numba.origin is not None
    return Path(numba.origin).with_name("_version.py").read_bytes()


def version_of_numba() -> str:
    found = _VERSION.search(_statement_of_numba().decode())
    return found[1] if found else "unknown"


def size_of(module: str) -> int:
    """Bytes of its kernels and their helpers, a rough measure of the time that compiling takes."""
    return sum(len(_source_of(name).text) for name in closure(module) if name.endswith("kernels"))


@cache
def closure(module: str) -> set[str]:
    """The module and all modules of the project that it imports, directly or not."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _imports_of(name)
    return found


@cache
def _imports_of(module: str) -> list[str]:
    """Modules of the project that a module imports.

    Of what the decorator needs only the compiler shapes machine code.
    """
    if module in (_DECORATOR, *_COMPILER):
        return _COMPILER
    found = []
    for parent, names in _IMPORT.findall(_source_of(module).text.decode()):
        parts = (part.split(" as ")[0].strip() for part in names.strip("()\n ").split(","))
        inside = [f"{parent}.{part}" for part in parts if part and path_of(f"{parent}.{part}")]
        found += inside or [parent]
    return found


@cache
def _source_of(module: str) -> _Source:
    path = path_of(module)
    if path is None:
        return _Source(b"", ())
    with path.open("rb") as file:
        return _Source(file.read(), _stamp(os.fstat(file.fileno())))


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_size, status.st_ctime_ns


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
