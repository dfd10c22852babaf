"""A small file that is there whole at any moment, whatever ends in the middle of writing it.

And what says that somebody else has written one.
"""

import os
import stat
from pathlib import Path
from typing import NamedTuple


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


def write_whole(path: Path, content: bytes) -> None:
    """On the disk when it returns.  Blocks.  Raises OSError, and the old content stays."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def read_whole(path: Path, bytes_max: int) -> bytes:
    """Raises OSError, ValueError for one that is larger.  Blocks."""
    with path.open("rb") as file:
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
