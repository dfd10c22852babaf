"""Whether files can be written where the settings want them, told before anything is built."""

import contextlib
import fcntl
import logging
import os
import tempfile
from pathlib import Path
from typing import IO

from select_service.settings.config import Config, ConfigError, Unusable

KEPT = "snapshot_path", "state_path"
"""Files that are read at the start and replaced again and again."""
LOGS = "audit_log", "decision_log"
"""Files that lines are added to."""

log = logging.getLogger("select_service.snapshot")


def check_written_files(config: Config) -> None:
    """Raises ConfigError.  Of what is kept nothing is left behind; logs are begun."""
    for names, error_of in ((KEPT, path_error), (LOGS, log_error)):
        for name in names:
            path = config[name]
            error = None if path is None else error_of(Path(path))
            if error is not None:
                raise ConfigError(f"{_flag(name)}: {error}")


def claims(config: Config) -> list[IO[bytes]]:
    """Locks on the files that nobody else may write, which the caller keeps open to the end of the
    process.  Raises Unusable."""
    paths = ((name, config[name]) for name in KEPT)
    return [claimed(_flag(name), Path(path)) for name, path in paths if path is not None]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def log_error(path: Path) -> str | None:
    """Why no lines can be added there; None when they can, and then the file is there."""
    try:
        path.open("ab").close()
    except OSError as error:
        return f"cannot write `{path}`: {error.strerror}"
    return None


def path_error(path: Path) -> str | None:
    """Why no file can be kept there; None when one can.  Leaves nothing behind."""
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


def claimed(flag: str, path: Path) -> IO[bytes]:
    """The lock on the file that a flag names.  Raises Unusable.

    The lock stands in a file of its own beside it, as the file itself is replaced again and again.
    Where the file system has no locks, nobody is kept out.
    """
    beside = path.with_name(path.name + ".lock")
    try:
        lock = beside.open("ab")
    except OSError as fault:
        raise Unusable(f"{flag}: cannot write `{beside}`: {fault.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        other = f"another process, which holds the lock `{beside}`"
        raise Unusable(f"{flag}: `{path}` is kept by {other}") from None
    except OSError as fault:
        fields = {"path": str(beside), "error": str(fault)}
        log.warning("the file cannot be locked; going on without", extra={"fields": fields})
    return lock
