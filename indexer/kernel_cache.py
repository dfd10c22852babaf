"""Where the machine code of kernels lies, and how it can never be that of outdated sources.

Numba keeps machine code by the file of the called function alone: it does not notice that a helper
or a constant in another file has changed, and kernels share memory layouts, so stale code would
corrupt them.  Here the code of a module lies in a directory named after a checksum of its source,
of every source of the project that it imports, directly or not, and of what else shapes machine
code: versions, processor, bounds checks.

Such directories stand in a root.  NUMBA_CACHE_DIR is the root when it is given; otherwise these are
looked at: `package_root`, beside the package, which an installer may fill; the user's cache; a
private directory under the temporary one.  A root whose directory is marked complete is taken, also
when it cannot be written to; otherwise the first that can.
"""

import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from numba import config
from numba.core.caching import _CacheLocator

from indexer.kernel_sources import checksum_of, is_as_imported, kernel_modules

KEPT_MAX = 16
"""Directories of one module in one root, of which the oldest go when there is a new one."""
COMPLETE = "complete"
"""An empty file beside the machine code of a module once all its kernels are there."""

_FILES = re.compile(r"complete|.*\.nb[ic](\.tmp\.\w+)?")
_SETTINGS: Any = config  # names that numba makes at run time

_watchers: list[Callable[[str], None]] = []


@contextmanager
def locating(module: str) -> Iterator[bool]:
    """Numba looks for the kernels of this module in their directory; False: there is none, or
    its name would be wrong."""
    is_kept = directory_of(module) is not None and is_as_imported(module)
    others = _SETTINGS.CACHE_LOCATOR_CLASSES
    _SETTINGS.CACHE_LOCATOR_CLASSES = f"{__name__}.{KernelCacheLocator.__name__}"
    try:
        yield is_kept
    finally:
        _SETTINGS.CACHE_LOCATOR_CLASSES = others


class KernelCacheLocator(_CacheLocator):
    """Tells numba where the machine code of a kernel lies."""

    def __init__(self, module: str) -> None:
        self._checksum = checksum_of(module)
        self._path = str(directory_of(module))

    def get_cache_path(self) -> str:
        return self._path

    def get_source_stamp(self) -> str:
        return self._checksum

    def get_disambiguator(self) -> str:
        return "k"

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> "KernelCacheLocator":
        return cls(py_func.__module__)


def watch(seen: Callable[[str], None]) -> None:
    """Call `seen` with the name of every kernel that is ready from now on."""
    _watchers.append(seen)


def made(function: Callable[..., Any]) -> None:
    """A kernel is ready, compiled or loaded."""
    for seen in _watchers:
        seen(f"{function.__module__}.{function.__name__}")


def incomplete() -> list[str]:
    """Kernel modules whose machine code is not all there, but could be."""
    found = ((module, directory_of(module)) for module in kernel_modules())
    return [name for name, path in found if path and not (path / COMPLETE).is_file()]


def root() -> Path | None:
    """Where the first module's directory stands; the others are kept there too unless complete."""
    directory = directory_of(next(iter(kernel_modules())))
    return directory and directory.parent


def mark_complete(module: str) -> None:
    """All kernels of the module have been made; directories of old sources go."""
    directory = directory_of(module)
    if directory is None or (directory / COMPLETE).is_file() or not is_as_imported(module):
        return
    with suppress(OSError):  # a disk that is full just now: the next start looks again
        (directory / COMPLETE).touch()
        _prune(directory.parent, module)


def _prune(root: Path, module: str) -> None:
    ours = re.compile(re.escape(module) + "-[0-9a-f]{8}")
    found = [path for path in root.iterdir() if ours.fullmatch(path.name) and not path.is_symlink()]
    found.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for directory in found[KEPT_MAX:]:
        with suppress(OSError):  # another process is faster, or somebody else keeps files there
            for file in directory.iterdir():
                if _FILES.fullmatch(file.name):
                    file.unlink()
            directory.rmdir()


@cache
def directory_of(module: str) -> Path | None:
    """Where the machine code of a module is or will be; None when no place can be written to."""
    name = f"{module}-{checksum_of(module)}"
    given = _SETTINGS.CACHE_DIR
    if given and (_holds(Path(given), name) or _can_write(Path(given) / name)):
        return Path(given) / name
    roots = [*_user_roots(), private_root()]
    for root in (package_root(), *roots):
        if _holds(root, name):
            return root / name
    return next((root / name for root in roots if _can_write(root / name)), None)


def package_root() -> Path:
    """Beside the package; only written to when it is the root that was given."""
    return Path(__file__).parent / "kernels_of_package"


def private_root() -> Path:
    """For users without a home directory; gone when temporary files go."""
    return Path(tempfile.gettempdir()) / f"select-service-kernels-{os.getuid()}"


def _user_roots() -> list[Path]:
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        base = Path(home) if home else Path.home() / ".cache"
    except RuntimeError:  # no home directory is known
        return []
    return [base / "select-service" / "kernels"]


def _holds(root: Path, name: str) -> bool:
    return (root / name / COMPLETE).is_file() and (root != private_root() or _is_private(root))


def _can_write(directory: Path) -> bool:
    root = directory.parent
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700 if root == private_root() else 0o777)
        if root == private_root() and not _is_private(root):
            return False
        directory.mkdir(exist_ok=True)
    except OSError:
        return False
    return os.access(directory, os.W_OK | os.X_OK)


def _is_private(directory: Path) -> bool:
    """Is it ours alone?  Code is run from there, and anybody may write to the temporary one."""
    try:
        status = directory.lstat()
    except OSError:
        return False
    ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return ours and not status.st_mode & 0o077
