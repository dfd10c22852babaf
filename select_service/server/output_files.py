"""Check that configured files are readable and writable, before anything is built."""

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from select_service.config.settings_loader import Config, ConfigError, UnusableSetting
from select_service.files.atomic_file import TEMPORARY_SUFFIX, open_regular
from select_service.files.file_claims import LOCK_ENDING, FileLocked, claim_file
from select_service.files.persisted_formats import (
    HEALTH,
    POLICIES,
    POLICIES_SUFFIX,
    SESSIONS,
    SESSIONS_SUFFIX,
    STATE,
    PersistedFormat,
    is_persisted_format,
    is_snapshot,
)
from select_service.files.rotating_file import FILES_MAX, looks_like_lines, open_for_lines


class OutputFiles(NamedTuple):
    """Files that a process writes for a setting.

    endings: suffixes of further files next to the configured one
    is_ours: function that returns whether such a file may be replaced or extended
    of: kind of the file in messages
    """

    suffixes: tuple[str, ...]
    is_ours: Callable[[Path], bool]
    kind: str


_REFUSED = (".refused", *(f".refused.{number}" for number in range(2, 9)))
_ASIDE = (TEMPORARY_SUFFIX, LOCK_ENDING, *_REFUSED)
_NUMBERED = (LOCK_ENDING, *(f".{number}" for number in range(1, FILES_MAX)))
PERSISTED_FILES = {
    "snapshot_path": OutputFiles(
        (*_ASIDE, *(POLICIES_SUFFIX + each for each in ("", *_ASIDE))), is_snapshot, "snapshot"
    ),
    "state_path": OutputFiles(
        (*_ASIDE, *(SESSIONS_SUFFIX + each for each in ("", *_ASIDE))),
        lambda path: is_persisted_format(path, STATE),
        "state file",
    ),
    "health_state": OutputFiles(
        _ASIDE, lambda path: is_persisted_format(path, HEALTH), "health file"
    ),
}
"""Files that are read at the start and rewritten repeatedly, by setting."""
_COMPANIONS = {
    "snapshot_path": (POLICIES_SUFFIX, POLICIES, "file of policies"),
    "state_path": (SESSIONS_SUFFIX, SESSIONS, "file of sessions"),
}
"""Files beside the configured ones: suffix, format and kind."""
LOG_FILES = {
    "audit_log": OutputFiles(_NUMBERED, looks_like_lines, "file of JSON lines"),
    "decision_log": OutputFiles(_NUMBERED, looks_like_lines, "file of JSON lines"),
}
"""Files to which lines are appended, by setting."""
OUTPUT_FILES = PERSISTED_FILES | LOG_FILES
READ_ONLY_SETTINGS = (
    *("api_keys_file", "peer_api_key_file", "engine_curve_key_file"),
    *("tls_cert", "tls_key", "tls_client_ca", "tls_ca", "tls_client_cert", "tls_client_key"),
    *("workers_file", "discovery_config", "policy_config", "canary_config", "slo"),
    *("replica_key_file", "replica_keys_file", "shared_caches"),
)
"""Settings of files that are only read."""


def check_written_files(config: Config) -> None:
    """Check all files.  Log files are created; nothing else is left behind.  Raises ConfigError."""
    _check_distinct(config)
    for name in OUTPUT_FILES:
        if config[name] is None:
            continue
        path = Path(config[name])
        error = (
            persisted_path_error(path, PERSISTED_FILES[name])
            if name in PERSISTED_FILES
            else log_path_error(path, config.created_file_mode)
        )
        if error is None and name in _COMPANIONS:
            error = _companion_error(path, *_COMPANIONS[name])
        if error is not None:
            raise ConfigError(f"{_flag_name(name)}: {error}")


def claim_output_files(config: Config) -> list[IO[bytes]]:
    """Return locks on all written files, which the caller keeps until exit.  Raises Unusable."""
    return [
        claim_flag_file(_flag_name(n), Path(config[n]))
        for n in OUTPUT_FILES
        if config[n] is not None
    ]


def claim_flag_file(flag: str, path: Path) -> IO[bytes]:
    """Return the lock on the file of a flag.  Raises Unusable."""
    try:
        return claim_file(path)
    except FileLocked as fault:
        raise UnusableSetting(f"{flag}: {fault}") from None


def _check_distinct(config: Config) -> None:
    """Raise ConfigError for two settings with the same file, if one of them writes the file."""
    written = [name for name in OUTPUT_FILES if config[name] is not None]
    read = [name for name in READ_ONLY_SETTINGS if config[name] is not None]
    for one, other in itertools.combinations([*written, *read], 2):
        if one in written and (
            path := _shared_path(_setting_paths(config, one), _setting_paths(config, other))
        ):
            raise ConfigError(
                f"{_flag_name(one)} and {_flag_name(other)} both use `{path}`: "
                "give each its own file"
            )


def _setting_paths(config: Config, name: str) -> list[Path]:
    """Return all files of a setting."""
    path = Path(config[name])
    endings = OUTPUT_FILES[name].suffixes if name in OUTPUT_FILES else ()
    return [path, *(path.with_name(path.name + each) for each in endings)]


def _shared_path(ours: list[Path], others: list[Path]) -> Path | None:
    """Return the first of the own files that is among the others under any name, or None."""
    # Paths and inodes: hard links and symbolic links name the same file differently.
    known = {mark for path in others for mark in _file_identities(path)}
    return next((path for path in ours if not known.isdisjoint(_file_identities(path))), None)


def _file_identities(path: Path) -> Iterator[object]:
    """Yield identifiers that are equal for two names of one file."""
    yield path.resolve()
    try:
        found = path.stat()
    except OSError:
        return
    yield found.st_dev, found.st_ino


def _flag_name(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def log_path_error(path: Path, mode: int) -> str | None:
    """Create the log file if necessary; return why no lines can be appended, or None."""
    try:
        os.close(open_for_lines(path, mode))
    except OSError as error:
        return f"cannot write `{path}`: {error.strerror}"
    return None


def _companion_error(path: Path, suffix: str, kept: PersistedFormat, kind: str) -> str | None:
    """Return why no file can be stored beside the configured one, or None."""
    return persisted_path_error(
        path.with_name(path.name + suffix),
        OutputFiles((), lambda each: is_persisted_format(each, kept), kind),
    )


def persisted_path_error(path: Path, output: OutputFiles) -> str | None:
    """Return why no file can be stored at the path, or None.  Leaves nothing behind."""
    directory = path.parent
    if not directory.is_dir():
        return f"directory `{directory}` does not exist"
    try:
        if os.path.lexists(path):
            with open_regular(path) as file:
                is_empty = not file.read(1)
            if not is_empty and not output.is_ours(path):
                return f"`{path}` is not a {output.kind} of this service: give another file"
    except OSError as error:
        return f"cannot use `{path}`: {error.strerror}"
    try:
        # Permission bits say little (read-only mounts, ACLs, root): only a trial write is certain.
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        return f"cannot write in `{directory}`: {error.strerror}"
    return None
