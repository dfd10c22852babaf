"""Compiled readers of single msgpack objects inside a payload.

Every reader takes the payload and an index, and returns the index behind the object; no reader
accesses bytes outside the payload.  Malformed objects, and rare objects that are left to msgspec,
give the negative index UNUSUAL.  `kernels` interprets the objects.

Source: https://github.com/msgpack/msgpack/blob/master/spec.md
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.jit.decorators import READ_ONLY, compiled
from indexer.jit.memory_kernels import stack_array

NESTING_MAX = 32

# Negative indexes.
UNUSUAL = -1
TRUNCATED = -1
RESERVED_BYTE = -2
TOO_DEEP = -3

NONE = -1  # nil in the place of a length or a number
NIL = 0xC0
U32_MAX = 2**32 - 1

BYTES = READ_ONLY.format("uint8")

levels = stack_array("int64", NESTING_MAX)


@compiled()
def header_at(buf, at):
    """Return (bytes of the object at `at` without members, number of members).

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
        # A length follows, of 1, 2 or 4 bytes in bin C4-C6, ext C7-C9 and str D9-DB, of 2 or 4
        # bytes in array DC-DD and map DE-DF.
        width = 2 << (tag & 1) if tag >= 0xDC else 1 << ((tag - 0xC4) % 3)
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


@compiled(f"int64({BYTES}, int64)")
def object_end(buf, start):
    """Return the index behind the msgpack object at `start`, or TRUNCATED, RESERVED_BYTE, TOO_DEEP.

    buf: uint8 [n].  Linear in the bytes of the object, whatever lengths it declares.
    """
    waiting = levels()  # members still to come, per open container
    depth, at = 0, start
    while True:
        size, members = header_at(buf, at)
        if size < 0:
            return size
        at += size
        if members > 0:
            # A recursive decoder would exhaust the stack: deep nesting is refused before any
            # decoder runs.
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


@compiled()
def read_int(buf, at):
    """Return (integer as 64 bits, next index); the index is UNUSUAL for anything else."""
    left = buf.shape[0] - at
    if left < 1:
        return 0, UNUSUAL
    tag = np.int64(buf[at])
    if tag < 0x80:
        return tag, at + 1
    if tag >= 0xE0:
        return tag - 256, at + 1
    if tag < 0xCC or tag > 0xD3:
        return 0, UNUSUAL
    width = 1 << (tag & 3)
    if left < 1 + width:
        return 0, UNUSUAL
    value = np.int64(0)
    for k in range(width):
        value = (value << 8) | np.int64(buf[at + 1 + k])
    if tag >= 0xD0:
        unused = 64 - 8 * width
        value = (value << unused) >> unused  # the sign bit moves up and back down
    return value, at + 1 + width


@compiled()
def read_u32(buf, at):
    """Read as read_int, for values in 0..2^32-1 only."""
    value, after = read_int(buf, at)
    return (value, after) if 0 <= value <= U32_MAX else (0, UNUSUAL)


@compiled()
def read_optional_u32(buf, at):
    """Read as read_u32; nil gives NONE."""
    if at < buf.shape[0] and buf[at] == NIL:
        return NONE, at + 1
    return read_u32(buf, at)


@compiled()
def read_array_header(buf, at):
    """Return (number of elements, index of the first); the index is UNUSUAL for anything else."""
    size, members = header_at(buf, at)
    if size < 0:
        return 0, UNUSUAL
    tag = buf[at]
    is_array = (tag & 0xF0) == 0x90 or tag == 0xDC or tag == 0xDD
    return (members, at + size) if is_array else (0, UNUSUAL)


@compiled()
def read_text(buf, at):
    """Return (length, index of the first byte) of an ASCII string; for nil (NONE, next).

    At most 255 bytes.  The next object begins at `first + max(length, 0)`.  UNUSUAL for all else.
    """
    left = buf.shape[0] - at
    if left < 1:
        return 0, UNUSUAL
    tag = np.int64(buf[at])
    if tag == NIL:
        return NONE, at + 1
    first = at + 1
    length = tag & 31
    if tag == 0xD9 and left > 1:
        length = np.int64(buf[at + 1])
        first = at + 2
    elif tag < 0xA0 or tag > 0xBF:
        return 0, UNUSUAL
    if first + length > buf.shape[0]:
        return 0, UNUSUAL
    bits = np.uint8(0)
    for k in range(length):
        bits |= buf[first + k]
    return (length, first) if bits < 0x80 else (0, UNUSUAL)


@compiled()
def skip_nils(buf, at):
    """Return the index behind nil or an array of nils."""
    if at < buf.shape[0] and buf[at] == NIL:
        return at + 1
    count, at = read_array_header(buf, at)
    if at < 0 or count > buf.shape[0] - at:
        return UNUSUAL
    for k in range(count):
        if buf[at + k] != NIL:
            return UNUSUAL
    return at + count


@compiled()
def skip_plain(buf, at):
    """Return the index behind nil, a boolean, an integer, a short ASCII string or an array of
    integers.
    """
    if at >= buf.shape[0]:
        return UNUSUAL
    tag = buf[at]
    if tag == NIL or tag == 0xC2 or tag == 0xC3:
        return at + 1
    if 0xA0 <= tag <= 0xBF or tag == 0xD9:
        length, first = read_text(buf, at)
        return first + length if first >= 0 else UNUSUAL
    count, first = read_array_header(buf, at)
    if first < 0:
        _, after = read_int(buf, at)
        return after
    for _k in range(count):
        _, first = read_int(buf, first)
        if first < 0:
            return UNUSUAL
    return first
