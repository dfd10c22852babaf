"""Sources of kernels: the modules with kernels, and a checksum over everything in their machine
code.

The checksum of a module does not depend on the project's location or on file times, so that a
copy, an image or another checkout finds the machine code of equal sources.

Python reads a source once, at the import; the checksum covers the file's later content.  Both
agree only if no source changed in between, which happens when a checkout is updated under a
running process.  `matches_running_code` checks this; otherwise machine code is neither stored nor
used.
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

# Full names of modules, compared with import statements of the sources: change them together.
_DECORATOR = "indexer.jit.decorators"
_COMPILER = ["indexer.jit.kernel_compiler"]
_IMPORT = re.compile(
    r"^from ((?:indexer|select_service)[\w.]*) import (\([^)]*\)|[^\n#]*)", re.MULTILINE
)
_VERSION = re.compile(r'"version": "([^"]+)"')
_ENTRY = re.compile(r"^@compiled\((?!\)|\w+=)", re.MULTILINE)
_SETTINGS = ("CPU_NAME", "CPU_FEATURES")
"""Variables NUMBA_... that shape machine code, besides the bounds checks."""
Settings = tuple[tuple[str, str], ...]
"""Names and values of the variables that are set."""
BASELINES: dict[str, Settings] = {
    "x86_64": (("CPU_NAME", "x86-64-v3"), ("CPU_FEATURES", "")),
    "aarch64": (("CPU_NAME", "generic"), ("CPU_FEATURES", "")),
}
"""Architecture -> settings of code for all its servers: x86-64 since 2013 to 2017, any ARMv8."""
MACHINE_VARIABLE = "SELECT_SERVICE_COMPILE_FOR"
"""Environment variable with the target architecture, for compiling for another machine."""
_DIGEST_BYTES = 32
_CLOCK_NS = 10_000_000
"""Rounding error of file times and of process start times, in ns."""
_FRESH_BYTE_CODE_S = 2
"""Age in seconds below which byte code may be stale: the entry names its source by size and second
only.
"""


def _process_start_ns() -> int:
    """Return the start time of this process or an earlier time; the current time if unknown.
    [ns since 1970]
    """
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return time.time_ns()
    # Field 22 of proc(5), counted from the state, as the command may contain spaces and
    # parentheses.
    ticks = int(fields[19])
    running_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ticks * (
        1_000_000_000 // os.sysconf("SC_CLK_TCK")
    )
    return time.time_ns() - running_ns


_PROCESS_START_NS = _process_start_ns()


class _Source(NamedTuple):
    text: bytes
    digest: bytes
    stamp: tuple[int, ...]
    """fields that change with the file: inode, size, time of the last change [ns]"""


def has_bounds_checks() -> bool:
    return os.environ.get("NUMBA_BOUNDSCHECK", "") not in ("", "0")


def matches_running_code(module: str) -> bool:
    """Return whether the checksum matches both the imported code and the current files.

    True only if no source of the closure has changed since the process began.
    """
    return all(_is_unchanged(name) and _runs_from_source(name) for name in import_closure(module))


def _is_unchanged(module: str) -> bool:
    path, stamp = path_of(module), _source_of(module).stamp
    try:
        now = path and _change_stamp(path.stat())
    except OSError:
        return False
    # A change in the same clock tick as the start could have been read before or after the import.
    return now == stamp and stamp[-1] + _CLOCK_NS <= _PROCESS_START_NS


@cache
def _runs_from_source(module: str) -> bool:
    """Return whether the byte code, if there is any, was compiled from the current source."""
    path = path_of(module)
    assert path is not None
    try:
        written = os.stat(importlib.util.cache_from_source(path)).st_mtime
    except (OSError, NotImplementedError):  # without stored byte code Python runs the source
        return True
    if written > path.stat().st_mtime + _FRESH_BYTE_CODE_S:
        return True
    source = compile(_source_of(module).text, path, "exec", dont_inherit=True)
    return SourceFileLoader(module, str(path)).get_code(module) == source


@cache
def kernel_modules() -> dict[str, int]:
    """Return the modules with entries (kernels called from Python) -> number of entries."""
    found = {}
    for package in PACKAGES:
        path = path_of(package)
        for file in sorted(path.parent.rglob("*kernels.py")) if path else ():
            inside = file.relative_to(path.parent).with_suffix("") if path else file
            count = len(_ENTRY.findall(file.read_text()))
            if count:
                # Files are read as text: importing them would compile the kernels.
                found[".".join((package, *inside.parts))] = count
    return found


def target_machine() -> str:
    """Return the target architecture of machine code, as `platform.machine` names it."""
    return os.environ.get(MACHINE_VARIABLE) or platform.machine()


def is_for_another_machine() -> bool:
    return target_machine() != platform.machine()


def baseline_settings() -> Settings | None:
    """Return the settings of code for every server of the architecture; None if there are none."""
    return BASELINES.get(target_machine())


def settings_of_environment() -> Settings:
    found = ((name, os.environ.get(f"NUMBA_{name}")) for name in _SETTINGS)
    return tuple((name, value) for name, value in found if value is not None)


@cache
def checksum_of(module: str, settings: Settings | None = None) -> str:
    """Return the checksum of everything in the machine code of a module, as hexadecimal digits.

    settings: settings to compile with; None means those of the environment
    """
    given = settings_of_environment() if settings is None else settings
    checksum = hashlib.blake2b(_machine_fingerprint(given), digest_size=8)
    for name in sorted(import_closure(module)):
        # Digests, because each source is in the closures of many modules.
        checksum.update(f"\0{name}\0".encode() + _source_of(name).digest)
    return checksum.hexdigest()


@cache
def _machine_fingerprint(given: Settings) -> bytes:
    """Return everything that shapes machine code besides the sources."""
    settings = [dict(given).get(name) for name in _SETTINGS]
    host = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    processor = None if settings[0] else host
    python = *sys.version_info[:2], *sys.abiflags  # ABI flags change the layout of Python objects
    # The patch version of Python is left out: the ABI stays the same within a minor version.
    versions = _numba_version_source(), llvmlite.__version__, python
    machine = target_machine()
    return repr((versions, machine, processor, has_bounds_checks(), settings)).encode()


@cache
def _numba_version_source() -> bytes:
    """Return the source of numba's version module, without importing numba."""
    numba = importlib.util.find_spec("numba")
    assert numba is not None
    assert numba.origin is not None
    return Path(numba.origin).with_name("_version.py").read_bytes()


def numba_version() -> str:
    found = _VERSION.search(_numba_version_source().decode())
    return found[1] if found else "unknown"


def kernel_source_bytes(module: str) -> int:
    """Return the bytes of a module's kernels and helpers, a rough measure of the compile time."""
    return sum(
        len(_source_of(name).text) for name in import_closure(module) if name.endswith("kernels")
    )


@cache
def import_closure(module: str) -> set[str]:
    """Return the module and all modules of the project that it imports, directly or not."""
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
    """Return the modules of the project that a module imports.

    Of the decorator's own imports only the compiler shapes machine code.
    """
    if module in (_DECORATOR, *_COMPILER):
        return _COMPILER
    found = []
    for parent, names in _IMPORT.findall(_source_of(module).text.decode()):
        path = path_of(parent)
        if path is not None and path.name != "__init__.py":
            found.append(parent)  # a module, so that the names are none of modules
            continue
        parts = (part.split(" as ")[0].strip() for part in names.strip("()\n ").split(","))
        inside = [f"{parent}.{part}" for part in parts if part and path_of(f"{parent}.{part}")]
        found += inside or [parent]
    return found


@cache
def _source_of(module: str) -> _Source:
    path = path_of(module)
    if path is None:
        return _Source(b"", bytes(_DIGEST_BYTES), ())
    with path.open("rb") as file:
        text = file.read()
        digest = hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest()
        return _Source(text, digest, _change_stamp(os.fstat(file.fileno())))


def _change_stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_size, status.st_ctime_ns


def package_directory() -> Path:
    """Return the directory of the package `indexer`, with the folders of shipped machine code."""
    path = path_of("indexer")
    assert path is not None
    return path.parent


@cache
def path_of(module: str) -> Path | None:
    """Return the source file of a module or package of the project; None if there is none."""
    package, _, rest = module.partition(".")
    root = _package_folder(package)
    if root is None:
        return None
    path = f"{root}/{rest.replace('.', '/')}" if rest else root
    # Text, because paths as objects cost more than the rest of this at every start.
    candidates = f"{path}.py", f"{path}/__init__.py"
    return next((Path(each) for each in candidates if os.path.isfile(each)), None)


@cache
def _package_folder(package: str) -> str | None:
    """Return the folder of a top-level package; None if there is none."""
    spec = importlib.util.find_spec(package)
    return None if spec is None or spec.origin is None else os.path.dirname(spec.origin)
