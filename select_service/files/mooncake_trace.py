"""Reader of request traces in the Mooncake format, plain or gzip, row by row.

One JSON object per line: `timestamp` (ms from the start), `input_length`, `output_length` (tokens)
and `hash_ids`, one per 512 prompt tokens; equal ids mean an equal prefix up to this block.
Source: https://github.com/kvcache-ai/Mooncake (FAST25-release/traces)
"""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

TRACE_BLOCK_TOKENS = 512
ROW_BYTES_MAX = 4 * 2**20


FILE_ERRORS = (
    msgspec.MsgspecError,
    ValueError,
    RecursionError,
    EOFError,
    gzip.BadGzipFile,
    zlib.error,
)
"""Exceptions for invalid file content."""
NUMBER_MAX = 1e15
"""Maximum of lengths in tokens, and of timestamps in milliseconds."""


class TraceError(Exception):
    """Error for a file that is not a Mooncake trace; the text has the line number."""


class TraceRow(msgspec.Struct):
    """One line of the trace."""

    timestamp: float
    output_length: int
    hash_ids: list[int]
    input_length: int | None = None

    @property
    def prompt_tokens(self) -> int:
        """Prompt length in tokens: `input_length` if given, else the length of its blocks."""
        blocks = len(self.hash_ids) * TRACE_BLOCK_TOKENS
        return blocks if self.input_length is None else self.input_length


def read_rows(path: Path) -> Iterator[tuple[int, TraceRow]]:
    """Yield the line number and row of each non-empty line.

    Raises TraceError for a malformed line, OSError when the file cannot be read.
    """
    decoder = msgspec.json.Decoder(TraceRow)
    number = 1
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
            # A size limit per line: a file without line ends must not fill the memory.
            while line := lines.readline(ROW_BYTES_MAX):
                if line.strip():
                    yield number, _check_row(decoder.decode(line))
                number += 1
    except FILE_ERRORS as error:
        raise TraceError(f"{path}, line {number}: {error}") from error


def _check_row(row: TraceRow) -> TraceRow:
    lengths = row.timestamp, row.output_length, row.prompt_tokens
    if min(lengths) < 0 or any(i < 0 for i in row.hash_ids):
        raise ValueError("timestamp, lengths and hash_ids must not be negative")
    if max(lengths) > NUMBER_MAX:
        raise ValueError(f"timestamp and lengths must not be above {NUMBER_MAX:g}")
    if not row.hash_ids:
        raise ValueError("hash_ids is empty")
    return row
