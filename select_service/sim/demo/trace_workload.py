"""Workload from a request trace.

The trace has no text, so each of its blocks becomes one engine block of tokens derived from its key
alone: sharing is exact, and lengths shrink by the ratio of both sizes.
"""

from itertools import islice
from pathlib import Path

import numpy as np

from select_service.files.request_trace import RecordedRequest, TraceError, TraceReader
from select_service.sim.demo.conversations import (
    ConversationWorkload,
    DemoConversation,
    make_conversation,
    random_tokens,
)
from select_service.sim.engine.block_catalog import BlockCatalog, Tokens

OUTPUT_BLOCKS_MAX = 64
"""Limit of an answer, in blocks: more blocks would only repeat the same call."""

KEY_STREAM, ANSWER_STREAM, PROMPT_STREAM = 1, 2, 3
"""First words of the families of random streams: an answer never equals a prompt block."""


def read_trace(
    path: Path, block_size: int, requests_max: int | None, speedup: float
) -> ConversationWorkload:
    """Return the first `requests_max` requests (None means all), `speedup` times as fast.

    Raises TraceError for a malformed line or an empty file, OSError for an unreadable file.
    """
    catalog, blocks = BlockCatalog(block_size), dict[int, Tokens]()
    sessions: list[DemoConversation] = []
    requests = islice(TraceReader(path).read_requests(), requests_max)
    for number, request in enumerate(requests, 1):
        start_s = request.at_s / speedup
        sessions.append(_make_session(number, start_s, request, catalog, blocks))
    if not sessions:
        raise TraceError(f"{path}: the trace has no request")
    return ConversationWorkload(
        catalog, tuple(sorted(sessions, key=lambda session: session.start_s))
    )


def _make_session(
    number: int,
    start_s: float,
    request: RecordedRequest,
    catalog: BlockCatalog,
    blocks: dict[int, Tokens],
) -> DemoConversation:
    block_size = catalog.block_size
    prompt = [_block_tokens(key, block_size, blocks) for key in request.keys]
    if not prompt:
        own = np.random.default_rng([PROMPT_STREAM, number])
        prompt = [random_tokens(own, block_size)]
    outputs = max(1, round((request.output_tokens or 0) / request.key_tokens))
    answer = random_tokens(
        np.random.default_rng([ANSWER_STREAM, number]),
        min(outputs, OUTPUT_BLOCKS_MAX) * block_size,
    )
    tokens = np.concatenate([*prompt, answer])
    turn = len(prompt) * block_size, len(answer), 0.0
    return make_conversation(catalog, f"t{number}", start_s, tokens, [turn])


def _block_tokens(key: int, block_size: int, blocks: dict[int, Tokens]) -> Tokens:
    # Blocks are shared by key, so equal keys cost memory once.
    if key not in blocks:
        rng = np.random.default_rng([KEY_STREAM, key])
        blocks[key] = random_tokens(rng, block_size)
    return blocks[key]
