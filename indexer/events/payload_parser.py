"""Complete parser of KV event batches of every known shape: decode first, then interpret.

This is the reference for all payloads and the only reader of unusual payloads; the common shapes
are read by `kernels`, which has to agree with this module.  The input must be a well-formed
msgpack object of bounded depth (`kv_events` makes sure).

A batch is `[ts, events, rank, ...]` or a map.  An event is `[tag, field, ...]`, a map with "type",
or the bare tag.  Array fields are identified by position up to `extra_keys` (vLLM only ever
appended) and by type behind, because publishers differ there.  An unreadable event is counted and
left out.

Source: vLLM's distributed/kv_events.py, 0.11 to 0.33, https://github.com/vllm-project/vllm;
SGLang's disaggregation/kv_events.py, https://github.com/sgl-project/sglang; and Dynamo's publisher
for TensorRT-LLM, https://github.com/ai-dynamo/dynamo.
"""

from array import array
from collections import Counter
from collections.abc import Generator
from typing import Any, TypeAlias

import msgspec
import numpy as np

from indexer.events.block_identity import (
    BadIdentity,
    list_unknown_fields,
    read_identity,
    shorten,
    split_parts,
)
from indexer.events.chunked_decoding import WHOLE_BYTES_MAX, decode_in_steps
from indexer.events.event_types import (
    EVENT_COST,
    AllBlocksCleared,
    Batch,
    BlockRemoved,
    BlockStored,
    DecodeError,
    Event,
)
from indexer.hashing.block_hashing import Hashes, Tokens
from indexer.hashing.seeds import U64_MASK

EVENTS_PER_BATCH_MAX = 131_072
EVENTS_AT_ONCE = 128
"""Events of a large batch that are read per step."""
EVENT_BLOCK_SIZE_MAX = 2**32 - 1
UNKNOWN_NAMES_MAX = 32
"""Limit of names of unknown fields that are counted, per batch and per stream."""
STEP_COST = EVENTS_AT_ONCE * EVENT_COST
"""Cost of a whole step."""

STORED_FIELDS = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
)
STORED_FIELDS_MIN = 4
REMOVED_FIELDS = ("block_hashes", "medium")
REMOVED_FIELDS_MIN = 1
RANK_FIELDS = ("data_parallel_rank", "dp_rank", "attn_dp_rank")
GROUP_FIELDS = ("group_idx", "layer_group_id", "window_size")
"""Fields that number a cache group; the first given field counts.  Source of the last two, and of
`window_size` as a window: TensorRT-LLM's _utils.py (KVCacheEventSerializer).
"""
WINDOW_FIELDS = ("kv_cache_spec_sliding_window", "window_size")
LOCALITIES = ("LOCAL", "REMOTE")
TAIL_SPEC_FIELDS = 3  # group_idx, kind, sliding window; a later text is a locality
TAIL_NUMBERS = ("group_idx", "kv_cache_spec_sliding_window")
TAIL_TEXTS = ("locality", "source_kind", "ownership", "session_id")

Fields: TypeAlias = dict[object, object]


class _BadEvent(Exception):
    """Error for an unreadable event; the text gives the reason."""


_UNREADABLE = (ValueError, RecursionError)  # msgspec's errors and bad UTF-8 are ValueErrors
_BATCH_DECODER = msgspec.msgpack.Decoder(list[msgspec.Raw] | dict[str, msgspec.Raw])
_EVENTS_DECODER = msgspec.msgpack.Decoder(list[msgspec.Raw])


def parse_batch(payload: bytes) -> Batch:
    """Parse a payload.  Raises DecodeError unless a batch of at most EVENTS_PER_BATCH_MAX
    events.
    """
    steps = parse_batch_in_steps(payload)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            batch: Batch = end.value
            return batch


def parse_batch_in_steps(payload: bytes) -> Generator[int, None, Batch]:
    """Parse as `parse_batch`, in steps: yield the cost of each, roughly in blocks."""
    try:
        body = _BATCH_DECODER.decode(payload)
        raw_events, rank = _split_array(body) if isinstance(body, list) else _split_map(body)
        if len(payload) > WHOLE_BYTES_MAX:
            yield STEP_COST  # each of these decoders searches for the ends of members
        parts = _EVENTS_DECODER.decode(raw_events)
    except _UNREADABLE as error:
        raise DecodeError(f"not a batch of KV events: {error}") from error
    if len(parts) > EVENTS_PER_BATCH_MAX:
        raise DecodeError(
            f"{len(parts)} events in a batch, at most {EVENTS_PER_BATCH_MAX} expected"
        )
    if len(payload) > WHOLE_BYTES_MAX:
        yield STEP_COST
    events: list[Event] = []
    bad_events, last_error = 0, None
    unknown: Counter[str] = Counter()
    for index, part in enumerate(parts, 1):
        if index % EVENTS_AT_ONCE == 0:
            yield STEP_COST
        try:
            event = yield from _parse_event(part, unknown)
        except (_BadEvent, BadIdentity) as error:
            bad_events, last_error = bad_events + 1, f"event {index - 1}: {error}"
            continue
        if event is not None:
            events.append(event)
    return Batch(rank, events, bad_events, last_error, unknown or None)


def _split_array(body: list[msgspec.Raw]) -> tuple[msgspec.Raw, int | None]:
    if len(body) < 2:
        raise DecodeError(f"a batch has at least 2 elements, this array has {len(body)}")
    return body[1], _decode_rank(body[2]) if len(body) > 2 else None


def _split_map(body: dict[str, msgspec.Raw]) -> tuple[msgspec.Raw, int | None]:
    if "events" not in body:
        raise DecodeError("`events` is missing in the map")
    ranks = (_decode_rank(body[name]) for name in RANK_FIELDS if name in body)
    return body["events"], next((rank for rank in ranks if rank is not None), None)


def _decode_rank(raw: msgspec.Raw) -> int | None:
    return msgspec.msgpack.decode(raw, type=int | None)


def _parse_event(raw: msgspec.Raw, unknown: Counter[str]) -> Generator[int, None, Event | None]:
    """Parse an event; None if irrelevant: Ignored, or about blocks of another machine.

    unknown: counter of unknown fields by name
    """
    try:
        event = yield from decode_in_steps(raw)
    except _UNREADABLE as error:
        raise _BadEvent(f"unreadable: {error}") from error
    tag, fields = _tag_and_fields(event)
    for name in list_unknown_fields(fields):
        if name in unknown or len(unknown) < UNKNOWN_NAMES_MAX:
            unknown[name] += 1
    if tag == "Ignored" or _is_elsewhere(fields):
        return None
    if tag == "BlockStored":
        return (yield from _block_stored(fields, is_array=isinstance(event, list)))
    if tag == "BlockRemoved":
        return (yield from _block_removed(fields))
    return AllBlocksCleared()


def _tag_and_fields(event: object) -> tuple[str, Fields]:
    """Return the known tag and the fields by name; unknown elements have the name `[index]`."""
    items: list[object] = []
    fields: Fields = {}
    if isinstance(event, dict):
        fields = event
        tag = event.get("type")
    elif isinstance(event, list) and event:
        tag, *items = event
    else:
        tag = event
    if tag == "BlockStored":
        return tag, fields or _name_fields(items, STORED_FIELDS, STORED_FIELDS_MIN)
    if tag == "BlockRemoved":
        return tag, fields or _name_fields(items, REMOVED_FIELDS, REMOVED_FIELDS_MIN)
    if tag == "AllBlocksCleared" or tag == "Ignored":
        surplus: Fields = {
            f"[{index}]": item for index, item in enumerate(items, 1) if item is not None
        }
        return tag, fields or surplus
    raise _BadEvent(f"unknown tag {shorten(tag)}")


def _name_fields(items: list[object], names: tuple[str, ...], mandatory: int) -> Fields:
    if len(items) < mandatory:
        raise _BadEvent(f"{names[len(items)]} is missing")
    fields: Fields = dict(zip(names, items, strict=False))
    metadata = fields.get("lora_name")
    if isinstance(metadata, dict):  # SGLang has a map of metadata in this place
        fields = metadata | fields | {"lora_name": metadata.get("lora_name")}
    return fields | _read_tail(items[len(names) :], 1 + len(names))


def _read_tail(items: list[object], first: int) -> Fields:
    """Read the elements after the positional fields, by type.

    vLLM's order is group_idx, kv_cache_spec_kind, kv_cache_spec_sliding_window, locality,
    source_kind.  Some publishers put block_mm_infos, a list, anywhere among them.
    first: index in the event of the first element
    """
    tail: Fields = {}
    position = 0
    numbers, texts = iter(TAIL_NUMBERS), iter(TAIL_TEXTS)
    for index, item in enumerate(items, first):
        if isinstance(item, list) and "block_mm_infos" not in tail:
            tail["block_mm_infos"] = item
            continue
        position += 1
        name = None
        if type(item) is int:
            name = next(numbers, None)
        elif isinstance(item, str):
            # Newer engines append a locality: a text in that position is not an attention kind.
            is_kind = position <= TAIL_SPEC_FIELDS and item.upper() not in LOCALITIES
            if is_kind and "kv_cache_spec_kind" not in tail:
                name = "kv_cache_spec_kind"
            elif not is_kind:
                name = next(texts, None)
        if item is not None:
            tail[f"[{index}]" if name is None else name] = item
    return tail


def _is_elsewhere(fields: Fields) -> bool:
    """Return whether the blocks are not on the sending rank; an unknown locality counts as
    remote.
    """
    locality = fields.get("locality")
    return locality is not None and not (isinstance(locality, str) and locality.upper() == "LOCAL")


def _block_stored(fields: Fields, *, is_array: bool) -> Generator[int, None, BlockStored]:
    hashes = yield from _read_hashes(fields)
    parent = fields.get("parent_block_hash")
    parent_hash = None if parent is None else _to_hash(parent, "parent_block_hash")
    if (yield from _has_duplicates(hashes, parent_hash)):
        raise _BadEvent("block_hashes and parent_block_hash contain a repeated hash")
    tokens, is_bigram = yield from _read_tokens(fields.get("token_ids"))
    begins = parent_hash is None
    identity = yield from read_identity(fields, len(hashes), begins=begins)
    return BlockStored(
        block_hashes=hashes,
        parent=parent_hash,
        tokens=tokens,
        block_size=_block_size(fields.get("block_size")),
        medium=_text_field(fields, "medium"),
        lora_name=identity.lora_name,
        cache_salt=identity.cache_salt,
        mm_hashes=identity.mm_hashes,
        group_idx=_first_number(fields, GROUP_FIELDS),
        kind=_text_field(fields, "kv_cache_spec_kind"),
        is_bigram=is_bigram,
        sliding_window=_first_number(fields, WINDOW_FIELDS),
        lookahead=(yield from _read_lookahead(fields.get("lookahead_token_ids"), len(hashes))),
        has_key_fields="lora_name" in fields or "extra_keys" in fields,
        is_array=is_array,
    )


def _block_removed(fields: Fields) -> Generator[int, None, BlockRemoved]:
    return BlockRemoved(
        block_hashes=(yield from _read_hashes(fields)),
        medium=_text_field(fields, "medium"),
        group_idx=_first_number(fields, GROUP_FIELDS),
        kind=_text_field(fields, "kv_cache_spec_kind"),
    )


def _read_hashes(fields: Fields) -> Generator[int, None, Hashes]:
    values = fields.get("block_hashes")
    if not isinstance(values, list):
        raise _BadEvent(f"block_hashes is {shorten(values)}, expected an array")
    found = np.empty(len(values), np.uint64)
    for cost, part in split_parts(len(values)):
        if cost:
            yield cost
        found[part] = [_to_hash(value, "block_hashes") for value in values[part]]
    return found


def _has_duplicates(hashes: Hashes, parent: int | None) -> Generator[int, None, bool]:
    """Return whether a hash, or the parent, occurs twice."""
    seen: set[int | None] = {parent}
    for cost, part in split_parts(len(hashes)):
        if cost:
            yield cost
        seen.update(hashes[part].tolist())
    return len(seen) <= len(hashes)


def _to_hash(value: object, name: str) -> int:
    """Return an engine hash as u64.  Of raw bytes the last eight count, big-endian.

    vLLM's integers have the same values, so a stream may change between both forms.
    """
    if type(value) is int:
        return value & U64_MASK
    if isinstance(value, bytes) and value:
        return int.from_bytes(value[-8:], "big")
    raise _BadEvent(f"{name} holds {shorten(value)}, expected an integer or bytes")


def _read_tokens(value: object) -> Generator[int, None, tuple[Tokens, bool]]:
    """Return (uint32 [n], True for EAGLE pairs [[t0, t1], [t1, t2], ...])."""
    if not isinstance(value, list):
        raise _BadEvent(f"token_ids is {shorten(value)}, expected an array")
    is_bigram = bool(value) and isinstance(value[0], list)
    found = np.empty(len(value) + is_bigram, np.uint32)
    for cost, part in split_parts(len(value)):
        if cost:
            yield cost
        tokens = _first_tokens(value[part]) if is_bigram else value[part]
        found[part] = _token_array(tokens)
    if is_bigram:
        found[-1:] = _token_array([value[-1][1]])
    return found, is_bigram


def _read_lookahead(value: object, n_blocks: int) -> Generator[int, None, Tokens | None]:
    """Return uint32 [n_blocks, L], the L tokens behind each block; None without any."""
    if value is None or value == []:
        return None
    if not isinstance(value, list) or len(value) != n_blocks:
        raise _BadEvent(f"lookahead_token_ids is {shorten(value)}, expected an item per hash")
    rows = [row if isinstance(row, list) else [row] for row in value]
    n_tokens = len(rows[0])
    if n_tokens == 0 or any(len(row) != n_tokens for row in rows):
        raise _BadEvent("lookahead_token_ids holds rows of different lengths")
    found = np.empty((n_blocks, n_tokens), np.uint32)
    for cost, part in split_parts(n_blocks):
        if cost:
            yield cost
        for block, row in enumerate(rows[part], part.start):
            found[block] = _token_array(row, "lookahead_token_ids")
    return found


def _first_tokens(pairs: list[Any]) -> list[object]:
    if any(type(pair) is not list or len(pair) != 2 for pair in pairs):
        raise _BadEvent("token_ids mixes pairs and other values")
    return [pair[0] for pair in pairs]


def _token_array(values: list[Any], name: str = "token_ids") -> "array[int]":
    if not set(map(type, values)) <= {int}:
        raise _BadEvent(f"{name} holds a non-integer value")
    try:
        return array("I", values)
    except OverflowError as error:
        raise _BadEvent(f"{name} holds an integer outside 0..2^32-1") from error


def _block_size(value: object) -> int:
    if type(value) is not int or not 0 <= value <= EVENT_BLOCK_SIZE_MAX:
        raise _BadEvent(f"block_size is {shorten(value)}, expected an integer in 0..2^32-1")
    return value


def _first_number(fields: Fields, names: tuple[str, ...]) -> int | None:
    """Return the first number among the fields; None without any."""
    for name in names:
        value = _number_field(fields, name)
        if value is not None:
            return value
    return None


def _number_field(fields: Fields, name: str) -> int | None:
    value = fields.get(name)
    if value is not None and type(value) is not int:
        raise _BadEvent(f"{name} is {shorten(value)}, expected an integer")
    return value


def _text_field(fields: Fields, name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise _BadEvent(f"{name} is {shorten(value)}, expected a string")
    return value
