"""Locks on the files that only one process may write."""

import fcntl
import logging
import os
from pathlib import Path
from typing import IO

from select_service.whole_file import PRIVATE, append_to_file

LOCK_ENDING = ".lock"

log = logging.getLogger("select_service.files")


class FileTaken(Exception):
    """One line that says why the file is not ours to write."""


def claim_file(path: Path) -> IO[bytes]:
    """Return the lock on a file, which the caller keeps open as long as it writes the file.

    Raises FileTaken.  The lock stands in a file of its own beside it, as the file itself is
    replaced again and again.  Where the file system has no locks, nobody is kept out.
    """
    beside = path.with_name(path.name + LOCK_ENDING)
    try:
        lock = os.fdopen(append_to_file(beside, PRIVATE), "ab")
    except OSError as fault:
        raise FileTaken(f"cannot write `{beside}`: {fault.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        other = f"another process, which holds the lock `{beside}`"
        text = f"`{path}` is kept by {other}: give each process a file of its own"
        raise FileTaken(text) from None
    except OSError as fault:
        fields = {"path": str(beside), "error": str(fault)}
        log.warning("the file cannot be locked; going on without", extra={"fields": fields})
    return lock
