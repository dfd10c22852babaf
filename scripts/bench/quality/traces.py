"""Real traces as workloads, from files that the caller has; nothing of them is kept here.

Mooncake (jsonl, may be gzipped): `timestamp` [ms], `input_length`, `output_length` [tokens],
`hash_ids`, one per 512 tokens of the prompt; an id names a block with all before it.  Its stamps
are multiples of 3 s: each request is put somewhere within those, for what comes at the same moment
there does not in fact.  Answers are nobody's beginning, because the trace does not name them.
Azure (csv, may be gzipped): TIMESTAMP, ContextTokens, GeneratedTokens; no two requests share
anything.

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

from select_service.replaying.hardware import BLOCK_TOKENS
from select_service.replaying.pool import Chain
from select_service.replaying.streams import Blocks, Turn, Workload

TRACE_BLOCK_TOKENS = 512
STAMP_S = 3.0
PER_TRACE_BLOCK = TRACE_BLOCK_TOKENS // BLOCK_TOKENS
PROMPT_MAX, OUTPUT_MAX = 100_000, 2_000
"""Longer ones are left out, and cut."""


class Row(NamedTuple):
    """One request of a trace.  ids: of its blocks of 512 tokens, where the trace has them"""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    ids: tuple[int, ...] = ()


def mooncake(path: Path) -> list[Row]:
    """All requests.  Raises OSError, ValueError, KeyError."""
    with _opened(path) as lines:
        return [
            Row(
                row["timestamp"] / 1000,
                row["input_length"],
                row["output_length"],
                tuple(row["hash_ids"]),
            )
            for row in map(json.loads, lines)
        ]


def azure(path: Path) -> list[Row]:
    """All requests.  Raises OSError, ValueError, KeyError."""
    with _opened(path) as lines:
        return [
            Row(
                datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp(),
                int(row["ContextTokens"]),
                int(row["GeneratedTokens"]),
            )
            for row in csv.DictReader(lines)
        ]


def of_trace(rows: list[Row], seed: int, requests: int, spread_s: float = 0.0) -> Workload:
    """A part of a trace, from a place that the seed draws.  spread_s: how far stamps are moved"""
    rng = np.random.default_rng(seed)
    first = int(rng.integers(0, max(1, len(rows) - requests)))
    part = [row for row in rows[first : first + requests] if 1 < row.prompt_tokens <= PROMPT_MAX]
    seconds = np.array([row.at_s for row in part]) + rng.uniform(0.0, spread_s, len(part))
    order = np.argsort(seconds, kind="stable")
    units = seconds[order] - seconds.min()
    blocks = Blocks()
    turns = [(_turn(part[i], blocks),) for i in order.tolist()]
    return Workload(tuple(turns), units * len(units) / units[-1], blocks.count)


def _turn(row: Row, blocks: Blocks) -> Turn:
    output_tokens = min(max(1, row.output_tokens), OUTPUT_MAX)
    n_blocks = (row.prompt_tokens + output_tokens) // BLOCK_TOKENS
    prompt = _chain_of(row.ids, blocks)[: row.prompt_tokens // BLOCK_TOKENS]
    chain = np.concatenate([prompt, blocks.fresh(n_blocks - len(prompt))])
    return Turn(chain, row.prompt_tokens, output_tokens)


def _chain_of(ids: Iterable[int], blocks: Blocks) -> Chain:
    parts = [blocks.shared(-1, trace_id, PER_TRACE_BLOCK) for trace_id in ids]
    return np.concatenate(parts) if parts else blocks.fresh(0)


def _opened(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path))
    return path.open()
