"""Disk cache of machine code, safe against code of outdated sources.

Kernels share memory layouts, so stale code would corrupt memory.  The code of a module is in a
directory named after a checksum of its source, of every source of the project that it imports,
directly or not, and of everything else that shapes machine code: versions, processor, bounds
checks.  A process stores or uses code only if these are the sources it runs
(`matches_running_code`).  A
kernel is one file with a digest of its content, replaced as a whole: concurrent writers write the
code of the same sources.

Module directories are in a root.  NUMBA_CACHE_DIR sets the root; otherwise the roots are
`package_root`, beside the package, which an installer may fill; the user's cache; a private
directory in the temporary directory.  The order of preference: a root with a directory marked as
complete, even if read-only; the code shipped with the package (`wheel_code`); the first writable
root.
"""

import hashlib
import os
import re
import stat
import tempfile
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from indexer.jit import wheel_code
from indexer.jit.kernel_sources import (
    PACKAGES,
    checksum_of,
    kernel_modules,
    matches_running_code,
    package_directory,
)
from indexer.jit.machine_code import MachineCode

DIRECTORIES_MAX = 16
"""Directories per module in a root; beyond it the oldest goes."""
COMPLETE = "complete"
"""Name of an empty file, which marks that all kernels of a module are there."""

_SUFFIX = ".kernel"
_DIGEST_BYTES = 16
_FILES = re.compile(r"complete|.*\.kernel(\.tmp\.\w+)?|.*\.nb[ic]")

_OF_A_MODULE = re.compile(rf"({'|'.join(PACKAGES)})(\.\w+)+-[0-9a-f]{{8,16}}")

_watchers: list[Callable[[str], None]] = []


def find_code(module: str, kernel: str) -> MachineCode | None:
    """Return the machine code of a kernel, or None if compilation is needed."""
    directory = directory_of(module)
    if directory is None or not _is_what_runs(module):
        return None
    try:
        return _decode((directory / f"{kernel}{_SUFFIX}").read_bytes())
    except OSError:
        return None


def store_code(module: str, kernel: str, code: MachineCode) -> None:
    """Store freshly compiled machine code; a reader sees all of the file or none."""
    directory = directory_of(module)
    if directory is None or _is_wheel_directory(directory) or not _is_what_runs(module):
        return
    path = directory / f"{kernel}{_SUFFIX}"
    part = path.with_suffix(f"{_SUFFIX}.tmp.{os.getpid()}_{threading.get_ident()}")
    try:
        part.write_bytes(_encode(code))
        # Atomic: another process may load or write the same kernel at this moment.
        part.replace(path)
    except OSError:  # the disk is full, or the directory has been removed
        with suppress(OSError):
            part.unlink()


def _encode(code: MachineCode) -> bytes:
    symbols = f"{code.entry} {code.environment}\n".encode()
    return _content_digest(symbols + code.object_file) + symbols + code.object_file


def _decode(data: bytes) -> MachineCode | None:
    """Return the code in a file, or None for content that `_encode` did not make."""
    digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if digest != _content_digest(content):
        return None
    symbols, _, object_file = content.partition(b"\n")
    entry, environment = symbols.decode().split()
    return MachineCode(entry, environment, object_file)


def _content_digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


def _is_what_runs(module: str) -> bool:
    """Return `matches_running_code`, with a warning if false, as the process must then compile for
    itself.
    """
    if matches_running_code(module):
        return True
    text = (
        "kernel sources changed while this process was starting or running: its kernels are"
        " compiled but not cached; restart the process"
    )
    warnings.warn(text, RuntimeWarning, stacklevel=2)
    return False


def add_watcher(callback: Callable[[str], None]) -> None:
    """Call `seen` with the name of every kernel that becomes ready from now on."""
    _watchers.append(callback)


def report_ready(function: Callable[..., Any]) -> None:
    """Report a kernel that is ready, compiled or loaded, to the watchers."""
    for seen in _watchers:
        seen(f"{function.__module__}.{function.__name__}")


def incomplete_modules(excluded: tuple[str, ...] = ()) -> list[str]:
    """Return the modules with incomplete machine code that this process can complete.

    excluded: packages to leave out
    """
    wanted = [name for name in kernel_modules() if not name.startswith(excluded or (" ",))]
    found = ((module, directory_of(module)) for module in wanted)
    return [name for name, path in found if path and not (path / COMPLETE).is_file()]


def active_root() -> Path | None:
    """Return the root with the first module's directory; the other modules use it unless
    complete.
    """
    directory = directory_of(next(iter(kernel_modules())))
    return directory and directory.parent


def mark_complete(module: str) -> None:
    """Mark a module after its last kernel was made, and remove directories of old sources."""
    directory = directory_of(module)
    if directory is None or (directory / COMPLETE).is_file() or not _is_what_runs(module):
        return
    with suppress(OSError):  # the disk is full: the next start tries again
        if len(list(directory.glob(f"*{_SUFFIX}"))) == kernel_modules()[module]:
            (directory / COMPLETE).touch()
        _remove_outdated(directory.parent, module)


def _remove_outdated(root: Path, module: str) -> None:
    ours = re.compile(re.escape(module) + "-[0-9a-f]{8,16}")
    found = [path for path in root.iterdir() if ours.fullmatch(path.name) and not path.is_symlink()]
    found.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for directory in found[DIRECTORIES_MAX:]:
        with suppress(OSError):  # already removed by another process, or with foreign files
            _remove_directory(directory)


def _remove_directory(directory: Path) -> int:
    """Remove a module's directory and return the size of the files in bytes.

    Raises OSError, also for a directory with foreign files, which stay.
    """
    n_bytes = 0
    for file in directory.iterdir():
        if _FILES.fullmatch(file.name):
            n_bytes += file.stat().st_size
            file.unlink()
    directory.rmdir()
    return n_bytes


def user_filled_roots() -> list[Path]:
    """Return the existing roots that processes of this user fill by themselves.

    The list omits `package_root`, which an installer fills.
    """
    given, private = os.environ.get("NUMBA_CACHE_DIR"), private_root()
    roots = [*([Path(given)] if given else []), *_user_roots()]
    if private is not None and _is_private(private):
        roots.append(private)
    return [root for root in roots if root.is_dir()]


def clear_root(root: Path) -> int:
    """Remove the machine code of all modules from a root; return the number of bytes.

    Foreign files stay.  An empty root is removed, too, as is an empty folder of the user's cache
    around it.  Raises OSError.
    """
    found = [path for path in root.iterdir() if _OF_A_MODULE.fullmatch(path.name)]
    n_bytes = sum(
        _remove_directory(path) for path in found if path.is_dir() and not path.is_symlink()
    )
    with suppress(OSError):  # foreign files are left
        root.rmdir()
        if root in _user_roots():
            root.parent.rmdir()
    return n_bytes


@cache
def directory_of(module: str) -> Path | None:
    """Return the directory for the machine code of a module; None if no root is writable."""
    name = f"{module}-{checksum_of(module)}"
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given and _has_complete(Path(given), name):
        return Path(given) / name
    private = private_root()
    roots = [*_user_roots(), *([private] if private else [])]
    # Complete roots come first, then shipped code, then any writable root.
    own = next(
        (root / name for root in (package_root(), *roots) if _has_complete(root, name)), None
    )
    if own and not given:
        return own
    baseline = wheel_code.directory_of(module)
    if baseline:
        return own or baseline
    if given and _can_write(Path(given) / name):
        return Path(given) / name
    return own or next((root / name for root in roots if _can_write(root / name)), None)


def is_from_wheel() -> bool:
    """Return whether the first module runs the code shipped with the package."""
    directory = directory_of(next(iter(kernel_modules())))
    return directory is not None and _is_wheel_directory(directory)


def _is_wheel_directory(directory: Path) -> bool:
    return directory.parent == wheel_code.wheel_root()


def package_root() -> Path:
    """Return the root beside the package; written to only if NUMBA_CACHE_DIR names it."""
    return package_directory() / "kernels_of_package"


def private_root() -> Path | None:
    """Return the root of users without a home directory, which goes when temporary files go.

    None means that no temporary directory is writable, as with a read-only root file system.
    """
    try:
        return Path(tempfile.gettempdir()) / f"select-service-kernels-{os.getuid()}"
    except FileNotFoundError:
        return None


def _user_roots() -> list[Path]:
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        base = Path(home) if home else Path.home() / ".cache"
    except RuntimeError:  # the user has no home directory
        return []
    return [base / "select-service" / "kernels"]


def _has_complete(root: Path, name: str) -> bool:
    return (root / name / COMPLETE).is_file() and (root != private_root() or _is_private(root))


def _can_write(directory: Path) -> bool:
    root = directory.parent
    try:
        # Other users must not be able to put code into the private root.
        root.mkdir(parents=True, exist_ok=True, mode=0o700 if root == private_root() else 0o777)
        if root == private_root() and not _is_private(root):
            return False
        directory.mkdir(exist_ok=True)
    except OSError:
        return False
    return os.access(directory, os.W_OK | os.X_OK)


def _is_private(directory: Path) -> bool:
    """Return whether only this user can write: code runs from there, in a world-writable parent."""
    try:
        status = directory.lstat()
    except OSError:
        return False
    ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return ours and not status.st_mode & 0o077
