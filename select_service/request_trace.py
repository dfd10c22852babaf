"""Reads a request trace in the Mooncake format, plain or gzip, row by row.

One JSON object per line: `timestamp` (ms from the start), `input_length`, `output_length` (tokens)
and `hash_ids`, one per 512 tokens of the prompt, equal ids meaning equal content from the start.

Source: https://github.com/kvcache-ai/Mooncake (FAST25-release/traces)
"""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

TRACE_BLOCK_TOKENS = 512
ROW_BYTES_MAX = 4 * 2**20


FAULTS = (msgspec.MsgspecError, ValueError, RecursionError, EOFError, gzip.BadGzipFile, zlib.error)
"""Of what a file may hold."""
NUMBER_MAX = 1e15
"""Of lengths in tokens, and of milliseconds."""


class TraceError(Exception):
    """The file is not a Mooncake trace; the text names the line."""


class Row(msgspec.Struct):
    """One line of the file."""

    timestamp: float
    output_length: int
    hash_ids: list[int]
    input_length: int | None = None

    @property
    def prompt_tokens(self) -> int:
        """Its length where that is said, else that of its blocks."""
        blocks = len(self.hash_ids) * TRACE_BLOCK_TOKENS
        return blocks if self.input_length is None else self.input_length


def rows(path: Path) -> Iterator[tuple[int, Row]]:
    """Number of the line, and what stands there; empty lines are skipped.

    Raises TraceError for a malformed line, OSError when the file cannot be read.
    """
    decoder = msgspec.json.Decoder(Row)
    number = 1
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
            while line := lines.readline(ROW_BYTES_MAX):
                if line.strip():
                    yield number, _checked(decoder.decode(line))
                number += 1
    except FAULTS as error:
        raise TraceError(f"{path}, line {number}: {error}") from error


def _checked(row: Row) -> Row:
    lengths = row.timestamp, row.output_length, row.prompt_tokens
    if min(lengths) < 0 or any(i < 0 for i in row.hash_ids):
        raise ValueError("timestamp, lengths and hash_ids must not be negative")
    if max(lengths) > NUMBER_MAX:
        raise ValueError(f"timestamp and lengths must not be above {NUMBER_MAX:g}")
    if not row.hash_ids:
        raise ValueError("hash_ids is empty")
    return row
