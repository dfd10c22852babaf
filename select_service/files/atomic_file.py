"""Atomic writing of small files, safe reading, and detection of changes by others."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, NamedTuple

PRIVATE_MODE = 0o600
"""Mode of files that only the user of the process may read and write."""
DEFAULT_MODE = 0o666
"""Mode of other files, before the umask."""
TEMPORARY_SUFFIX = ".select-service-tmp"
"""Suffix of the temporary file next to the old content.

Leftovers of a killed process are removed, so no other file may have this suffix.
"""
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class FileMarks(NamedTuple):
    """File attributes that change when a file is written or replaced."""

    inode: int
    mtime_ns: int
    size: int


def file_marks(path: Path) -> FileMarks | None:
    """Return the attributes; None if the file is missing or inaccessible.  Blocks."""
    try:
        found = path.stat()
    except OSError:
        return None
    return FileMarks(found.st_ino, found.st_mtime_ns, found.st_size)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file, or the target of a symbolic link, for reading.  Raises OSError.

    A pipe without a writer would block for ever, and opening a device can change its state, so both
    are refused without opening.
    """
    check_regular(path.stat().st_mode, path)
    # O_NONBLOCK: if the path became a pipe after the check, opening must still not block.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        # The path may have been replaced meanwhile.
        check_regular(os.fstat(descriptor).st_mode, path)
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise


def check_regular(mode: int, path: Path) -> None:
    """Raise OSError for anything but a regular file.  mode: `st_mode` of `stat`"""
    if stat.S_ISREG(mode):
        return
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
    code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
    raise OSError(code, f"not a regular file but {kind}, give a regular file", str(path))


def create_file(path: Path, mode: int | None = None) -> BinaryIO:
    """Open a new file for writing, replacing an existing one.  Raises OSError.

    mode: exact permission bits; None means the usual mode with the umask applied
    """
    path.unlink(missing_ok=True)  # never written into: the path may be a link to another file
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(path, flags, DEFAULT_MODE if mode is None else mode)
    if mode is not None:
        os.fchmod(descriptor, mode)
    return os.fdopen(descriptor, "wb")


def append_to_file(path: Path, mode: int | None = None) -> int:
    """Return a descriptor for appending to a regular file.  Raises OSError.

    mode: permission bits of a new file, as in `create_file`; an existing file keeps its own
    """
    try:
        descriptor = _open_for_writing(path, os.O_APPEND | os.O_EXCL, mode)
    except FileExistsError:
        return _open_for_writing(path, os.O_APPEND, mode)
    if mode is not None:
        os.fchmod(descriptor, mode)
    return descriptor


def _open_for_writing(path: Path, flags: int, mode: int | None) -> int:
    """Open a regular file for writing.  Raises OSError."""
    if path.exists():
        check_regular(path.stat().st_mode, path)
    flags |= os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags, DEFAULT_MODE if mode is None else mode)
    try:
        check_regular(os.fstat(descriptor).st_mode, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def write_whole(path: Path, content: bytes, mode: int | None = None) -> None:
    """Write a file atomically and sync it to disk.  Blocks.

    mode: as in `create_file`
    Raises OSError, and the old content stays.
    """
    if path.exists():
        check_regular(path.stat().st_mode, path)
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    with create_file(temporary, mode) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    # Content first, then the name: after a crash the name must never refer to half-written content.
    temporary.replace(path)
    # Without it the rename itself can be lost in a crash.
    sync_directory(path.parent)


def read_whole(path: Path, bytes_max: int) -> bytes:
    """Return the content of a file.

    Blocks.  Raises OSError, and ValueError above the size limit.
    """
    with open_regular(path) as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise ValueError(f"larger than {bytes_max} bytes")
    return content


def is_world_accessible(path: Path) -> bool:
    """Return whether any user of this machine may read or write the file.  Blocks.

    Group access is permitted: secrets of a non-root process, as in Kubernetes, belong to its group.
    """
    try:
        return bool(path.stat().st_mode & stat.S_IRWXO)
    except OSError:
        return False


def sync_directory(directory: Path) -> None:
    """Sync the entries of a directory to disk.  Blocks.  Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
