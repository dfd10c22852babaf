"""Complete parser of KV event batches of every known shape: decode first, then interpret.

This is the reference for all payloads and the only reader of the unusual ones; the common shapes
are read by `kernels`, which has to agree with this module.  The input must be one well-formed
msgpack object of bounded depth (`kv_events` makes sure).

A batch is `[ts, events, rank, ...]` or a map.  An event is `[tag, field, ...]`, a map with "type",
or the bare tag.  Array fields are identified by position up to `extra_keys` (vLLM only ever
appended) and by type after it, because publishers differ there.  An unreadable event is counted
and left out.

Source: vLLM's distributed/kv_events.py, 0.11 to 0.33, https://github.com/vllm-project/vllm;
SGLang's disaggregation/kv_events.py, https://github.com/sgl-project/sglang; and Dynamo's publisher
for TensorRT-LLM, https://github.com/ai-dynamo/dynamo.
"""

from array import array
from collections.abc import Generator, Iterator
from typing import Any, TypeAlias

import msgspec
import numpy as np
from xxhash import xxh3_64_intdigest

from indexer.events.chunked_decoding import PART_ELEMENTS, WHOLE_BYTES_MAX, decode_in_steps
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
from indexer.hashing.seeds import U64_MASK, salt_parts, sha256_hex_prefix

EVENTS_PER_BATCH_MAX = 131_072
EVENTS_AT_ONCE = 128
"""Events of a large batch that are read per step."""
EVENT_BLOCK_SIZE_MAX = 2**32 - 1
STEP_COST = EVENTS_AT_ONCE * EVENT_COST
"""Cost of a whole step."""
KEYS_COST = 4
"""Cost of reading the extra keys of a block, in blocks."""

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
LOCALITIES = ("LOCAL", "REMOTE")
TAIL_SPEC_FIELDS = 3  # group_idx, kind, sliding window; a later text is a locality

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
    for index, part in enumerate(parts, 1):
        if index % EVENTS_AT_ONCE == 0:
            yield STEP_COST
        try:
            event = yield from _parse_event(part)
        except _BadEvent as error:
            bad_events, last_error = bad_events + 1, f"event {index - 1}: {error}"
            continue
        if event is not None:
            events.append(event)
    return Batch(rank, events, bad_events, last_error)


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


def _parse_event(raw: msgspec.Raw) -> Generator[int, None, Event | None]:
    """Parse an event; None if irrelevant: Ignored, or about blocks of another machine."""
    try:
        event = yield from decode_in_steps(raw)
    except _UNREADABLE as error:
        raise _BadEvent(f"unreadable: {error}") from error
    tag, fields = _tag_and_fields(event)
    if tag == "Ignored" or _is_elsewhere(fields):
        return None
    if tag == "BlockStored":
        return (yield from _block_stored(fields))
    if tag == "BlockRemoved":
        return (yield from _block_removed(fields))
    return AllBlocksCleared()


def _tag_and_fields(event: object) -> tuple[str, Fields]:
    """Return the known tag and the fields by name; unknown elements of an array are left out."""
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
        return tag, fields
    raise _BadEvent(f"unknown tag {_shorten(tag)}")


def _name_fields(items: list[object], names: tuple[str, ...], mandatory: int) -> Fields:
    if len(items) < mandatory:
        raise _BadEvent(f"{names[len(items)]} is missing")
    fields: Fields = dict(zip(names, items, strict=False))
    metadata = fields.get("lora_name")
    if isinstance(metadata, dict):  # SGLang has a map of metadata in this place
        fields["lora_name"] = metadata.get("lora_name")
        fields["cache_salt"] = metadata.get("cache_salt")
    return fields | _read_tail(items[len(names) :])


def _read_tail(items: list[object]) -> Fields:
    """Read the elements after the positional fields, by type.

    vLLM's order is group_idx, kv_cache_spec_kind, kv_cache_spec_sliding_window, locality,
    source_kind.  Some publishers put block_mm_infos, a list, anywhere among them.
    """
    tail: Fields = {}
    position = 0
    for item in items:
        if isinstance(item, list):
            tail.setdefault("block_mm_infos", item)
            continue
        if type(item) is int:
            tail.setdefault("group_idx", item)
        elif isinstance(item, str):
            # Newer engines append a locality: a text in that position is not an attention kind.
            if item.upper() in LOCALITIES or position >= TAIL_SPEC_FIELDS:
                tail.setdefault("locality", item)
            else:
                tail.setdefault("kv_cache_spec_kind", item)
        position += 1
    return tail


def _is_elsewhere(fields: Fields) -> bool:
    """Return whether the blocks are not on the sending rank; an unknown locality counts as
    remote.
    """
    locality = fields.get("locality")
    return locality is not None and not (isinstance(locality, str) and locality.upper() == "LOCAL")


def _block_stored(fields: Fields) -> Generator[int, None, BlockStored]:
    hashes = yield from _read_hashes(fields)
    parent = fields.get("parent_block_hash")
    parent_hash = None if parent is None else _to_hash(parent, "parent_block_hash")
    if (yield from _has_duplicates(hashes, parent_hash)):
        raise _BadEvent("block_hashes and parent_block_hash contain a repeated hash")
    tokens, is_bigram = yield from _read_tokens(fields.get("token_ids"))
    lora_name = _text_field(fields, "lora_name") or None
    keys = fields.get("extra_keys")
    mm_hashes, extra_salt = yield from _extra_keys(keys, lora_name, len(hashes))
    explicit = fields.get("block_mm_infos")
    if explicit is not None:
        mm_hashes = yield from _block_mm_infos(explicit, len(hashes))
    salt = None
    if parent_hash is None and len(hashes):
        salt, salt_mm_hash = salt_parts(_text_field(fields, "cache_salt") or extra_salt)
        if salt_mm_hash is not None:
            mm_hashes[0].append(salt_mm_hash)
    return BlockStored(
        block_hashes=hashes,
        parent=parent_hash,
        tokens=tokens,
        block_size=_block_size(fields.get("block_size")),
        medium=_text_field(fields, "medium"),
        lora_name=lora_name,
        cache_salt=salt,
        mm_hashes=mm_hashes if any(mm_hashes) else None,
        group_idx=_group_idx(fields),
        kind=_text_field(fields, "kv_cache_spec_kind"),
        is_bigram=is_bigram,
    )


def _block_removed(fields: Fields) -> Generator[int, None, BlockRemoved]:
    return BlockRemoved(
        block_hashes=(yield from _read_hashes(fields)),
        medium=_text_field(fields, "medium"),
        group_idx=_group_idx(fields),
        kind=_text_field(fields, "kv_cache_spec_kind"),
    )


def _split_parts(n: int) -> Iterator[tuple[int, slice]]:
    """Yield (cost of the previous part, next part of n members), at least one."""
    for start in range(0, max(n, 1), PART_ELEMENTS):
        yield PART_ELEMENTS if start else 0, slice(start, min(start + PART_ELEMENTS, n))


def _read_hashes(fields: Fields) -> Generator[int, None, Hashes]:
    values = fields.get("block_hashes")
    if not isinstance(values, list):
        raise _BadEvent(f"block_hashes is {_shorten(values)}, expected an array")
    found = np.empty(len(values), np.uint64)
    for cost, part in _split_parts(len(values)):
        if cost:
            yield cost
        found[part] = [_to_hash(value, "block_hashes") for value in values[part]]
    return found


def _has_duplicates(hashes: Hashes, parent: int | None) -> Generator[int, None, bool]:
    """Return whether a hash, or the parent, occurs twice."""
    seen: set[int | None] = {parent}
    for cost, part in _split_parts(len(hashes)):
        if cost:
            yield cost
        seen.update(hashes[part].tolist())
    return len(seen) <= len(hashes)


def _to_hash(value: object, name: str) -> int:
    """Return an engine hash as u64.  Of raw bytes the last eight count, big-endian.

    vLLM sends the same value when it sends integers, so a stream may change from one to the other.
    """
    if type(value) is int:
        return value & U64_MASK
    if isinstance(value, bytes) and value:
        return int.from_bytes(value[-8:], "big")
    raise _BadEvent(f"{name} holds {_shorten(value)}, expected an integer or bytes")


def _read_tokens(value: object) -> Generator[int, None, tuple[Tokens, bool]]:
    """Return (uint32 [n], True if they came as EAGLE pairs [[t0, t1], [t1, t2], ...])."""
    if not isinstance(value, list):
        raise _BadEvent(f"token_ids is {_shorten(value)}, expected an array")
    is_bigram = bool(value) and isinstance(value[0], list)
    found = np.empty(len(value) + is_bigram, np.uint32)
    for cost, part in _split_parts(len(value)):
        if cost:
            yield cost
        tokens = _first_tokens(value[part]) if is_bigram else value[part]
        found[part] = _token_array(tokens)
    if is_bigram:
        found[-1:] = _token_array([value[-1][1]])
    return found, is_bigram


def _first_tokens(pairs: list[Any]) -> list[object]:
    if any(type(pair) is not list or len(pair) != 2 for pair in pairs):
        raise _BadEvent("token_ids mixes pairs and other values")
    return [pair[0] for pair in pairs]


def _token_array(values: list[Any]) -> "array[int]":
    if not set(map(type, values)) <= {int}:
        raise _BadEvent("token_ids holds a non-integer value")
    try:
        return array("I", values)
    except OverflowError as error:
        raise _BadEvent("token_ids holds an integer outside 0..2^32-1") from error


def _block_size(value: object) -> int:
    if type(value) is not int or not 0 <= value <= EVENT_BLOCK_SIZE_MAX:
        raise _BadEvent(f"block_size is {_shorten(value)}, expected an integer in 0..2^32-1")
    return value


def _group_idx(fields: Fields) -> int | None:
    value = fields.get("group_idx")
    if value is not None and type(value) is not int:
        raise _BadEvent(f"group_idx is {_shorten(value)}, expected an integer")
    return value


def _text_field(fields: Fields, name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise _BadEvent(f"{name} is {_shorten(value)}, expected a string")
    return value


def _extra_keys(
    value: object, lora_name: str | None, n_blocks: int
) -> Generator[int, None, tuple[list[list[int]], str | None]]:
    """Return (multimodal hashes per block, text in the first block that may be the cache salt).

    vLLM's keys of a block are its LoRA name, an [identifier, offset] per image or sound, and in the
    first block of a sequence the salt.
    """
    if value is None:
        return [[] for _ in range(n_blocks)], None
    if not isinstance(value, list):
        raise _BadEvent(f"extra_keys is {_shorten(value)}, expected an array")
    mm_hashes: list[list[int]] = []
    salt = None
    for cost, part in _split_parts(n_blocks):
        if cost:
            yield KEYS_COST * cost
        for keys in value[part]:
            found, text = _keys_of_block(keys, lora_name)
            salt = salt if mm_hashes else text
            mm_hashes.append(found)
    return mm_hashes + [[] for _ in range(n_blocks - len(mm_hashes))], salt


def _keys_of_block(keys: object, lora_name: str | None) -> tuple[list[int], str | None]:
    """Return (multimodal hashes of a block, text that may be the salt)."""
    if keys is None:
        return [], None
    if not isinstance(keys, list):
        raise _BadEvent(f"extra_keys holds {_shorten(keys)}, expected an array or nil")
    texts = [key for key in keys if isinstance(key, str) and key]
    if lora_name in texts:
        texts.remove(lora_name)
    found = [mm for mm in map(sha256_hex_prefix, texts) if mm is not None]
    found += [mm for mm in map(_paired_mm_hash, keys) if mm is not None]
    salt = next((text for text in reversed(texts) if sha256_hex_prefix(text) is None), None)
    return found, salt


def _paired_mm_hash(key: object) -> int | None:
    """Return the u64 of the identifier in [identifier, offset]; other than SHA-256 it is hashed."""
    if not isinstance(key, list) or len(key) != 2 or not isinstance(key[0], str) or not key[0]:
        return None
    mm_hash = sha256_hex_prefix(key[0])
    return xxh3_64_intdigest(key[0].encode()) if mm_hash is None else mm_hash


def _block_mm_infos(value: object, n_blocks: int) -> Generator[int, None, list[list[int]]]:
    """Return the hashes per block of nil or {"mm_objects": [{"mm_hash": u64, ...}, ...]}."""
    if not isinstance(value, list):
        raise _BadEvent(f"block_mm_infos is {_shorten(value)}, expected an array")
    mm_hashes: list[list[int]] = []
    for cost, part in _split_parts(n_blocks):
        if cost:
            yield KEYS_COST * cost
        mm_hashes += [[] if info is None else _mm_objects(info) for info in value[part]]
    return mm_hashes + [[] for _ in range(n_blocks - len(mm_hashes))]


def _mm_objects(info: object) -> list[int]:
    objects = info.get("mm_objects") if isinstance(info, dict) else None
    if not isinstance(objects, list):
        raise _BadEvent("block_mm_infos holds a value other than nil or mm_objects")
    found = []
    for item in objects:
        mm_hash = item.get("mm_hash") if isinstance(item, dict) else None
        if type(mm_hash) is not int:
            raise _BadEvent(f"mm_hash is {_shorten(mm_hash)}, expected an integer")
        found.append(mm_hash & U64_MASK)
    return found


def _shorten(value: object) -> str:
    """Return a text short enough for a log line, for any value a publisher sent."""
    text = repr(value)
    return text if len(text) <= 40 else f"{type(value).__name__} {text[:40]}..."
