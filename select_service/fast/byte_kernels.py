"""Text in bytes: finding where it ends, comparing it, numbers from it and into it.

Bytes are looked at in windows of WINDOW at once, words of eight, or singly; nobody looks outside of
them.  A window or a word that would reach behind the end begins earlier instead, and what is too
much of it is shifted out: so there must be WINDOW bytes at least.

With NUMBA_BOUNDSCHECK=1 the first and the last byte of each window and word are checked.

Source of the eight digits at a time: https://johnnylee-sde.github.io/Fast-numeric-string-to-int/,
here in the lanes of vectors, which LLVM makes for every processor.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import compiled, intrinsic

U = np.uint64
I = np.int64  # noqa: E741  the two casts are everywhere; short names keep the loops readable


def bytes_of(text: bytes) -> list[np.int64]:
    """Its bytes as numbers of one type: of plain ones numba compiles helpers for each value."""
    return [np.int64(byte) for byte in text]


NONE = -1
WINDOW = 64
DIGIT_WINDOW = 32
TEXT_WORDS = 4
"""Texts that are known are no longer than so many words."""
SMALL = U(0x2020202020202020)
"""Makes small letters of large ones, eight at a time."""
EXACT = U(0)

FOUR = 4
BLANK, QUOTE, DASH, DOT, ZERO, NINE = bytes_of(b' "-.09')
LARGE_A, LARGE_Z, LOW_LINE, SMALL_A, SMALL_Z, BACKSLASH = bytes_of(b"AZ_az\\")
TILDE, DELETE = bytes_of(b"~\x7f")
ZEROS = U(0x3030303030303030)
TWO_TO_63, EIGHT_ZEROS = U(2**63), U(10**8)
TEN_TO = 10 ** np.arange(20, dtype=np.uint64)
LEAST = np.array([U(2**64 - 1), U(0), *TEN_TO[1:], *[U(2**64 - 1)] * 11])
"""Of a number of so many digits."""
PAIRS = np.frombuffer(b"".join(b"%02d" % k for k in range(100)), np.uint8).copy()


def words_of(*texts: bytes, small: bool = False) -> np.ndarray:
    """uint64[n, TEXT_WORDS]: the texts, each filled up with zeros; small: without regard to case"""
    filled = b"".join(text.ljust(8 * TEXT_WORDS, b"\0") for text in texts)
    words = np.frombuffer(filled, np.uint64).reshape(-1, TEXT_WORDS)
    return words | SMALL if small else words.copy()


def place_in(context, builder, kind, array, at, target):
    """Pointer to what lies `at` bytes behind the begin of an array."""
    from numba.core import cgutils

    begin = context.make_array(kind)(context, builder, array).data
    return cgutils.pointer_add(builder, begin, at, target.as_pointer())


def loaded(context, builder, kind, array, at, target):
    value = builder.load(place_in(context, builder, kind, array, at, target))
    value.align = 1
    return value


def stored(context, builder, kind, array, at, value):
    builder.store(value, place_in(context, builder, kind, array, at, value.type)).align = 1


def spread(builder, number, kind):
    """A vector with the lowest bits of a number in each of its lanes."""
    from llvmlite import ir

    lane = ir.IntType(32)
    if kind.element != number.type:
        number = builder.trunc(number, kind.element)
    nothing = ir.Constant(kind, ir.Undefined)
    single = builder.insert_element(nothing, number, ir.Constant(lane, 0))
    first = ir.Constant(ir.VectorType(lane, kind.count), [0] * kind.count)
    return builder.shuffle_vector(single, nothing, first)


@intrinsic
def _word(typingctx, data, at):
    from llvmlite import ir
    from numba import types

    def codegen(context, builder, signature, args):
        return loaded(context, builder, signature.args[0], *args, ir.IntType(64))

    return types.uint64(data, types.int64), codegen


@intrinsic
def _between(typingctx, data, at, low, high):
    """Bit k: byte at + k is in low..high."""
    from llvmlite import ir
    from numba import types

    kind = ir.VectorType(ir.IntType(8), WINDOW)

    def codegen(context, builder, signature, args):
        array, at, low, high = args
        text = loaded(context, builder, signature.args[0], array, at, kind)
        above = builder.sub(text, spread(builder, low, kind))
        width = spread(builder, builder.sub(high, low), kind)
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


@intrinsic
def settled(typingctx, bits):
    """The same bits.

    LLVM would rather combine windows of bytes before they are bits, and keep them in dozens of
    registers until then.
    """
    from llvmlite import ir
    from numba import types

    def codegen(context, builder, signature, args):
        word = ir.IntType(64)
        return builder.asm(ir.FunctionType(word, [word]), "", "=r,0", [args[0]], False)

    return types.uint64(types.uint64), codegen


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
    return between(data, at, ZERO, NINE)


@compiled(forceinline=True)
def printable(data, at):
    """ASCII without control codes."""
    return between(data, at, BLANK, TILDE)


@compiled(forceinline=True)
def plain_text(data, at):
    """What may stand in a JSON string as it is, in ASCII."""
    return between(data, at, BLANK, DELETE) & ~(equal(data, at, QUOTE) | equal(data, at, BACKSLASH))


@compiled(forceinline=True)
def word_bytes(data, at):
    """Letters, digits and - . _ ~, which stand for themselves wherever they stand in a head."""
    letters = between(data, at, SMALL_A, SMALL_Z) | between(data, at, LARGE_A, LARGE_Z)
    signs = between(data, at, DASH, DOT) | equal(data, at, LOW_LINE) | equal(data, at, TILDE)
    return letters | digits(data, at) | signs


@compiled()
def run_end(data, at, end, kind):
    """Place of the first byte from `at` on that is not of the kind, or `end`."""
    while at < end:
        base = max(min(at, end - WINDOW), 0)
        others = ~kind(data, base) >> U(at - base)
        if others != 0:
            return min(at + lowest_bit(others), end)
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


def everywhere(kind, number):
    """A vector with the same constant in each of its lanes."""
    from llvmlite import ir

    return ir.Constant(kind, [number] * kind.count)


def in_eights(builder, values):
    """Digits by value, a byte each, to numbers of eight of them in lanes of 64 bits.

    Of two neighbours the first is the higher; pairs of digits, then of pairs, then of fours.
    """
    from llvmlite import ir

    n_bytes = values.type.count
    for bits, ten in ((8, 10), (16, 100), (32, 10_000)):
        kind = ir.VectorType(ir.IntType(2 * bits), 4 * n_bytes // bits)
        values = builder.bitcast(values, kind)
        higher = builder.and_(values, everywhere(kind, 2**bits - 1))
        lower = builder.lshr(values, everywhere(kind, bits))
        values = builder.add(builder.mul(higher, everywhere(kind, ten)), lower)
    return values


@intrinsic
def _digits_before(typingctx, data, end, n):
    from llvmlite import ir
    from numba import types

    def codegen(context, builder, signature, args):
        kind = ir.VectorType(ir.IntType(8), DIGIT_WINDOW)
        begin = builder.sub(args[1], ir.Constant(ir.IntType(64), DIGIT_WINDOW))
        text = loaded(context, builder, signature.args[0], args[0], begin, kind)
        from_end = ir.Constant(kind, list(range(DIGIT_WINDOW, 0, -1)))
        kept = builder.icmp_unsigned("<=", from_end, spread(builder, args[2], kind))
        values = builder.xor(text, everywhere(kind, int(ZERO)))
        lanes = in_eights(builder, builder.select(kept, values, everywhere(kind, 0)))
        places = [ir.Constant(ir.IntType(32), k) for k in range(1, 4)]
        eights = [builder.extract_element(lanes, place) for place in places]
        return context.make_tuple(builder, signature.return_type, eights)

    return types.UniTuple(types.uint64, 3)(data, types.int64, types.int64), codegen


@intrinsic
def _four_small_numbers(typingctx, data, places, k, first, gap):
    from llvmlite import ir
    from numba import types

    word, lanes = ir.IntType(64), ir.VectorType(ir.IntType(64), FOUR)

    def codegen(context, builder, signature, args):
        kind, small = signature.args[1], ir.VectorType(ir.IntType(32), FOUR)
        at = builder.mul(args[2], ir.Constant(word, 4))
        ends = builder.zext(loaded(context, builder, kind, args[1], at, small), lanes)
        behind = builder.add(ends, spread(builder, args[4], lanes))
        begin = builder.insert_element(
            ir.Constant(lanes, ir.Undefined), args[3], ir.Constant(ir.IntType(32), 0)
        )
        order = ir.Constant(ir.VectorType(ir.IntType(32), FOUR), [0, *range(FOUR, 2 * FOUR - 1)])
        n = builder.sub(ends, builder.shuffle_vector(begin, behind, order))
        text = ir.Constant(lanes, ir.Undefined)
        for lane in range(FOUR):
            place = ir.Constant(ir.IntType(32), lane)
            eight = builder.sub(builder.extract_element(ends, place), ir.Constant(word, 8))
            eight = loaded(context, builder, signature.args[0], args[0], eight, word)
            text = builder.insert_element(text, eight, place)
        bits = builder.shl(n, everywhere(lanes, 3))
        unused = builder.and_(builder.sub(everywhere(lanes, 64), bits), everywhere(lanes, 63))
        values = builder.lshr(builder.xor(text, everywhere(lanes, int(ZEROS))), unused)
        lead = builder.and_(values, everywhere(lanes, 255))
        digits = builder.bitcast(
            builder.shl(values, unused), ir.VectorType(ir.IntType(8), 8 * FOUR)
        )
        numbers = builder.trunc(in_eights(builder, digits), small)
        stored(context, builder, kind, args[1], at, numbers)
        others = builder.sub(n, everywhere(lanes, 1))
        wrong = builder.or_(
            builder.icmp_unsigned(">", others, everywhere(lanes, 7)),
            builder.and_(
                builder.icmp_unsigned("==", lead, everywhere(lanes, 0)),
                builder.icmp_unsigned(">", others, everywhere(lanes, 0)),
            ),
        )
        return builder.zext(builder.bitcast(wrong, ir.IntType(FOUR)), word)

    return types.uint64(data, places, types.int64, types.int64, types.int64), codegen


@compiled(forceinline=True)
def digits_before(data, end, n):
    """The number of the n digits before `end`, at most 24, as three numbers of eight digits."""
    _first, _last = data[U(end - DIGIT_WINDOW)], data[U(end - 1)]
    return _digits_before(data, end, n)


@compiled(forceinline=True)
def number_in(data, first, end):
    """(the number that the digits [first, end) are, is it none).

    None is a number of no digit, one that does not fit in 64 bits, and one with a zero before
    others.  What is not a digit is not noticed.
    """
    n = U(end - first)
    high, middle, low = digits_before(data, end, end - first)
    value = high * EIGHT_ZEROS * EIGHT_ZEROS + middle * EIGHT_ZEROS + low
    few = n - U(1) >= U(20) or high >= U(2000)  # so that it overflows once at most
    return value, I(few) | I(value < LEAST[n & U(31)])


@compiled(forceinline=True)
def integer_in(data, first, end):
    """As number_in, with or without a minus: its 64 bits.  No number is -0, either."""
    minus = I(data[U(first)] == DASH)
    value, wrong = number_in(data, first + minus, end)
    wrong |= minus & I(value - U(1) >= TWO_TO_63)
    return (value ^ U(-minus)) + U(minus), wrong


@compiled(forceinline=True)
def four_small_numbers(data, places, k, first, gap):
    """Numbers of at most eight digits, in place of the places where they end: places[k : k + 4].

    The first begins at `first`, each further one `gap` behind the end of the one before.
    Returns a bit for each that is none; see number_in.
    """
    for lane in range(FOUR):
        _checked = word_at(data, I(places[U(k + lane)]) - 8)
    return _four_small_numbers(data, places, k, first, gap)


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
