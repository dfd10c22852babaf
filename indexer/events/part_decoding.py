"""A msgpack object whose members may be long arrays -> Python objects, a bounded step at a time."""

from collections.abc import Generator
from typing import Any

import msgspec
import numpy as np

from indexer.events.part_kernels import objects_end

PART = 1024
"""Members of an array, or blocks of an event, that are read in one step."""
WHOLE_BYTES_MAX = 16 * 1024
"""What is shorter is decoded at once."""

_OUTER = msgspec.msgpack.Decoder(list[msgspec.Raw] | dict[Any, msgspec.Raw])
_ARRAY_16, _ARRAY_32 = 0xDC, 0xDD


def decoding(raw: bytes | msgspec.Raw) -> Generator[int, None, object]:
    """As msgspec.msgpack.decode, for one well-formed object.  Raises what that raises.

    Of arrays that are members of the object a step reads some members; those in turn are read
    whole.
    """
    data = memoryview(raw)
    if len(data) <= WHOLE_BYTES_MAX:
        return msgspec.msgpack.decode(data)
    try:
        outer = _OUTER.decode(data)
    except msgspec.ValidationError:
        return msgspec.msgpack.decode(data)
    yield PART
    if isinstance(outer, dict):
        fields: dict[Any, object] = {}
        for name, member in outer.items():
            fields[name] = yield from _member(member)
        return fields
    items: list[object] = [None] * len(outer)
    for place, member in enumerate(outer):
        items[place] = yield from _member(member)
    return items


def _member(raw: msgspec.Raw) -> Generator[int, None, object]:
    data = memoryview(raw)
    width = {_ARRAY_16: 2, _ARRAY_32: 4}.get(data[0], 0)
    if len(data) <= WHOLE_BYTES_MAX or not width:
        return msgspec.msgpack.decode(data)
    left, at = int.from_bytes(data[1 : 1 + width], "big"), 1 + width
    bytes_, found = np.frombuffer(data, np.uint8), list[object]()
    while left:
        count = min(left, PART)
        end = objects_end(bytes_, at, count)
        head = bytes((_ARRAY_32,)) + count.to_bytes(4, "big")
        found += msgspec.msgpack.decode(head + data[at:end])
        left, at = left - count, end
        yield PART
    return found
