"""Rotating files: lines in FILE, older lines in FILE.1, FILE.2 and so on, limited in number and
size.
"""

import errno
import itertools
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from select_service.files.atomic_file import (
    PRIVATE_MODE,
    append_to_file,
    check_regular,
    open_regular,
)

FILE_BYTES_MAX = 64 << 20
FILES_MAX = 8
PENDING_BYTES = 1 << 16
"""Size of lines that are written together."""


class RotatingFile:
    """Rotating file.  Belongs to one thread."""

    def __init__(
        self,
        path: Path,
        head: Callable[[], Iterable[bytes]],
        *,
        bytes_max: int = FILE_BYTES_MAX,
        files_max: int = FILES_MAX,
        mode: int = PRIVATE_MODE,
    ) -> None:
        """Open the file.

        head: function that returns the first lines of every further file
        mode: permission bits of created files
        Raises OSError when the file cannot be written.
        """
        self._path, self._head, self._mode = path, head, mode
        self._bytes_max, self._files_max = bytes_max, files_max
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._file: int | None = None
        self._end_torn_line(self._open_file())

    def add_line(self, line: bytes) -> None:
        """Add a line without its line end.  Raises OSError; the next call tries again."""
        file = self._open_file()
        if _file_size(file) + self._pending_bytes >= self._bytes_max:
            self.flush()
            self._next_file()
        self._add_pending(line)
        if self._pending_bytes >= PENDING_BYTES:
            self.flush()

    def flush(self, *, is_durable: bool = False) -> None:
        """Write all pending lines or none.  Raises OSError, and the lines are lost.

        is_durable: True also syncs the file to disk
        """
        lines, self._pending, self._pending_bytes = self._pending, [], 0
        if lines:
            _append_all(self._open_file(), b"".join(lines))
        if is_durable:
            os.fdatasync(self._open_file())

    def close(self) -> None:
        """Flush and close the file; errors were already reported by `flush`."""
        with suppress(OSError):
            self.flush()
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                os.close(file)

    def _add_pending(self, line: bytes) -> None:
        self._pending.append(line + b"\n")
        self._pending_bytes += len(line) + 1

    def _end_torn_line(self, file: int) -> None:
        """Complete an unfinished line of a killed process, so that the next line starts
        separately.
        """
        size = _file_size(file)
        if not size:
            return
        with open_regular(self._path) as written:
            written.seek(size - 1)
            if written.read(1) != b"\n":
                _append_all(file, b"\n")

    def _open_file(self) -> int:
        if self._file is None:
            self._file = open_for_lines(self._path, self._mode)
        return self._file

    def _next_file(self) -> None:
        """Rename the files by one number, drop the oldest and start a new file."""
        os.close(self._open_file())
        self._file = None
        older_names = (f"{self._path.name}.{n}" for n in range(1, self._files_max))
        names = [self._path, *map(self._path.with_name, older_names)]
        # All names are checked before the first rename: a failure half-way would lose the order.
        for path in names:
            _check_movable(path)
        for older, place in reversed(list(itertools.pairwise(names))):
            if older.exists():
                older.replace(place)
        for line in self._head():
            self._add_pending(line)


def open_for_lines(path: Path, mode: int) -> int:
    """Return a descriptor for appending to a file of JSON lines.

    Raises OSError, also for a file with other content.
    """
    if path.exists() and not looks_like_lines(path):
        raise OSError(errno.EEXIST, "existing file has no JSON lines, give another")
    return append_to_file(path, mode)


def looks_like_lines(path: Path) -> bool:
    """Return whether the file is empty or begins like a JSON line.  Raises OSError."""
    with open_regular(path) as file:
        return file.read(1) in (b"", b"{")


def _check_movable(path: Path) -> None:
    """Raise OSError for an existing file without lines, which rotation would finally delete."""
    if not os.path.lexists(path):
        return
    check_regular(path.lstat().st_mode, path)
    if not looks_like_lines(path):
        raise OSError(
            errno.EEXIST, "existing file without JSON lines blocks the rotation", str(path)
        )


def _file_size(file: int) -> int:
    return os.fstat(file).st_size


def _append_all(file: int, content: bytes) -> None:
    """Append all of the content or nothing.  Raises OSError."""
    begin = _file_size(file)
    left = memoryview(content)
    try:
        while left:
            left = left[os.write(file, left) :]
    except OSError:
        with suppress(OSError):
            # A partial line would corrupt the next.
            os.ftruncate(file, begin)
        raise
