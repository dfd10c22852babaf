"""Whether a snapshot file can be kept at a path, told before anything is built."""

import contextlib
import fcntl
import logging
import os
import tempfile
from pathlib import Path
from typing import IO

log = logging.getLogger("select_service.snapshot")


def path_error(path: Path) -> str | None:
    """Why no snapshot can be kept there; None when one can.  Leaves nothing behind."""
    directory = path.parent
    if not directory.is_dir():
        return f"there is no directory `{directory}`"
    try:
        if os.path.lexists(path) and not path.is_file():
            return f"`{path}` is no file"
        with contextlib.suppress(FileNotFoundError), path.open("rb"):
            pass
    except OSError as error:
        return f"cannot read `{path}`: {error.strerror}"
    try:
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        return f"cannot write in `{directory}`: {error.strerror}"
    return None


def claimed(path: Path) -> IO[bytes] | str:
    """The lock on the file, which the caller keeps open to the end of the process; or why no
    snapshot can be kept there.

    The lock stands in a file of its own beside it, as the snapshot itself is replaced again and
    again.  Where the file system has no locks, nobody is kept out.
    """
    error = path_error(path)
    if error is not None:
        return error
    beside = path.with_name(path.name + ".lock")
    try:
        lock = beside.open("ab")
    except OSError as fault:
        return f"cannot write `{beside}`: {fault.strerror}"
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return f"`{path}` is kept by another process, which holds the lock `{beside}`"
    except OSError as fault:
        fields = {"path": str(beside), "error": str(fault)}
        log.warning(
            "the snapshot file cannot be locked; going on without", extra={"fields": fields}
        )
    return lock
