"""Check of published KV events."""

import re
from collections.abc import Callable, Generator, Mapping
from typing import Any

import msgspec
import numpy as np

from indexer.events.event_decoder import decode_in_steps, parse_payload, scan_payload
from indexer.events.event_types import Batch, DecodeError

ADDRESS = re.compile("0x[0-9a-f]*")
"""Address of an object, which texts about extension types of msgpack contain."""


def check_kv_events(data: bytes) -> None:
    """Require that the compiled reader declines or agrees with the parser, in steps or at once."""
    parsed = _batch_or_error(lambda: parse_payload(data))
    scanned = scan_payload(data)
    if scanned is not None:
        assert _plain(scanned) == parsed, (_plain(scanned), parsed)
    stepped = _batch_or_error(lambda: _last(decode_in_steps(data)))
    assert stepped == parsed, (stepped, parsed)


def _batch_or_error(read: Callable[[], Batch]) -> object:
    try:
        return _plain(read())
    except DecodeError:
        return "error"


def _last(steps: Generator[int, None, Batch]) -> Batch:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            batch: Batch = end.value
            return batch


def _plain(value: Any) -> Any:
    """Return arrays as lists and structs as tuples for comparison; NaN equals itself."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.astuple(value)
        return type(value).__name__, *map(_plain, fields)
    if isinstance(value, Mapping):
        return sorted((repr(name), count) for name, count in value.items())
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return ADDRESS.sub("", repr(value))


def event_seeds() -> list[bytes]:
    """Return payloads in the forms of vLLM, SGLang and TensorRT-LLM."""
    stored = ["BlockStored", [1, 2], None, list(range(8)), 4, None, "GPU"]
    events = [
        stored,
        ["BlockStored", [2**64 - 1, b"x" * 32], 2, [9] * 8, 4, 1, "CPU", "adapter"],
        ["BlockRemoved", [1], "GPU"],
        ["AllBlocksCleared"],
        {"type": "BlockStored", "block_hashes": [7], "parent_block_hash": None}
        | {"token_ids": [[1, 2], [2, 3]], "block_size": 2, "lora_id": 3, "group_idx": 1}
        | {"kv_cache_spec_kind": "mamba", "extra_keys": [["salt"]], "medium": "GPU"},
        {"type": "BlockRemoved", "block_hashes": [7, "text"], "window_size": 64},
    ]
    encode = msgspec.msgpack.encode
    whole = [encode([1.5, events, 0]), encode({"ts": 1, "events": events, "dp_rank": 3})]
    return [*whole, *(encode([1.5, [event]]) for event in events), b"\x93" * 3000]
