"""Real traces as workloads, from files of the user; the repository contains none of them.

Mooncake, Bailian and Weka: formats of `select_service.files.request_trace`. Answers are never
prefixes, because Mooncake's trace does not name their blocks. Its stamps are multiples of 3 s; each
request is moved to a random place within, because real arrivals are not simultaneous.
Azure (csv, optionally gzipped): TIMESTAMP, ContextTokens, GeneratedTokens; requests share nothing.

Sources: Mooncake, FAST'25 (github kvcache-ai/Mooncake, FAST25-release/traces, Apache-2.0); Azure
LLM inference trace 2023 (github Azure/AzurePublicDataset, CC-BY 4.0; Patel et al., Splitwise, ISCA
2024).
"""

import csv
import gzip
from datetime import datetime
from pathlib import Path

import numpy as np

from select_service.files.request_trace import RecordedRequest, load_trace
from select_service.sim.engine.block_streams import ReplayRequest, ReplayWorkload
from select_service.sim.engine.gpu_hardware import BLOCK_TOKENS
from select_service.sim.replay.recorded_workload import RecordedBlocks

STAMP_S = 3.0
PROMPT_MAX, OUTPUT_MAX = 100_000, 2_000
"""Limits of a prompt and of an answer: longer prompts are omitted, longer answers cut."""
ROWS_MAX = 1_000_000


def read_trace(path: Path) -> list[RecordedRequest]:
    """Return all requests.  Raises OSError, TraceError."""
    return load_trace(path, ROWS_MAX).requests


def read_azure(path: Path) -> list[RecordedRequest]:
    """Return all requests.  Raises OSError, ValueError, KeyError."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        return [
            RecordedRequest(
                datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp(),
                int(row["ContextTokens"]),
                int(row["GeneratedTokens"]),
                (),
                BLOCK_TOKENS,
            )
            for row in csv.DictReader(lines)
        ]


def trace_workload(
    rows: list[RecordedRequest],
    seed: int,
    requests: int,
    spread_s: float = 0.0,
    block_tokens: int = BLOCK_TOKENS,
) -> ReplayWorkload:
    """Return a part of a trace from a random place.  spread_s: largest shift of a stamp"""
    rng = np.random.default_rng(seed)
    first = int(rng.integers(0, max(1, len(rows) - requests)))
    part = [row for row in rows[first : first + requests] if 1 < row.prompt_tokens <= PROMPT_MAX]
    seconds = np.array([row.at_s for row in part]) + rng.uniform(0.0, spread_s, len(part))
    order = np.argsort(seconds, kind="stable")
    units = seconds[order] - seconds.min()
    blocks = RecordedBlocks(block_tokens)
    kept = [part[i] for i in order.tolist()]
    turns = [(_make_turn(each, blocks, block_tokens),) for each in kept]
    # A client without a session is a client of its own.
    labels = tuple(n if x.session is None else x.session for n, x in enumerate(kept))
    return ReplayWorkload(tuple(turns), units * len(units) / units[-1], blocks.count, labels=labels)


def _make_turn(row: RecordedRequest, blocks: RecordedBlocks, block_tokens: int) -> ReplayRequest:
    output_tokens = min(max(1, row.output_tokens or 0), OUTPUT_MAX)
    prompt = blocks.blocks_of_prompt(row)
    n_blocks = (row.prompt_tokens + output_tokens) // block_tokens
    chain = prompt + blocks.new_blocks(n_blocks - len(prompt))
    return ReplayRequest(np.array(chain, np.int32), row.prompt_tokens, output_tokens)
