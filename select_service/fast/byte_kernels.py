"""Text in bytes: finding where it ends, comparing it, numbers from it and into it.

Bytes are looked at in windows of WINDOW at once, words of eight, or singly; nobody looks outside of
them.  A window or a word that would reach behind the end begins earlier instead, and what is too
much of it is shifted out: so there must be WINDOW bytes before every `end`.

With NUMBA_BOUNDSCHECK=1 the first and the last byte of each window and word are checked.

Source of the eight digits at a time: https://johnnylee-sde.github.io/Fast-numeric-string-to-int/
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import compiled, intrinsic

U = np.uint64
I = np.int64  # noqa: E741  the two casts are everywhere; short names keep the loops readable

NONE = -1
WINDOW = 64
DIGIT_WINDOW = 32
TEXT_WORDS = 4
"""Texts that are known are no longer than so many words."""
SMALL = U(0x2020202020202020)
"""Makes small letters of large ones, eight at a time."""
EXACT = U(0)

ZEROS = U(0x3030303030303030)
ODD_PAIRS = U(0x000000FF000000FF)
TWO_TO_63 = U(2**63)
TEN_TO = 10 ** np.arange(20, dtype=np.uint64)
PAIRS = np.frombuffer(b"".join(b"%02d" % k for k in range(100)), np.uint8).copy()


def words_of(*texts: bytes, small: bool = False) -> np.ndarray:
    """uint64[n, TEXT_WORDS]: the texts, each filled up with zeros; small: without regard to case"""
    filled = b"".join(text.ljust(8 * TEXT_WORDS, b"\0") for text in texts)
    words = np.frombuffer(filled, np.uint64).reshape(-1, TEXT_WORDS)
    return words | SMALL if small else words.copy()


def everywhere(builder, number, n_bytes):
    """A vector of as many bytes, all of them the lowest one of a number."""
    from llvmlite import ir

    byte, lane = ir.IntType(8), ir.IntType(32)
    nothing = ir.Constant(ir.VectorType(byte, n_bytes), ir.Undefined)
    single = builder.insert_element(nothing, builder.trunc(number, byte), ir.Constant(lane, 0))
    lanes = ir.Constant(ir.VectorType(lane, n_bytes), [0] * n_bytes)
    return builder.shuffle_vector(single, single, lanes)


@intrinsic
def _word(typingctx, data, at):
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    def codegen(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        kind = ir.IntType(64).as_pointer()
        place = cgutils.pointer_add(builder, array.data, args[1], kind)
        word = builder.load(place)
        word.align = 1
        return word

    return types.uint64(data, types.int64), codegen


@intrinsic
def _between(typingctx, data, at, low, high):
    """Bit k: byte at + k is in low..high."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    window = ir.VectorType(ir.IntType(8), WINDOW)

    def codegen(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        place = cgutils.pointer_add(builder, array.data, args[1], window.as_pointer())
        text = builder.load(place)
        text.align = 1
        above = builder.sub(text, everywhere(builder, args[2], WINDOW))
        width = everywhere(builder, builder.sub(args[3], args[2]), WINDOW)
        inside = builder.icmp_unsigned("<=", above, width)
        return builder.bitcast(inside, ir.IntType(WINDOW))

    return types.uint64(data, types.int64, types.int64, types.int64), codegen


@intrinsic
def lowest_bit(typingctx, bits):
    """Index of the lowest bit of a uint64 that is set; WINDOW when none is."""
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


@compiled(forceinline=True)
def word_at(data, at):
    """Eight bytes, the first of them lowest."""
    _first, _last = data[U(at)], data[U(at + 7)]
    return _word(data, at)


@compiled(forceinline=True)
def between(data, at, low, high):
    """uint64: bit k says that byte at + k is in low..high."""
    _first, _last = data[U(at)], data[U(at + (WINDOW - 1))]
    return _between(data, at, low, high)


@compiled(forceinline=True)
def equal(data, at, byte):
    return between(data, at, byte, byte)


@compiled(forceinline=True)
def byte_at(data, at, end):
    """0 from the end on."""
    return I(data[U(at)]) if at < end else 0


# Kinds of bytes: uint64 of a window, for run_end


@compiled(forceinline=True)
def digits(data, at):
    return between(data, at, 48, 57)


@compiled(forceinline=True)
def printable(data, at):
    """ASCII without control codes."""
    return between(data, at, 32, 126)


@compiled(forceinline=True)
def plain_text(data, at):
    """What may stand in a JSON string as it is, in ASCII."""
    return between(data, at, 32, 127) & ~(equal(data, at, 34) | equal(data, at, 92))


@compiled(forceinline=True)
def name_bytes(data, at):
    """Letters, digits, - and _."""
    letters = between(data, at, 97, 122) | between(data, at, 65, 90)
    return letters | digits(data, at) | equal(data, at, 45) | equal(data, at, 95)


@compiled(forceinline=True)
def host_bytes(data, at):
    return name_bytes(data, at) | equal(data, at, 46) | equal(data, at, 126)


@compiled(forceinline=True)
def id_bytes(data, at):
    return host_bytes(data, at) | equal(data, at, 58)


@compiled()
def run_end(data, at, end, kind):
    """Place of the first byte from `at` on that is not of the kind, or `end`."""
    while at < end:
        base = min(at, end - WINDOW)
        others = ~kind(data, base) >> U(at - base)
        if others != 0:
            return at + lowest_bit(others)
        at = base + WINDOW
    return end


@compiled()
def skip_blanks(data, at, end):
    while at < end:
        byte = data[U(at)]
        if byte != 32 and byte != 10 and byte != 13 and byte != 9:
            break
        at += 1
    return at


@compiled(forceinline=True)
def first_word(data, at, end):
    """The text [at, end) up to its eighth byte, filled up with zeros."""
    over = at + 8 - end
    if over <= 0:
        return word_at(data, at)
    return word_at(data, end - 8) >> U(8 * over) if over < 8 else U(0)


@compiled()
def text_number(data, at, end, known, bits):
    """Which of the known texts [at, end) is, or NONE.

    known: of `words_of`; bits: EXACT or SMALL, as known
    """
    if end - at > 8 * TEXT_WORDS:
        return NONE
    a = first_word(data, at, end) | bits
    b = first_word(data, at + 8, end) | bits
    c = first_word(data, at + 16, end) | bits
    d = first_word(data, at + 24, end) | bits
    for k in range(known.shape[0]):
        if known[k, 0] == a and known[k, 1] == b and known[k, 2] == c and known[k, 3] == d:
            return k
    return NONE


# Numbers


@intrinsic
def _digits_before(typingctx, data, end, n):
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    byte, width = ir.IntType(8), DIGIT_WINDOW

    def paired(builder, lanes, bits):
        """Two neighbours, of `bits` each, become one number; the first is the higher."""
        kind = ir.VectorType(ir.IntType(2 * bits), 8 * width // (2 * bits))
        first, shift, ten = (
            ir.Constant(kind, [number] * kind.count)
            for number in (2**bits - 1, bits, 10 ** (bits // 8))
        )
        lanes = builder.bitcast(lanes, kind)
        higher = builder.mul(builder.and_(lanes, first), ten)
        return builder.add(higher, builder.lshr(lanes, shift))

    def codegen(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        kind = ir.VectorType(byte, width)
        begin = builder.sub(args[1], ir.Constant(ir.IntType(64), width))
        text = builder.load(cgutils.pointer_add(builder, array.data, begin, kind.as_pointer()))
        text.align = 1
        values = builder.xor(text, ir.Constant(kind, [48] * width))
        from_end = ir.Constant(kind, list(range(width, 0, -1)))
        kept = builder.icmp_unsigned("<=", from_end, everywhere(builder, args[2], width))
        lanes = builder.select(kept, values, ir.Constant(kind, [0] * width))
        for bits in (8, 16, 32):
            lanes = paired(builder, lanes, bits)
        eights = [
            builder.extract_element(lanes, ir.Constant(ir.IntType(32), k)) for k in range(1, 4)
        ]
        tens = [ir.Constant(ir.IntType(64), 10**power) for power in (16, 8, 0)]
        first, second, third = map(builder.mul, eights, tens)
        return builder.add(builder.add(first, second), third)

    return types.uint64(data, types.int64, types.int64), codegen


@compiled(forceinline=True)
def digits_before(data, end, n):
    """The number of the n digits before `end`, at most 24 of them, as its lower 64 bits."""
    _first, _last = data[U(end - DIGIT_WINDOW)], data[U(end - 1)]
    return _digits_before(data, end, n)


@compiled(forceinline=True)
def number_in(data, first, end):
    """(the number that the digits [first, end) are, is it none).

    None is a number of no digit, one that does not fit in 64 bits, and one with a zero before
    others.  What is not a digit is not noticed.
    """
    n = end - first
    lead = data[U(first)]
    value = digits_before(data, end, n)
    wide = I(n == 20) & (I(lead != 49) | I(value < TEN_TO[19]))
    return value, I(n < 1) | I(n > 20) | wide | (I(lead == 48) & I(n > 1))


@compiled(forceinline=True)
def integer_in(data, first, end):
    """As number_in, with or without a minus: its 64 bits.  No number is -0, either."""
    minus = I(data[U(first)] == 45)
    value, wrong = number_in(data, first + minus, end)
    wrong |= minus & I(value - U(1) >= TWO_TO_63)
    return (value ^ U(-minus)) + U(minus), wrong


@compiled(forceinline=True)
def small_number_in(data, first, end):
    """As number_in; none is a number of more than eight digits, either."""
    n = end - first
    unused = U(64 - 8 * n) & U(63)
    values = ((word_at(data, end - 8) ^ ZEROS) >> unused) << unused
    return eight_digits(values), I(n < 1) | I(n > 8) | (I(data[U(first)] == 48) & I(n > 1))


@compiled(forceinline=True)
def eight_digits(values):
    """The number of eight values of digits, one in each byte, the most significant lowest."""
    values = values * U(10) + (values >> U(8))
    upper = (values & ODD_PAIRS) * U(0x000F424000000064)
    lower = ((values >> U(16)) & ODD_PAIRS) * U(0x0000271000000001)
    return (upper + lower) >> U(32)


@compiled(forceinline=True)
def put_number(out, at, value):
    """Write a uint64 in decimal digits; the place behind them."""
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
def copy(out, at, data, first, length):
    """Write `length` bytes of data from `first` on; the place behind them."""
    for k in range(length):
        out[U(at + k)] = data[U(first + k)]
    return at + length
