"""Real traces as workloads, from files of the user; the repository contains none of them.

Mooncake (jsonl, optionally gzipped): `timestamp` [ms], `input_length`, `output_length` [tokens],
`hash_ids`, one per 512 tokens of the prompt; an id identifies a block with everything before. Its
stamps are multiples of 3 s; each request is moved to a random place within, because real arrivals
are not simultaneous. Answers are never prefixes, because the trace does not name their blocks.
Azure (csv, optionally gzipped): TIMESTAMP, ContextTokens, GeneratedTokens; requests share nothing.

Sources: Mooncake, FAST'25 (github kvcache-ai/Mooncake, FAST25-release/traces, Apache-2.0); Azure
LLM inference trace 2023 (github Azure/AzurePublicDataset, CC-BY 4.0; Patel et al., Splitwise, ISCA
2024).
"""

import csv
import gzip
import io
import json
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np

from scripts.bench.quality.text_streams import BlockNumbers
from select_service.sim.engine.block_streams import ReplayRequest, ReplayWorkload
from select_service.sim.engine.gpu_hardware import BLOCK_TOKENS
from select_service.sim.engine.kv_block_pool import Chain

TRACE_BLOCK_TOKENS = 512
STAMP_S = 3.0
PER_TRACE_BLOCK = TRACE_BLOCK_TOKENS // BLOCK_TOKENS
PROMPT_MAX, OUTPUT_MAX = 100_000, 2_000
"""Limits of a prompt and of an answer: longer prompts are omitted, longer answers cut."""


class TraceFileRequest(NamedTuple):
    """Request of a trace.  ids: ids of its blocks of 512 tokens, if the trace has them"""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    ids: tuple[int, ...] = ()


def read_mooncake(path: Path) -> list[TraceFileRequest]:
    """Return all requests.  Raises OSError, ValueError, KeyError."""
    with _open_trace(path) as lines:
        return [
            TraceFileRequest(
                row["timestamp"] / 1000,
                row["input_length"],
                row["output_length"],
                tuple(row["hash_ids"]),
            )
            for row in map(json.loads, lines)
        ]


def read_azure(path: Path) -> list[TraceFileRequest]:
    """Return all requests.  Raises OSError, ValueError, KeyError."""
    with _open_trace(path) as lines:
        return [
            TraceFileRequest(
                datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp(),
                int(row["ContextTokens"]),
                int(row["GeneratedTokens"]),
            )
            for row in csv.DictReader(lines)
        ]


def trace_workload(
    rows: list[TraceFileRequest], seed: int, requests: int, spread_s: float = 0.0
) -> ReplayWorkload:
    """Return a part of a trace from a random place.  spread_s: largest shift of a stamp"""
    rng = np.random.default_rng(seed)
    first = int(rng.integers(0, max(1, len(rows) - requests)))
    part = [row for row in rows[first : first + requests] if 1 < row.prompt_tokens <= PROMPT_MAX]
    seconds = np.array([row.at_s for row in part]) + rng.uniform(0.0, spread_s, len(part))
    order = np.argsort(seconds, kind="stable")
    units = seconds[order] - seconds.min()
    blocks = BlockNumbers()
    turns = [(_turn(part[i], blocks),) for i in order.tolist()]
    return ReplayWorkload(tuple(turns), units * len(units) / units[-1], blocks.count)


def _turn(row: TraceFileRequest, blocks: BlockNumbers) -> ReplayRequest:
    output_tokens = min(max(1, row.output_tokens), OUTPUT_MAX)
    n_blocks = (row.prompt_tokens + output_tokens) // BLOCK_TOKENS
    prompt = _chain_of(row.ids, blocks)[: row.prompt_tokens // BLOCK_TOKENS]
    chain = np.concatenate([prompt, blocks.new_blocks(n_blocks - len(prompt))])
    return ReplayRequest(chain, row.prompt_tokens, output_tokens)


def _chain_of(ids: Iterable[int], blocks: BlockNumbers) -> Chain:
    parts = [blocks.shared_blocks(-1, trace_id, PER_TRACE_BLOCK) for trace_id in ids]
    return np.concatenate(parts) if parts else blocks.new_blocks(0)


def _open_trace(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path))
    return path.open()
