"""Synthetic traces in the formats of Bailian and Weka."""

import json
from pathlib import Path
from typing import Any


def chat(
    chat_id: int, parent: int, at_s: float, ids: list[int], **fields: object
) -> dict[str, Any]:
    """Return a request of Bailian; the last block is half full."""
    return {
        "chat_id": chat_id,
        "parent_chat_id": parent,
        "timestamp": at_s,
        "input_length": 16 * len(ids) - 8,
        "output_length": 40,
        "type": "text",
        "turn": 1,
        "hash_ids": ids,
        **fields,
    }


def call(at_s: float, ids: list[int], **fields: object) -> dict[str, Any]:
    """Return a call of Weka; the last block is half full."""
    return {
        "t": at_s,
        "type": "n",
        "model": "m",
        "in": 64 * len(ids) - 32,
        "out": 20,
        "hash_ids": ids,
        "input_types": ["text"],
        "output_types": ["text"],
        "stop": "tool_use",
        "api_time": 1.5,
        "think_time": 0.5,
        **fields,
    }


def subagent(at_s: float, *calls: dict[str, Any]) -> dict[str, Any]:
    return {
        "t": at_s,
        "type": "subagent",
        "agent_id": "agent_001",
        "subagent_type": "Explore",
        "status": "completed",
        "models": ["m"],
        "requests": list(calls),
    }


def session(*entries: dict[str, Any], **fields: object) -> dict[str, Any]:
    return {
        "id": "trace_0001",
        "models": ["m"],
        "block_size": 64,
        "hash_id_scope": "local",
        "tool_tokens": 0,
        "system_tokens": 0,
        "requests": list(entries),
        **fields,
    }


def write_lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
