"""Workload from a request trace in the Mooncake format.

The trace has no text, so each hash id becomes one engine block of tokens derived from the id alone:
sharing is exact, and lengths shrink by 512 / block_size.
"""

from pathlib import Path

import numpy as np

from select_service.files.mooncake_trace import TRACE_BLOCK_TOKENS, TraceError, TraceRow, read_rows
from select_service.sim.demo.conversations import (
    ConversationWorkload,
    DemoConversation,
    make_conversation,
    random_tokens,
)
from select_service.sim.engine.block_catalog import BlockCatalog, Tokens

OUTPUT_BLOCKS_MAX = 64
"""Limit of an answer, in blocks: more blocks would only repeat the same call."""

HASH_ID_STREAM, ANSWER_STREAM = 1, 2
"""First words of the two families of random streams: an answer never equals a prompt block."""


def read_trace(
    path: Path, block_size: int, requests_max: int | None, speedup: float
) -> ConversationWorkload:
    """Return the first `requests_max` rows (None means all), with arrivals `speedup` times as fast.

    Raises TraceError for a malformed line or an empty file, OSError for an unreadable file.
    """
    catalog, blocks = BlockCatalog(block_size), dict[int, Tokens]()
    sessions: list[DemoConversation] = []
    for number, row in read_rows(path):
        if requests_max is not None and len(sessions) >= requests_max:
            break
        start_s = row.timestamp / 1000.0 / speedup
        sessions.append(_make_session(number, start_s, row, catalog, blocks))
    if not sessions:
        raise TraceError(f"{path}: the trace has no request")
    return ConversationWorkload(
        catalog, tuple(sorted(sessions, key=lambda session: session.start_s))
    )


def _make_session(
    number: int, start_s: float, row: TraceRow, catalog: BlockCatalog, blocks: dict[int, Tokens]
) -> DemoConversation:
    block_size = catalog.block_size
    prompt = [_block_tokens(hash_id, block_size, blocks) for hash_id in row.hash_ids]
    output_blocks = min(max(1, round(row.output_length / TRACE_BLOCK_TOKENS)), OUTPUT_BLOCKS_MAX)
    answer = random_tokens(
        np.random.default_rng([ANSWER_STREAM, number]), output_blocks * block_size
    )
    tokens = np.concatenate([*prompt, answer])
    turn = len(prompt) * block_size, len(answer), 0.0
    return make_conversation(catalog, f"t{number}", start_s, tokens, [turn])


def _block_tokens(hash_id: int, block_size: int, blocks: dict[int, Tokens]) -> Tokens:
    # Blocks are shared by id, so equal ids cost memory once.
    if hash_id not in blocks:
        rng = np.random.default_rng([HASH_ID_STREAM, hash_id])
        blocks[hash_id] = random_tokens(rng, block_size)
    return blocks[hash_id]
