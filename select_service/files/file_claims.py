"""Locks on files that only one process may write."""

import fcntl
import logging
import os
from pathlib import Path
from typing import IO

from select_service.files.atomic_file import PRIVATE_MODE, append_to_file

LOCK_ENDING = ".lock"

log = logging.getLogger("select_service.files")


class FileLocked(Exception):
    """One-line error for a file that this process may not write."""


def claim_file(path: Path) -> IO[bytes]:
    """Return the lock on a file, which the caller keeps open while writing the file.

    The lock is a separate file, since the file itself is replaced repeatedly.  On a file system
    without locks, other processes are not excluded.  Raises FileLocked.
    """
    beside = path.with_name(path.name + LOCK_ENDING)
    try:
        lock = os.fdopen(append_to_file(beside, PRIVATE_MODE), "ab")
    except OSError as fault:
        raise FileLocked(f"cannot write `{beside}`: {fault.strerror}") from None
    try:
        # flock, not lockf: released with the descriptor even after a crash, and not by closing
        # another descriptor of the file.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        other = f"another process with the lock `{beside}`"
        text = f"`{path}` is in use by {other}: give each process its own file"
        raise FileLocked(text) from None
    except OSError as fault:
        fields = {"path": str(beside), "error": str(fault)}
        log.warning("file not lockable, continuing without a lock", extra={"fields": fields})
    return lock
