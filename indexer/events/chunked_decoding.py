"""Stepwise decoding of a msgpack object with long arrays as members."""

from collections.abc import Generator
from typing import Any

import msgspec
import numpy as np

from indexer.events.array_end_kernels import objects_end

PART_ELEMENTS = 1024
"""Members of an array, or blocks of an event, that are read per step."""
WHOLE_BYTES_MAX = 16 * 1024
"""Limit of bytes of an object that is decoded at once."""

_OUTER = msgspec.msgpack.Decoder(list[msgspec.Raw] | dict[Any, msgspec.Raw])
_ARRAY_16, _ARRAY_32 = 0xDC, 0xDD


def decode_in_steps(raw: bytes | msgspec.Raw) -> Generator[int, None, object]:
    """Decode a well-formed object as msgspec.msgpack.decode does, in steps.  Raises the same
    errors.

    A step reads some elements of an array that is a member of the object, each element whole.
    """
    data = memoryview(raw)
    if len(data) <= WHOLE_BYTES_MAX:
        return msgspec.msgpack.decode(data)
    try:
        outer = _OUTER.decode(data)
    except msgspec.ValidationError:
        return msgspec.msgpack.decode(data)
    yield PART_ELEMENTS
    if isinstance(outer, dict):
        fields: dict[Any, object] = {}
        for name, member in outer.items():
            fields[name] = yield from _decode_member(member)
        return fields
    items: list[object] = [None] * len(outer)
    for place, member in enumerate(outer):
        items[place] = yield from _decode_member(member)
    return items


def _decode_member(raw: msgspec.Raw) -> Generator[int, None, object]:
    data = memoryview(raw)
    width = {_ARRAY_16: 2, _ARRAY_32: 4}.get(data[0], 0)
    if len(data) <= WHOLE_BYTES_MAX or not width:
        return msgspec.msgpack.decode(data)
    left, at = int.from_bytes(data[1 : 1 + width], "big"), 1 + width
    bytes_, found = np.frombuffer(data, np.uint8), list[object]()
    while left:
        count = min(left, PART_ELEMENTS)
        end = objects_end(bytes_, at, count)
        # A part gets an array header, so that the decoder sees a complete object.
        head = bytes((_ARRAY_32,)) + count.to_bytes(4, "big")
        found += msgspec.msgpack.decode(head + data[at:end])
        left, at = left - count, end
        yield PART_ELEMENTS
    return found
