"""A small file of ours that is written whole and read at the start.

One that is damaged is moved aside, to `<file>.refused`, or `.refused.2` and so on when there are
such files already, so that the next one does not destroy what another version may still read.  A
file of another format is never moved, and never written over.
"""

import errno
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

from select_service.checked_json import with_checksum, without_checksum
from select_service.kept_formats import KeptFormat, is_kept
from select_service.whole_file import open_regular, read_whole, write_whole

REFUSED_FILES_MAX = 8
"""Unusable files that are kept; one more replaces the one that was written longest ago."""


class KeptFile:
    """A JSON object with a checksum.  What is called here blocks."""

    def __init__(self, path: Path, kept: KeptFormat, mode: int, log: logging.Logger) -> None:
        """mode: of the file"""
        self.path = path
        self._kept, self._mode, self._log = kept, mode, log
        self._in_the_way: str | None = None

    def read(self) -> bytes | None:
        """Return its object; None means that there is no file, or an empty one.

        Raises OSError, ValueError.
        """
        try:
            text = read_whole(self.path, self._kept.bytes_max)
        except FileNotFoundError:
            return None
        fields = {"path": str(self.path), "format": self._kept.name}
        if not text:
            self._log.warning("kept file is empty", extra={"fields": fields})
            return None
        content, has_checksum = without_checksum(text)
        if not has_checksum:
            self._log.info("kept file has no checksum yet", extra={"fields": fields})
        return content

    def refuse(self, error: Exception, message: str) -> None:
        """Move a file aside that cannot be used, and log the message."""
        fields = {"path": str(self.path), "error": str(error)[:200]}
        try:
            fields["kept_as"] = str(move_aside(self.path, lambda path: is_kept(path, self._kept)))
        except OSError as fault:
            self._in_the_way = f"the file that is there was not moved aside: {fault.strerror}"
            fields["kept_as"] = str(self.path)
        self._log.warning(message, extra={"fields": fields})

    def write(self, content: bytes) -> None:
        """content: a JSON object.  Raises OSError."""
        if self._in_the_way is not None:
            raise OSError(errno.EEXIST, self._in_the_way)
        write_whole(self.path, with_checksum(content), self._mode)


def move_aside(path: Path, is_ours: Callable[[Path], bool]) -> Path:
    """Return where the file is afterwards.

    Raises OSError, also for what is no regular file or none of ours, and leaves it where it is.
    """
    open_regular(path).close()
    if not is_ours(path):
        raise OSError(errno.EINVAL, "its format is not ours")
    names = [".refused", *(f".refused.{number}" for number in range(2, REFUSED_FILES_MAX + 1))]
    places = [path.with_name(path.name + name) for name in names]
    free = next((place for place in places if not os.path.lexists(place)), None)
    aside = _oldest_regular(places) if free is None else free
    path.replace(aside)
    return aside


def _oldest_regular(places: list[Path]) -> Path:
    """Raises OSError."""
    found = [(each.lstat(), each) for each in places]
    regular = [(status.st_mtime_ns, each) for status, each in found if stat.S_ISREG(status.st_mode)]
    if not regular:
        raise OSError(errno.EEXIST, f"no place is free from {places[0]} to {places[-1]}")
    return min(regular)[1]
