"""Whether files can be read and written where the settings want them, before anything is built."""

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from select_service.file_claims import LOCK_ENDING, FileTaken, claim_file
from select_service.kept_formats import (
    HEALTH,
    POLICIES,
    POLICIES_ENDING,
    STATE,
    is_kept,
    is_snapshot,
)
from select_service.numbered_files import FILES_MAX, append_lines, looks_like_lines
from select_service.settings.config import Config, ConfigError, Unusable
from select_service.whole_file import TEMPORARY_ENDING, open_regular


class Written(NamedTuple):
    """What a process writes on behalf of one setting.

    endings: of the files besides the one that the setting names
    is_ours: whether such a file may be replaced, or added to;  of: what it is called
    """

    endings: tuple[str, ...]
    is_ours: Callable[[Path], bool]
    of: str


_REFUSED = (".refused", *(f".refused.{number}" for number in range(2, 9)))
_ASIDE = (TEMPORARY_ENDING, LOCK_ENDING, *_REFUSED)
_NUMBERED = (LOCK_ENDING, *(f".{number}" for number in range(1, FILES_MAX)))
KEPT = {
    "snapshot_path": Written(
        (*_ASIDE, *(POLICIES_ENDING + each for each in ("", *_ASIDE))), is_snapshot, "snapshot"
    ),
    "state_path": Written(_ASIDE, lambda path: is_kept(path, STATE), "state file"),
    "health_state": Written(_ASIDE, lambda path: is_kept(path, HEALTH), "health file"),
}
"""Files that are read at the start and replaced again and again."""
LOGS = {
    "audit_log": Written(_NUMBERED, looks_like_lines, "file of JSON lines"),
    "decision_log": Written(_NUMBERED, looks_like_lines, "file of JSON lines"),
}
"""Files that lines are added to."""
WRITTEN = KEPT | LOGS
READ = (
    *("api_keys_file", "peer_api_key_file", "engine_curve_key_file"),
    *("tls_cert", "tls_key", "tls_client_ca", "tls_ca", "tls_client_cert", "tls_client_key"),
    *("workers_file", "discovery_config", "policy_config", "canary_config", "slo"),
    *("replica_key_file", "replica_keys_file"),
)
"""Settings that name files which are only read."""


def check_written_files(config: Config) -> None:
    """Raises ConfigError.  Of what is kept nothing is left behind; logs are begun."""
    _check_distinct(config)
    for name in WRITTEN:
        if config[name] is None:
            continue
        path = Path(config[name])
        error = path_error(path, KEPT[name]) if name in KEPT else log_error(path, _mode(config))
        if error is None and name == "snapshot_path":
            error = _policies_error(path)
        if error is not None:
            raise ConfigError(f"{_flag(name)}: {error}")


def claims(config: Config) -> list[IO[bytes]]:
    """Locks on the files that nobody else may write, which the caller keeps open to the end of the
    process.  Raises Unusable."""
    return [claimed(_flag(n), Path(config[n])) for n in WRITTEN if config[n] is not None]


def claimed(flag: str, path: Path) -> IO[bytes]:
    """The lock on the file that a flag names.  Raises Unusable."""
    try:
        return claim_file(path)
    except FileTaken as fault:
        raise Unusable(f"{flag}: {fault}") from None


def _check_distinct(config: Config) -> None:
    """Raise ConfigError for two settings of one file, if one of them writes it."""
    written = [name for name in WRITTEN if config[name] is not None]
    read = [name for name in READ if config[name] is not None]
    for one, other in itertools.combinations([*written, *read], 2):
        if one in written and (path := _shared(_paths(config, one), _paths(config, other))):
            raise ConfigError(
                f"{_flag(one)} and {_flag(other)} both mean `{path}`: give each a file of its own"
            )


def _paths(config: Config, name: str) -> list[Path]:
    """All files that the setting stands for."""
    path = Path(config[name])
    endings = WRITTEN[name].endings if name in WRITTEN else ()
    return [path, *(path.with_name(path.name + each) for each in endings)]


def _shared(ours: list[Path], others: list[Path]) -> Path | None:
    """Return a file of the first that is one of the second, under whatever name, or None."""
    known = {mark for path in others for mark in _marks(path)}
    return next((path for path in ours if not known.isdisjoint(_marks(path))), None)


def _marks(path: Path) -> Iterator[object]:
    """What two names of one file have in common."""
    yield path.resolve()
    try:
        found = path.stat()
    except OSError:
        return
    yield found.st_dev, found.st_ino


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _mode(config: Config) -> int:
    return int(config["file_mode"], 8)


def log_error(path: Path, mode: int) -> str | None:
    """Why no lines can be added there; None when they can, and then the file is there."""
    try:
        os.close(append_lines(path, mode))
    except OSError as error:
        return f"cannot write `{path}`: {error.strerror}"
    return None


def _policies_error(snapshot: Path) -> str | None:
    path = snapshot.with_name(snapshot.name + POLICIES_ENDING)
    return path_error(path, Written((), lambda each: is_kept(each, POLICIES), "file of policies"))


def path_error(path: Path, written: Written) -> str | None:
    """Why no file can be kept there; None when one can.  Leaves nothing behind."""
    directory = path.parent
    if not directory.is_dir():
        return f"there is no directory `{directory}`"
    try:
        if os.path.lexists(path):
            with open_regular(path) as file:
                is_empty = not file.read(1)
            if not is_empty and not written.is_ours(path):
                return f"`{path}` is no {written.of} of ours and would be lost: name another file"
    except OSError as error:
        return f"cannot use `{path}`: {error.strerror}"
    try:
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        return f"cannot write in `{directory}`: {error.strerror}"
    return None
