"""A small file that is there whole at any moment, whatever ends in the middle of writing it.

And what says that somebody else has written one.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, NamedTuple

PRIVATE = 0o600
"""Mode of files that only the user of the process reads and writes."""
USUAL = 0o666
"""Mode of other files before the umask."""
TEMPORARY_ENDING = ".select-service-tmp"
"""Of a file that is being written beside its old content.  What a killed process has left there is
removed, so nobody else's file may be called so."""
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class Marks(NamedTuple):
    """What changes when a file is written or replaced."""

    inode: int
    mtime_ns: int
    size: int


def marks_of(path: Path) -> Marks | None:
    """None: there is no such file, or it cannot be looked at.  Blocks."""
    try:
        found = path.stat()
    except OSError:
        return None
    return Marks(found.st_ino, found.st_mtime_ns, found.st_size)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file, or one that a symbolic link leads to, for reading.

    Raises OSError.  A pipe that nobody writes to would block for ever, and the opening of a device
    can change it, so both are refused unopened.
    """
    check_regular(path.stat().st_mode, path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        check_regular(os.fstat(descriptor).st_mode, path)  # it may have been replaced meanwhile
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise


def check_regular(mode: int, path: Path) -> None:
    """Raise OSError for what is no regular file.  mode: as `stat` finds it"""
    if stat.S_ISREG(mode):
        return
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
    code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
    raise OSError(code, f"it is {kind}, give a regular file", str(path))


def create_file(path: Path, mode: int | None = None) -> BinaryIO:
    """Open a new file for writing, in place of what is there.  Raises OSError.

    mode: of the file, exactly; None means what the umask leaves of the usual one
    """
    path.unlink(missing_ok=True)  # not written into: it may be a link to another file
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(path, flags, USUAL if mode is None else mode)
    if mode is not None:
        os.fchmod(descriptor, mode)
    return os.fdopen(descriptor, "wb")


def append_to_file(path: Path, mode: int | None = None) -> int:
    """Return a descriptor for adding to a regular file.  Raises OSError.

    mode: as in `create_file`, of a file that is created; that of one that is there stays
    """
    try:
        descriptor = _open_for_writing(path, os.O_APPEND | os.O_EXCL, mode)
    except FileExistsError:
        return _open_for_writing(path, os.O_APPEND, mode)
    if mode is not None:
        os.fchmod(descriptor, mode)
    return descriptor


def _open_for_writing(path: Path, flags: int, mode: int | None) -> int:
    """Raises OSError."""
    if path.exists():
        check_regular(path.stat().st_mode, path)
    flags |= os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags, USUAL if mode is None else mode)
    try:
        check_regular(os.fstat(descriptor).st_mode, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def write_whole(path: Path, content: bytes, mode: int | None = None) -> None:
    """On the disk when it returns.  Blocks.  Raises OSError, and the old content stays.

    mode: as in `create_file`
    """
    if path.exists():
        check_regular(path.stat().st_mode, path)
    temporary = path.with_name(path.name + TEMPORARY_ENDING)
    with create_file(temporary, mode) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def read_whole(path: Path, bytes_max: int) -> bytes:
    """Raises OSError, ValueError for one that is larger.  Blocks."""
    with open_regular(path) as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise ValueError(f"it is larger than {bytes_max} bytes")
    return content


def is_open_to_everybody(path: Path) -> bool:
    """May any user of this machine read or write it?  A group may: secrets that are handed to a
    process that is not root, as in Kubernetes, are its group's.  Blocks."""
    try:
        return bool(path.stat().st_mode & stat.S_IRWXO)
    except OSError:
        return False


def sync_directory(directory: Path) -> None:
    """The names in it are on the disk when it returns.  Blocks.  Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
