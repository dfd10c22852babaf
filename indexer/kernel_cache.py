"""Where the machine code of kernels lies, and how it can never be that of outdated sources.

Kernels share memory layouts, so stale code would corrupt memory.  The code of a module lies in a
directory named after a checksum of its source, of every source of the project that it imports,
directly or not, and of what else shapes machine code: versions, processor, bounds checks.  A
process keeps or takes code only if those are the sources that it runs (`is_what_runs`).  A kernel
is one file with a digest of its content, replaced as a whole: whoever writes at the same time
writes the code of the same sources.

Such directories stand in a root.  NUMBA_CACHE_DIR is the root when it is given; otherwise these are
looked at: `package_root`, beside the package, which an installer may fill; the user's cache; a
private directory under the temporary one.  A root whose directory is marked complete is taken, also
when it cannot be written to; otherwise the code that came with the package, for any processor
(`kernel_baseline`); otherwise the first root that can be written to.
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

from indexer import kernel_baseline
from indexer.kernel_sources import PACKAGES, checksum_of, is_what_runs, kernel_modules
from indexer.machine_code import MachineCode

KEPT_MAX = 16
"""Directories of one module in one root, of which the oldest go when there is a new one."""
COMPLETE = "complete"
"""An empty file beside the machine code of a module once all its kernels are there."""

_SUFFIX = ".kernel"
_DIGEST_BYTES = 16
_FILES = re.compile(r"complete|.*\.kernel(\.tmp\.\w+)?|.*\.nb[ic]")

_OF_A_MODULE = re.compile(rf"({'|'.join(PACKAGES)})(\.\w+)+-[0-9a-f]{{8,16}}")

_watchers: list[Callable[[str], None]] = []


def find(module: str, kernel: str) -> MachineCode | None:
    """The machine code of a kernel; None where it must be compiled."""
    directory = directory_of(module)
    if directory is None or not _is_what_runs(module):
        return None
    try:
        return _decoded((directory / f"{kernel}{_SUFFIX}").read_bytes())
    except OSError:
        return None


def keep(module: str, kernel: str, code: MachineCode) -> None:
    """Write the machine code that was just compiled; a reader sees all of it or none."""
    directory = directory_of(module)
    if directory is None or _is_of_package(directory) or not _is_what_runs(module):
        return
    path = directory / f"{kernel}{_SUFFIX}"
    part = path.with_suffix(f"{_SUFFIX}.tmp.{os.getpid()}_{threading.get_ident()}")
    try:
        part.write_bytes(_encoded(code))
        part.replace(path)
    except OSError:  # a disk that is full just now, or a directory that has gone
        with suppress(OSError):
            part.unlink()


def _encoded(code: MachineCode) -> bytes:
    symbols = f"{code.entry} {code.environment}\n".encode()
    return _digest(symbols + code.object_file) + symbols + code.object_file


def _decoded(data: bytes) -> MachineCode | None:
    """None for a file that is not what `_encoded` made."""
    digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if digest != _digest(content):
        return None
    symbols, _, object_file = content.partition(b"\n")
    entry, environment = symbols.decode().split()
    return MachineCode(entry, environment, object_file)


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


def _is_what_runs(module: str) -> bool:
    """Warns, once, of a process that must compile for itself."""
    if is_what_runs(module):
        return True
    text = (
        "sources of kernels changed while this process was starting or running: it compiles what it"
        " imported and keeps none of it; start it again"
    )
    warnings.warn(text, RuntimeWarning, stacklevel=2)
    return False


def watch(seen: Callable[[str], None]) -> None:
    """Call `seen` with the name of every kernel that is ready from now on."""
    _watchers.append(seen)


def made(function: Callable[..., Any]) -> None:
    """A kernel is ready, compiled or loaded."""
    for seen in _watchers:
        seen(f"{function.__module__}.{function.__name__}")


def incomplete(without: tuple[str, ...] = ()) -> list[str]:
    """Kernel modules whose machine code is not all there, but could be.

    without: packages of which none is wanted
    """
    wanted = [name for name in kernel_modules() if not name.startswith(without or (" ",))]
    found = ((module, directory_of(module)) for module in wanted)
    return [name for name, path in found if path and not (path / COMPLETE).is_file()]


def root() -> Path | None:
    """Where the first module's directory stands; the others are kept there too unless complete."""
    directory = directory_of(next(iter(kernel_modules())))
    return directory and directory.parent


def mark_complete(module: str) -> None:
    """All kernels of the module have been made; directories of old sources go."""
    directory = directory_of(module)
    if directory is None or (directory / COMPLETE).is_file() or not _is_what_runs(module):
        return
    with suppress(OSError):  # a disk that is full just now: the next start looks again
        if len(list(directory.glob(f"*{_SUFFIX}"))) == kernel_modules()[module]:
            (directory / COMPLETE).touch()
        _prune(directory.parent, module)


def _prune(root: Path, module: str) -> None:
    ours = re.compile(re.escape(module) + "-[0-9a-f]{8,16}")
    found = [path for path in root.iterdir() if ours.fullmatch(path.name) and not path.is_symlink()]
    found.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for directory in found[KEPT_MAX:]:
        with suppress(OSError):  # another process is faster, or somebody else keeps files there
            _remove(directory)


def _remove(directory: Path) -> int:
    """Remove a module's directory and return the bytes of its files.

    Raises OSError, also where it has files that are not ours: they stay.
    """
    n_bytes = 0
    for file in directory.iterdir():
        if _FILES.fullmatch(file.name):
            n_bytes += file.stat().st_size
            file.unlink()
    directory.rmdir()
    return n_bytes


def filled_roots() -> list[Path]:
    """Return the roots that are there and that processes of this user fill by themselves.

    Without that of `package_root`: an installer fills it.
    """
    given, private = os.environ.get("NUMBA_CACHE_DIR"), private_root()
    roots = [*([Path(given)] if given else []), *_user_roots()]
    if private is not None and _is_private(private):
        roots.append(private)
    return [root for root in roots if root.is_dir()]


def clear(root: Path) -> int:
    """Remove the machine code of all modules from a root; return its bytes.

    Of a root that others use as well only what is ours is removed.  The root itself goes once it is
    empty, and so does the folder of the user's cache around it.  Raises OSError.
    """
    found = [path for path in root.iterdir() if _OF_A_MODULE.fullmatch(path.name)]
    n_bytes = sum(_remove(path) for path in found if path.is_dir() and not path.is_symlink())
    with suppress(OSError):  # others keep files there
        root.rmdir()
        if root in _user_roots():
            root.parent.rmdir()
    return n_bytes


@cache
def directory_of(module: str) -> Path | None:
    """Where the machine code of a module is or will be; None when no place can be written to."""
    name = f"{module}-{checksum_of(module)}"
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given and _holds(Path(given), name):
        return Path(given) / name
    private = private_root()
    roots = [*_user_roots(), *([private] if private else [])]
    own = next((root / name for root in (package_root(), *roots) if _holds(root, name)), None)
    if own and not given:
        return own
    baseline = kernel_baseline.directory_of(module)
    if baseline:
        return own or baseline
    if given and _can_write(Path(given) / name):
        return Path(given) / name
    return own or next((root / name for root in roots if _can_write(root / name)), None)


def is_baseline() -> bool:
    """Is the machine code of the first module that for any processor, of the package?"""
    directory = directory_of(next(iter(kernel_modules())))
    return directory is not None and _is_of_package(directory)


def _is_of_package(directory: Path) -> bool:
    return directory.parent == kernel_baseline.root()


def package_root() -> Path:
    """Beside the package; only written to when it is the root that was given."""
    return Path(__file__).parent / "kernels_of_package"


def private_root() -> Path | None:
    """Return the root of users without a home directory, which goes when temporary files go.

    None means that no temporary directory can be written to, as with a read-only root file system.
    """
    try:
        return Path(tempfile.gettempdir()) / f"select-service-kernels-{os.getuid()}"
    except FileNotFoundError:
        return None


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
