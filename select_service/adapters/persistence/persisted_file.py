"""Small JSON file that is written as a whole and read at start-up.

A damaged file is moved aside to `<file>.refused`, or `.refused.2` and so on if such files exist, so
that the next write does not destroy content that another version may still read.  A file of another
format is never moved or overwritten.
"""

import errno
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

from select_service.files.atomic_file import open_regular, read_whole, write_whole
from select_service.files.json_checksum import add_checksum, split_checksum
from select_service.files.persisted_formats import PersistedFormat, is_persisted_format

REFUSED_FILES_MAX = 8
"""Maximum number of files moved aside; a further one replaces the oldest."""


class PersistedFile:
    """JSON object with a checksum in a file.  All methods block."""

    def __init__(self, path: Path, kept: PersistedFormat, mode: int, log: logging.Logger) -> None:
        """mode: permission bits of the file"""
        self.path = path
        self._format, self._mode, self._log = kept, mode, log
        self._blocked_reason: str | None = None

    def read(self) -> bytes | None:
        """Return the JSON object, or None if the file is missing or empty.

        Raises OSError, ValueError.
        """
        try:
            text = read_whole(self.path, self._format.bytes_max)
        except FileNotFoundError:
            return None
        fields = {"path": str(self.path), "format": self._format.name}
        if not text:
            self._log.warning("persisted file is empty", extra={"fields": fields})
            return None
        content, has_checksum = split_checksum(text)
        if not has_checksum:
            self._log.info("persisted file has no checksum yet", extra={"fields": fields})
        return content

    def move_unusable_aside(self, error: Exception, message: str) -> None:
        """Move an unusable file aside and log the message."""
        fields = {"path": str(self.path), "error": str(error)[:200]}
        try:
            fields["kept_as"] = str(
                move_aside(self.path, lambda path: is_persisted_format(path, self._format))
            )
        except OSError as fault:
            self._blocked_reason = f"existing file could not be moved aside: {fault.strerror}"
            fields["kept_as"] = str(self.path)
        self._log.warning(message, extra={"fields": fields})

    def write(self, content: bytes) -> None:
        """Write a JSON object with its checksum.  Raises OSError."""
        if self._blocked_reason is not None:
            raise OSError(errno.EEXIST, self._blocked_reason)
        write_whole(self.path, add_checksum(content), self._mode)


def move_aside(path: Path, is_ours: Callable[[Path], bool]) -> Path:
    """Move a file aside and return its new path.

    Raises OSError and leaves the file in place, also if it is not a regular file or has another
    format.
    """
    open_regular(path).close()
    if not is_ours(path):
        raise OSError(errno.EINVAL, "file has an unknown format")
    names = [".refused", *(f".refused.{number}" for number in range(2, REFUSED_FILES_MAX + 1))]
    places = [path.with_name(path.name + name) for name in names]
    # lexists: a dangling symbolic link also occupies a name.
    free = next((place for place in places if not os.path.lexists(place)), None)
    aside = _oldest_regular(places) if free is None else free
    path.replace(aside)
    return aside


def _oldest_regular(places: list[Path]) -> Path:
    """Return the regular file modified longest ago.  Raises OSError."""
    found = [(each.lstat(), each) for each in places]
    regular = [(status.st_mtime_ns, each) for status, each in found if stat.S_ISREG(status.st_mode)]
    if not regular:
        raise OSError(errno.EEXIST, f"names {places[0]} to {places[-1]} are all in use")
    return min(regular)[1]
