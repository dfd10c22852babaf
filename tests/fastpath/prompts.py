"""Requests with a prompt of some length for services in tests, and the answers."""

import json
from typing import Any

import numpy as np

from indexer.hashing.block_hashing import compute_block_hashes, compute_sequence_hashes
from tests.fastpath.requests import HTTPX, HYPER, request

BLOCK_SIZE = 4


def post(path: str, body: Any, headers: Any = HTTPX, compact: bool = False) -> bytes:
    return request("POST " + path, headers, body, compact)


def get(path: str) -> bytes:
    return request("GET " + path, HYPER)


def scope_of(scope: tuple[str, str], spelling: int) -> dict[str, str]:
    """Return the fields of a scope, in a spelling that depends on the number."""
    model, tenant = scope
    if tenant == "default" and spelling % 2:
        return {"model_name": model}
    return {"model_name": model, ("routing_group" if spelling % 3 else "tenant_id"): tenant}


def prompt_of(length: int, as_tokens: bool) -> dict[str, Any]:
    tokens = np.arange(length, dtype=np.uint32)
    if as_tokens:
        return {"token_ids": tokens.tolist()}
    blocks = compute_block_hashes(tokens, BLOCK_SIZE)
    return {
        "block_hashes": blocks.tolist(),
        "sequence_hashes": compute_sequence_hashes(blocks).tolist(),
        "isl_tokens": length,
    }


def hashes_of(length: int) -> dict[str, Any]:
    """Return the fields by which an answer with hashes exceeds an answer without hashes."""
    told = prompt_of(length, as_tokens=False)
    del told["block_hashes"]
    return told


def chosen_in(answer: bytes) -> dict[str, Any] | None:
    """Return the body of an answer, or None if the answer is a refusal."""
    if not answer.startswith(b"HTTP/1.1 200 "):
        return None
    body: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return body
