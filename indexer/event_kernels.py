"""Compiled readers of msgpack payloads.

`object_end` walks any msgpack object without building it.

Source: https://github.com/msgpack/msgpack/blob/master/spec.md
"""

import numpy as np
from numba import njit, types

NESTING_MAX = 32
TRUNCATED = -1
RESERVED_BYTE = -2
TOO_DEEP = -3

# Read-only bytes; a writable array is accepted too.
BYTES = types.Array(types.uint8, 1, "C", readonly=True)


@njit(types.UniTuple(types.int64, 2)(BYTES, types.int64), cache=True)
def header_at(buf, at):
    """(bytes of the object at `at` without its members, number of its members).

    The first is TRUNCATED or RESERVED_BYTE when there is no such object.
    """
    left = buf.shape[0] - at
    if left < 1:
        return TRUNCATED, 0
    tag = np.int64(buf[at])
    size, members = 1, 0
    if tag < 0x80 or tag >= 0xE0 or tag == 0xC0 or tag == 0xC2 or tag == 0xC3:
        return 1, 0
    if tag < 0x90:
        members = 2 * (tag & 15)
    elif tag < 0xA0:
        members = tag & 15
    elif tag < 0xC0:
        size = 1 + (tag & 31)
    elif tag == 0xC1:
        return RESERVED_BYTE, 0
    elif 0xCA <= tag <= 0xD3:
        # float32, float64, u8, u16, u32, u64, i8, i16, i32, i64
        size = 5 if tag == 0xCA else 9 if tag == 0xCB else 1 + (1 << ((tag - 0xCC) & 3))
    elif 0xD4 <= tag <= 0xD8:
        size = 2 + (1 << (tag - 0xD4))  # fixext: type and 1, 2, 4, 8 or 16 bytes
    else:
        # A length of 1, 2 or 4 bytes follows: bin C4-C6, ext C7-C9, str D9-DB, array, map.
        width = 1
        if tag == 0xC5 or tag == 0xC8 or tag == 0xDA or tag == 0xDC or tag == 0xDE:
            width = 2
        elif tag == 0xC6 or tag == 0xC9 or tag == 0xDB or tag == 0xDD or tag == 0xDF:
            width = 4
        if left < 1 + width:
            return TRUNCATED, 0
        length = 0
        for k in range(width):
            length = (length << 8) | np.int64(buf[at + 1 + k])
        size = 1 + width
        if tag >= 0xDE:
            members = 2 * length
        elif tag >= 0xDC:
            members = length
        else:
            size += length + (1 if 0xC7 <= tag <= 0xC9 else 0)
    return (size, members) if size <= left else (TRUNCATED, 0)


@njit(types.int64(BYTES, types.int64), cache=True)
def object_end(buf, start):
    """Index after the msgpack object that begins at `start`, or TRUNCATED, RESERVED_BYTE, TOO_DEEP.

    buf: uint8 [n].  Linear in the bytes of the object, whatever lengths it declares.
    """
    waiting = np.empty(NESTING_MAX, np.int64)  # members still to come, per open container
    depth, at = 0, start
    while True:
        size, members = header_at(buf, at)
        if size < 0:
            return size
        at += size
        if members > 0:
            if depth == NESTING_MAX:
                return TOO_DEEP
            waiting[depth] = members
            depth += 1
            continue
        while depth > 0:
            waiting[depth - 1] -= 1
            if waiting[depth - 1] > 0:
                break
            depth -= 1
        if depth == 0:
            return at
