"""Text primitives on bytes: finding ends, comparing, formatting numbers.

Bytes are read in windows of WINDOW bytes, in words of eight, or singly, and never outside of the
data.  A window or word that would cross the end begins earlier instead, and the surplus is shifted
out; the data must therefore have at least WINDOW bytes.

With NUMBA_BOUNDSCHECK=1 the first and the last byte of each window and word are checked.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.jit.decorators import compiled, intrinsic
from indexer.jit.memory_kernels import emit_load, word_at

U = np.uint64
I = np.int64  # noqa: E741  the two casts are everywhere; short names keep the loops readable


def bytes_of(text: bytes) -> list[np.int64]:
    """Return the bytes as numbers of one type: for plain ones numba compiles helpers for each
    value.
    """
    return [np.int64(byte) for byte in text]


NONE = -1
WINDOW = 64
TEXT_WORDS = 4
"""Longest known text, in words."""
LOWER_CASE = U(0x2020202020202020)
"""Mask that converts eight letters to lower case."""
CASE_SENSITIVE = U(0)

BLANK, QUOTE, DASH, DOT, ZERO, NINE = bytes_of(b' "-.09')
LARGE_A, LARGE_Z, LOW_LINE, SMALL_A, SMALL_Z, BACKSLASH = bytes_of(b"AZ_az\\")
TILDE, DELETE = bytes_of(b"~\x7f")
TEN_TO = 10 ** np.arange(20, dtype=np.uint64)
PAIRS = np.frombuffer(b"".join(b"%02d" % k for k in range(100)), np.uint8).copy()


def words_of(*texts: bytes, small: bool = False) -> np.ndarray:
    """Return the texts, each padded with zeros, as uint64[n, TEXT_WORDS].  small: ignore case"""
    filled = b"".join(text.ljust(8 * TEXT_WORDS, b"\0") for text in texts)
    words = np.frombuffer(filled, np.uint64).reshape(-1, TEXT_WORDS)
    return words | LOWER_CASE if small else words.copy()


def broadcast_lane(builder, number, kind):
    """Return a vector with the lowest bits of a number in each lane."""
    from llvmlite import ir

    lane = ir.IntType(32)
    if kind.element != number.type:
        number = builder.trunc(number, kind.element)
    nothing = ir.Constant(kind, ir.Undefined)
    single = builder.insert_element(nothing, number, ir.Constant(lane, 0))
    first = ir.Constant(ir.VectorType(lane, kind.count), [0] * kind.count)
    return builder.shuffle_vector(single, nothing, first)


@intrinsic
def _between(typingctx, data, at, low, high):
    """Return a mask; bit k: byte at + k is in low..high."""
    from llvmlite import ir
    from numba import types

    kind = ir.VectorType(ir.IntType(8), WINDOW)

    def codegen(context, builder, signature, args):
        array, at, low, high = args
        text = emit_load(context, builder, signature.args[0], array, at, kind)
        above = builder.sub(text, broadcast_lane(builder, low, kind))
        width = broadcast_lane(builder, builder.sub(high, low), kind)
        inside = builder.icmp_unsigned("<=", above, width)
        return builder.bitcast(inside, ir.IntType(WINDOW))

    return types.uint64(data, types.int64, types.int64, types.int64), codegen


@intrinsic
def _below(typingctx, data, at, bound):
    """Return a mask; bit k: byte at + k is below the bound, or above ASCII."""
    from llvmlite import ir
    from numba import types

    kind = ir.VectorType(ir.IntType(8), WINDOW)

    def codegen(context, builder, signature, args):
        array, at, bound = args
        text = emit_load(context, builder, signature.args[0], array, at, kind)
        inside = builder.icmp_signed("<", text, broadcast_lane(builder, bound, kind))
        return builder.bitcast(inside, ir.IntType(WINDOW))

    return types.uint64(data, types.int64, types.int64), codegen


@intrinsic
def lowest_bit(typingctx, bits):
    """Return the index of the lowest set bit of a uint64; WINDOW if none is set."""
    from numba import types
    from numba.core import cgutils

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], cgutils.false_bit)

    return types.int64(types.uint64), codegen


@intrinsic
def count_bits(typingctx, bits):
    from numba import types

    def codegen(context, builder, signature, args):
        return builder.ctpop(args[0])

    return types.int64(types.uint64), codegen


@intrinsic
def optimization_barrier(typingctx, bits):
    """Return the bits unchanged, as an optimization barrier.

    LLVM would otherwise combine windows before their reduction to bits, which keeps dozens of
    vector registers alive.
    """
    from llvmlite import ir
    from numba import types

    def codegen(context, builder, signature, args):
        word = ir.IntType(64)
        return builder.asm(ir.FunctionType(word, [word]), "", "=r,0", [args[0]], False)

    return types.uint64(types.uint64), codegen


@intrinsic
def keep_out_of_line(typingctx):
    """Keep the code of the kernel that calls this apart from the code of its callers.

    In a large kernel, LLVM would load the constants of a loop again in every round.
    """
    from numba import types

    def codegen(context, builder, signature, args):
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), codegen


@compiled(forceinline=True)
def bytes_between(data, at, low, high):
    """Return a uint64 mask; bit k: byte at + k is in low..high."""
    _first, _last = data[U(at)], data[U(at + (WINDOW - 1))]
    return _between(data, at, low, high)


@compiled(forceinline=True)
def bytes_equal(data, at, byte):
    return bytes_between(data, at, byte, byte)


@compiled(forceinline=True)
def bytes_below(data, at, bound):
    """Return a uint64 mask; bit k: byte at + k is below the bound, or above ASCII.

    One comparison where `bytes_between` takes three instructions.
    """
    _first, _last = data[U(at)], data[U(at + (WINDOW - 1))]
    return _below(data, at, bound)


@compiled(forceinline=True)
def byte_at(data, at, end):
    """Return the byte, or 0 from the end on."""
    return I(data[U(at)]) if at < end else 0


# Byte classes for run_end: uint64 mask of a window.


@compiled(forceinline=True)
def digit_mask(data, at):
    return bytes_between(data, at, ZERO, NINE)


@compiled(forceinline=True)
def printable_mask(data, at):
    """Return the mask of ASCII characters other than control codes."""
    return bytes_between(data, at, BLANK, TILDE)


@compiled(forceinline=True)
def plain_text_mask(data, at):
    """Return the mask of ASCII characters allowed unescaped in a JSON string."""
    return bytes_between(data, at, BLANK, DELETE) & ~(
        bytes_equal(data, at, QUOTE) | bytes_equal(data, at, BACKSLASH)
    )


@compiled(forceinline=True)
def word_mask(data, at):
    """Return the mask of letters, digits and - . _ ~, which need no escaping anywhere in a head."""
    letters = bytes_between(data, at, SMALL_A, SMALL_Z) | bytes_between(data, at, LARGE_A, LARGE_Z)
    signs = (
        bytes_between(data, at, DASH, DOT)
        | bytes_equal(data, at, LOW_LINE)
        | bytes_equal(data, at, TILDE)
    )
    return letters | digit_mask(data, at) | signs


@compiled()
def run_end(data, at, end, kind):
    """Return the offset of the first byte at or after `at` outside of the class, or `end`."""
    while at < end:
        # Near the end the window begins earlier; the shift drops the bytes before `at`.
        base = max(min(at, end - WINDOW), 0)
        others = ~kind(data, base) >> U(at - base)
        if others != 0:
            return min(at + lowest_bit(others), end)
        at = base + WINDOW
    return end


@compiled()
def skip_blanks(data, at, end):
    """Return the offset of the first byte that is not JSON whitespace, or `end`."""
    while at < end:
        byte = data[U(at)]
        if byte != 32 and byte != 10 and byte != 13 and byte != 9:
            break
        at += 1
    return at


@compiled(forceinline=True)
def first_word(data, at, end):
    """Return the first eight bytes of the text [at, end), padded with zeros."""
    over = at + 8 - end
    if over <= 0:
        return word_at(data, at)
    return word_at(data, end - 8) >> U(8 * over) if over < 8 else U(0)


@compiled()
def index_of_text(data, at, end, texts, bits):
    """Return the index of the known text equal to [at, end), or NONE.

    texts: from `words_of`;  bits: CASE_SENSITIVE or LOWER_CASE, as for `texts`
    """
    if end - at > 8 * TEXT_WORDS:
        return NONE
    a = first_word(data, at, end) | bits
    b = first_word(data, at + 8, end) | bits
    c = first_word(data, at + 16, end) | bits
    d = first_word(data, at + 24, end) | bits
    for k in range(texts.shape[0]):
        if texts[k, 0] == a and texts[k, 1] == b and texts[k, 2] == c and texts[k, 3] == d:
            return k
    return NONE


@compiled(forceinline=True)
def put_number(out, at, value):
    """Write a uint64 in decimal digits; returns the offset after them."""
    n = 1
    while n < 20 and value >= TEN_TO[n]:
        n += 1
    place = at + n
    while value >= U(10):
        pair = (value % U(100)) << U(1)
        value //= U(100)
        place -= 2
        out[U(place)] = PAIRS[pair]
        out[U(place + 1)] = PAIRS[pair + U(1)]
    if place > at:
        out[U(at)] = U(48) + value
    return at + n


@compiled(forceinline=True)
def copy_bytes(out, at, data, first, length):
    """Write `length` bytes of data from `first` on; returns the offset after them."""
    for k in range(length):
        out[U(at + k)] = data[U(first + k)]
    return at + length
