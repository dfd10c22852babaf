"""Reads a request trace in the Mooncake format, plain or gzip, into a workload.

One JSON object per line: `timestamp` (ms from the start), `input_length`, `output_length` (tokens)
and `hash_ids`, one per 512 tokens of the prompt, equal ids meaning equal content from the start.
The trace holds no text, so each id becomes one engine block of tokens that the id alone decides:
what is shared stays shared exactly, and lengths shrink by 512 / block_size.

Source: https://github.com/kvcache-ai/Mooncake (FAST25-release/traces)
"""

import gzip
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from select_service.simulator.engine import Tokens, chain_keys
from select_service.simulator.workload import Session, Turn, Workload, random_tokens

TRACE_BLOCK_TOKENS = 512
ROW_BYTES_MAX = 4 * 2**20
OUTPUT_BLOCKS_MAX = 64
"""Longer answers are cut here: past it they only repeat the same lifecycle call."""

HASH_ID_STREAM, ANSWER_STREAM = 1, 2
"""First words of the two families of random streams: an answer never equals a prompt block."""


class TraceError(Exception):
    """The file is not a Mooncake trace; the text names the line."""


class Row(msgspec.Struct):
    """One line of the file."""

    timestamp: float
    output_length: int
    hash_ids: list[int]


def read_trace(path: Path, block_size: int, requests_max: int | None, speedup: float) -> Workload:
    """The first `requests_max` rows (all of them for None), arriving `speedup` times faster.

    Raises TraceError for a malformed line or an empty file, OSError when it cannot be read.
    """
    blocks: dict[int, Tokens] = {}
    sessions: list[Session] = []
    for number, row in _rows(path):
        if requests_max is not None and len(sessions) >= requests_max:
            break
        start_s = row.timestamp / 1000.0 / speedup
        sessions.append(_session(number, start_s, row, block_size, blocks))
    if not sessions:
        raise TraceError(f"{path}: no request in it")
    return Workload(block_size, tuple(sorted(sessions, key=lambda session: session.start_s)))


def _rows(path: Path) -> Iterator[tuple[int, Row]]:
    decoder = msgspec.json.Decoder(Row)
    number = 1
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
            while line := lines.readline(ROW_BYTES_MAX):
                if line.strip():
                    yield number, _checked(decoder.decode(line))
                number += 1
    except (msgspec.MsgspecError, ValueError, gzip.BadGzipFile, EOFError) as error:
        raise TraceError(f"{path}, line {number}: {error}") from error


def _checked(row: Row) -> Row:
    if row.timestamp < 0 or row.output_length < 0 or any(i < 0 for i in row.hash_ids):
        raise ValueError("timestamp, output_length and hash_ids must not be negative")
    if not row.hash_ids:
        raise ValueError("hash_ids is empty")
    return row


def _session(
    number: int, start_s: float, row: Row, block_size: int, blocks: dict[int, Tokens]
) -> Session:
    prompt = [_block(hash_id, block_size, blocks) for hash_id in row.hash_ids]
    output_blocks = min(max(1, round(row.output_length / TRACE_BLOCK_TOKENS)), OUTPUT_BLOCKS_MAX)
    answer = random_tokens(
        np.random.default_rng([ANSWER_STREAM, number]), output_blocks * block_size
    )
    tokens = np.concatenate([*prompt, answer])
    turn = Turn(len(prompt) * block_size, output_blocks, think_s=0.0)
    return Session(f"t{number}", start_s, tokens, chain_keys(tokens, block_size), (turn,))


def _block(hash_id: int, block_size: int, blocks: dict[int, Tokens]) -> Tokens:
    if hash_id not in blocks:
        rng = np.random.default_rng([HASH_ID_STREAM, hash_id])
        blocks[hash_id] = random_tokens(rng, block_size)
    return blocks[hash_id]
