"""A request trace in the Mooncake format becomes a workload.

The trace holds no text, so each id becomes one engine block of tokens that the id alone decides:
what is shared stays shared exactly, and lengths shrink by 512 / block_size.
"""

from pathlib import Path

import numpy as np

from select_service.request_trace import TRACE_BLOCK_TOKENS, Row, TraceError, rows
from select_service.simulator.engine import Tokens, chain_keys
from select_service.simulator.workload import Session, Turn, Workload, random_tokens

OUTPUT_BLOCKS_MAX = 64
"""Longer answers are cut here: past it they only repeat the same lifecycle call."""

HASH_ID_STREAM, ANSWER_STREAM = 1, 2
"""First words of the two families of random streams: an answer never equals a prompt block."""


def read_trace(path: Path, block_size: int, requests_max: int | None, speedup: float) -> Workload:
    """The first `requests_max` rows (all of them for None), arriving `speedup` times faster.

    Raises TraceError for a malformed line or an empty file, OSError when it cannot be read.
    """
    blocks: dict[int, Tokens] = {}
    sessions: list[Session] = []
    for number, row in rows(path):
        if requests_max is not None and len(sessions) >= requests_max:
            break
        start_s = row.timestamp / 1000.0 / speedup
        sessions.append(_session(number, start_s, row, block_size, blocks))
    if not sessions:
        raise TraceError(f"{path}: no request in it")
    return Workload(block_size, tuple(sorted(sessions, key=lambda session: session.start_s)))


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
