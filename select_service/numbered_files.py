"""Lines in FILE, older ones in FILE.1, FILE.2 and so on: bounded in number and size."""

import errno
import itertools
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from select_service.whole_file import PRIVATE, append_to_file, check_regular, open_regular

FILE_BYTES_MAX = 64 << 20
FILES_MAX = 8
PENDING_BYTES = 1 << 16
"""Of lines that are written together."""


class NumberedFiles:
    """Belongs to one thread."""

    def __init__(
        self,
        path: Path,
        head: Callable[[], Iterable[bytes]],
        *,
        bytes_max: int = FILE_BYTES_MAX,
        files_max: int = FILES_MAX,
        mode: int = PRIVATE,
    ) -> None:
        """head: the lines that every further file begins with;  mode: of files that are created

        Raises OSError when the file cannot be written to.
        """
        self._path, self._head, self._mode = path, head, mode
        self._bytes_max, self._files_max = bytes_max, files_max
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._file: int | None = None
        self._end_torn_line(self._opened())

    def write(self, line: bytes) -> None:
        """Take a line, given without its end.  Raises OSError; the next line tries again."""
        file = self._opened()
        if _size(file) + self._pending_bytes >= self._bytes_max:
            self.flush()
            self._next_file()
        self._pend(line)
        if self._pending_bytes >= PENDING_BYTES:
            self.flush()

    def flush(self, *, is_durable: bool = False) -> None:
        """Write all lines that were taken, or none of them.  Raises OSError; then they are lost.

        is_durable: they are on the disk afterwards
        """
        lines, self._pending, self._pending_bytes = self._pending, [], 0
        if lines:
            _append(self._opened(), b"".join(lines))
        if is_durable:
            os.fdatasync(self._opened())

    def close(self) -> None:
        """What cannot be written has been refused by `flush` already."""
        with suppress(OSError):
            self.flush()
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                os.close(file)

    def _pend(self, line: bytes) -> None:
        self._pending.append(line + b"\n")
        self._pending_bytes += len(line) + 1

    def _end_torn_line(self, file: int) -> None:
        """What a killed process has begun gets an end, so that our first line is one."""
        size = _size(file)
        if not size:
            return
        with open_regular(self._path) as written:
            written.seek(size - 1)
            if written.read(1) != b"\n":
                _append(file, b"\n")

    def _opened(self) -> int:
        if self._file is None:
            self._file = append_lines(self._path, self._mode)
        return self._file

    def _next_file(self) -> None:
        """The files move on by one, and the oldest goes."""
        os.close(self._opened())
        self._file = None
        names = [self._path, *(self._numbered(number) for number in range(1, self._files_max))]
        for path in names:
            _check_movable(path)
        for older, place in reversed(list(itertools.pairwise(names))):
            if older.exists():
                older.replace(place)
        for line in self._head():
            self._pend(line)

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def append_lines(path: Path, mode: int) -> int:
    """Return a descriptor for adding lines to a file of JSON lines.

    Raises OSError, also for a file of something else.
    """
    if path.exists() and not looks_like_lines(path):
        raise OSError(errno.EEXIST, "the file that is there holds no JSON lines, name another")
    return append_to_file(path, mode)


def looks_like_lines(path: Path) -> bool:
    """Whether the file is empty or begins as a line of JSON does.  Raises OSError."""
    with open_regular(path) as file:
        return file.read(1) in (b"", b"{")


def _check_movable(path: Path) -> None:
    """Raise OSError for what is there and holds no lines: it would be lost in the end."""
    if not os.path.lexists(path):
        return
    check_regular(path.lstat().st_mode, path)
    if not looks_like_lines(path):
        raise OSError(errno.EEXIST, "it holds no JSON lines and is in the way", str(path))


def _size(file: int) -> int:
    return os.fstat(file).st_size


def _append(file: int, content: bytes) -> None:
    """Add all of it or nothing.  Raises OSError."""
    begin = _size(file)
    left = memoryview(content)
    try:
        while left:
            left = left[os.write(file, left) :]
    except OSError:
        with suppress(OSError):
            os.ftruncate(file, begin)
        raise
