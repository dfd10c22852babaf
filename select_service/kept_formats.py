"""The formats of the files that a service writes and reads again, by which it knows its own."""

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from select_service.whole_file import open_regular, read_whole

HEAD_BYTES = 64
"""Of a snapshot, in which its format is named."""
_SNAPSHOT_NAME = b"select-service-dump"  # `FORMAT` of indexer.dumps, which would load arrays


class KeptFormat(NamedTuple):
    """A JSON object whose member `format` is `name`.  bytes_max: of a file"""

    name: str
    bytes_max: int


STATE = KeptFormat("select-service state", 64 << 20)
"""4,096 workers of as many ranks as there may be take less."""
HEALTH = KeptFormat("select-service health", 64 << 20)
"""References of usual length, as many as there may be, take a sixth of it."""
POLICIES = KeptFormat("select-service policies", 16 << 20)
"""As many rules as there may be take less."""
POLICIES_ENDING = ".policies"
"""Of the file of policies, behind the name of the snapshot."""


def is_kept(path: Path, kept: KeptFormat) -> bool:
    """Whether the file is of that format, whole or damaged.  Raises OSError.  Blocks."""
    try:
        return has_format(read_whole(path, kept.bytes_max), kept.name)
    except ValueError:
        return False


def has_format(text: bytes, name: str) -> bool:
    """Whether it is an object of that `format`, or was one before it was damaged."""
    try:
        document: Any = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return b'"format":"' + name.encode() + b'"' in text
    return isinstance(document, dict) and document.get("format") == name


def is_snapshot(path: Path) -> bool:
    """Whether it begins as a snapshot does, of whatever version.  Raises OSError.  Blocks."""
    with open_regular(path) as file:
        return _SNAPSHOT_NAME in file.read(HEAD_BYTES)
