"""Lines in FILE, older ones in FILE.1, FILE.2 and so on: bounded in number and size."""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

FILE_BYTES_MAX = 64 << 20
FILES_MAX = 8


class NumberedFiles:
    """Belongs to one thread."""

    def __init__(
        self,
        path: Path,
        head: Callable[[], Iterable[bytes]],
        *,
        bytes_max: int = FILE_BYTES_MAX,
        files_max: int = FILES_MAX,
    ) -> None:
        """head: the lines that every further file begins with

        Raises OSError when the file cannot be written to.
        """
        self._path, self._head = path, head
        self._bytes_max, self._files_max = bytes_max, files_max
        self._file: BinaryIO | None = path.open("ab")
        self._end_torn_line(self._file)

    def write(self, line: bytes) -> None:
        """line: without its end.  Raises OSError; the next line tries again."""
        file = self._opened()
        if file.tell() >= self._bytes_max:
            file = self._next_file()
        file.write(line + b"\n")

    def flush(self) -> None:
        """Raises OSError."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """What cannot be written has been refused by `flush` already."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()

    def _end_torn_line(self, file: BinaryIO) -> None:
        """What a killed process has begun gets an end, so that our first line is one."""
        if not self._path.is_file() or not file.tell():
            return
        with self._path.open("rb") as written:
            written.seek(-1, os.SEEK_END)
            if written.read(1) != b"\n":
                file.write(b"\n")

    def _opened(self) -> BinaryIO:
        if self._file is None:
            self._file = self._path.open("ab")
        return self._file

    def _next_file(self) -> BinaryIO:
        """The files move on by one, and the oldest goes."""
        self._opened().close()
        self._file = None
        for number in range(self._files_max - 1, 0, -1):
            older = self._path if number == 1 else self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))
        file = self._opened()
        for line in self._head():
            file.write(line + b"\n")
        return file

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
