"""Formats of persisted files, used to recognise files of this service."""

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from select_service.files.atomic_file import open_regular, read_whole

HEAD_BYTES = 64
"""Number of bytes at the start of a snapshot that contain its format name."""
_SNAPSHOT_NAME = b"select-service-dump"  # `FORMAT` of indexer.dumps, not imported: it loads numpy


class PersistedFormat(NamedTuple):
    """Format of a JSON object with `name` in its member `format`.

    bytes_max: size limit of a file
    """

    name: str
    bytes_max: int


STATE = PersistedFormat("select-service state", 64 << 20)
"""State file; 4,096 workers with the maximum number of ranks take less than the limit."""
HEALTH = PersistedFormat("select-service health", 64 << 20)
"""Health file; the maximum number of references of usual length takes a sixth of the limit."""
POLICIES = PersistedFormat("select-service policies", 16 << 20)
"""Policies file; the maximum number of rules takes less than the limit."""
SESSIONS = PersistedFormat("select-service sessions", 512 << 20)
"""File of sessions; a million with usual ids take less."""
SESSIONS_SUFFIX = ".sessions"
"""Suffix of the file of sessions, after the name of the state file."""
POLICIES_SUFFIX = ".policies"
"""Suffix of the policies file, after the name of the snapshot file."""


def is_persisted_format(path: Path, kept: PersistedFormat) -> bool:
    """Return whether a file has the format, intact or damaged.  Blocks.  Raises OSError."""
    try:
        return has_format(read_whole(path, kept.bytes_max), kept.name)
    except ValueError:
        return False


def has_format(text: bytes, name: str) -> bool:
    """Return whether a text is an object of the format, or was one before it was damaged."""
    try:
        # A damaged file is no longer JSON but still belongs to this service: the text search below
        # lets it be moved aside instead of blocking the start.
        document: Any = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return b'"format":"' + name.encode() + b'"' in text
    return isinstance(document, dict) and document.get("format") == name


def is_snapshot(path: Path) -> bool:
    """Return whether a file begins like a snapshot of any version.  Blocks.  Raises OSError."""
    with open_regular(path) as file:
        return _SNAPSHOT_NAME in file.read(HEAD_BYTES)
