"""Conversion of decimal digits to numbers in vector lanes, which LLVM compiles for every processor.

Texts are read in words and windows, never outside of the data: before the end of every number are
at least DIGIT_WINDOW bytes.

Lists of numbers are converted in place, from offsets: number k begins `gap` bytes after the offset
places[k], where the comma of the number before it is, and ends at the offset places[k + 1].

Source of the eight digits at a time: https://johnnylee-sde.github.io/Fast-numeric-string-to-int/
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.jit.decorators import compiled, intrinsic
from indexer.jit.memory_kernels import emit_load, emit_store
from select_service.fastpath.parsing.byte_kernels import (
    BLANK,
    DASH,
    NONE,
    TEN_TO,
    ZERO,
    I,
    U,
    bytes_of,
)
from select_service.fastpath.parsing.vector_lanes import Lanes, lanes_of, repeated

(COMMA,) = bytes_of(b",")
DIGIT_WINDOW = 32
FOUR = 4
WORD, LOW_DIGITS = 8, 16
"""Bytes of a word, and the last digits of large numbers, which are converted by themselves."""
LARGE_MIN, LARGE_MAX = 17, 20
"""Characters of a large number with its sign."""
TWO_TO_63, EIGHT_ZEROS = U(2**63), U(10**8)
SMALLEST_OF_LENGTH = np.array([U(2**64 - 1), U(0), *TEN_TO[1:], *[U(2**64 - 1)] * 11])
"""Smallest number with a given number of digits."""


def merge_lanes(values, bits, ten):
    """Return ten times the lower plus the upper half of each lane of 2 * bits."""
    values = values.split(2 * bits)
    return (values & (2**bits - 1)) * ten + (values >> bits)


def merge_digits(values, n):
    """Merge digit values, a byte each, to numbers of n digits, 4 or 8, in lanes of as many bytes.

    The first of two neighbours is the higher: digits, then pairs, then groups of four.
    """
    for bits, ten in ((8, 10), (16, 100)):
        # The upper half of the product is ten * lower + upper half, and nothing is carried into it.
        values = (values.split(2 * bits) * ((ten << bits) + 1)) >> bits
    return merge_lanes(values, 32, 10_000) if n == WORD else values


@intrinsic
def _digits_before(typingctx, data, end, n):
    from llvmlite import ir
    from numba import types

    def codegen(context, builder, signature, args):
        data, end, n = args
        kind, byte = ir.VectorType(ir.IntType(8), DIGIT_WINDOW), ir.IntType(8)
        begin = builder.sub(end, end.type(DIGIT_WINDOW))
        text = Lanes(builder, emit_load(context, builder, signature.args[0], data, begin, kind))
        from_end = Lanes(builder, kind(list(range(DIGIT_WINDOW, 0, -1))))
        n = repeated(builder, builder.trunc(n, byte), DIGIT_WINDOW)
        is_ours = from_end.compare("<=", n, signed=False)
        digits = is_ours.choose(text ^ int(ZERO), text.filled(0))
        eights = merge_digits(digits, WORD).scalars()[1:]
        return context.make_tuple(builder, signature.return_type, eights)

    return types.UniTuple(types.uint64, 3)(data, types.int64, types.int64), codegen


class ListText:
    """Text of four numbers of a list during code generation; places: as in the module."""

    def __init__(self, context, builder, signature, args):
        self.context, self.builder, self.signature = context, builder, signature
        self.data, self.places, self.k, self.gap = args[:4]

    def load_places(self, after):
        """Return the offsets places[k + after : k + after + 4]."""
        from llvmlite import ir

        kind = self.signature.args[1]
        bits = kind.dtype.bitwidth
        first = self.builder.mul(
            self.builder.add(self.k, self.k.type(after)), self.k.type(bits // 8)
        )
        four = ir.VectorType(ir.IntType(bits), FOUR)
        loaded = emit_load(self.context, self.builder, kind, self.places, first, four)
        return (
            Lanes(self.builder, loaded).extended(64) if bits < 64 else Lanes(self.builder, loaded)
        )

    def load_before(self, end, distance, kind):
        """Return the value `distance` bytes before an offset."""
        at = self.builder.sub(end, end.type(distance))
        return emit_load(self.context, self.builder, self.signature.args[0], self.data, at, kind)

    def split_words(self, ends, after, unused):
        """Return (text of the numbers in the words that end `after` bytes before the offsets, with
        zeros behind it, and whether what is between the numbers is wrong).

        unused: bytes of the words before a number and its gap
        """
        builder, gap = self.builder, self.gap
        words = lanes_of(
            builder, [self.load_before(end, after + WORD, gap.type) for end in ends.scalars()]
        )
        words = words >> ((unused & (WORD - 1)) << 3)
        gap_bits = builder.shl(gap, gap.type(3))
        ours = builder.xor(builder.shl(gap.type(-1), gap_bits), gap.type(-1))
        expected = builder.and_(gap.type(int(COMMA) + 256 * int(BLANK)), ours)
        found = words & repeated(builder, ours, FOUR)
        wrong = found.compare("!=", repeated(builder, expected, FOUR)).mask()
        # Before the first number of a list is the bracket.
        is_first = builder.icmp_signed("==", self.k, self.k.type(0))
        wrong = builder.and_(wrong, builder.select(is_first, gap.type(-2), gap.type(-1)))
        return words >> repeated(builder, gap_bits, FOUR), wrong

    def store_unless(self, unusual, numbers, n_signs):
        """Replace the offsets from places[k] on by the numbers and return `n_signs`; or return
        NONE.
        """
        builder, element = self.builder, numbers.value.type.element
        is_usual = builder.icmp_unsigned("==", unusual, unusual.type(0))
        with builder.if_then(is_usual, likely=True):
            at = builder.mul(self.k, self.k.type(element.width // 8))
            kind = self.signature.args[1]
            emit_store(self.context, builder, kind, self.places, at, numbers.value)
        return builder.select(is_usual, n_signs, n_signs.type(NONE))


def digit_values(text):
    """Return the values of digits, and 0 for a minus and for zero bytes."""
    text = text.split(8)
    is_digit = text.compare(">", int(ZERO), signed=False)
    return is_digit.choose(text - int(ZERO), text.filled(0)).split(64)


@intrinsic
def _four_small_numbers(typingctx, data, places, k, gap, ours):
    from numba import types

    def codegen(context, builder, signature, args):
        list_text, ours = ListText(context, builder, signature, args), args[4]
        before, ends = list_text.load_places(0), list_text.load_places(1)
        unused = before - ends + WORD
        text, wrong = list_text.split_words(ends, 0, unused)
        zero = int(ZERO)
        has_lead = (text & 255).compare("!=", zero) | text.compare("==", zero)
        behind = (unused + repeated(builder, list_text.gap, FOUR)) << 3
        digits = digit_values(text) << (behind & 63)
        numbers = merge_digits(digits, WORD).shortened(32)
        unusual = unused.compare("<", 0) | (has_lead ^ has_lead.filled(1))
        unusual = builder.and_(builder.or_(unusual.mask(), wrong), ours)
        return list_text.store_unless(unusual, numbers, ours.type(0))

    given = (data, places, types.int64, types.int64, types.uint64)
    return types.int64(*given), codegen


def last_digits(list_text, ends):
    """Return the number in the last 16 digits before each of the offsets."""
    from llvmlite import ir

    half = ir.VectorType(ir.IntType(8), LOW_DIGITS)
    halves = [
        Lanes(list_text.builder, list_text.load_before(end, LOW_DIGITS, half))
        for end in ends.scalars()
    ]
    # Packing takes halves of two vectors in turns: so the first has the even numbers.
    even, odd = (
        merge_digits(halves[k].shuffled(halves[k + 2], range(32)) ^ int(ZERO), 4).split(16)
        for k in (0, 1)
    )
    order = (*range(0, 8, 2), *range(16, 24, 2), *range(8, 16, 2), *range(24, 32, 2))
    fours = even.shuffled(odd, order)
    return merge_lanes(merge_lanes(fours, 16, 10_000), 32, 10**8)


@intrinsic
def _four_large_numbers(typingctx, data, places, k, gap, ours):
    from numba import types

    def codegen(context, builder, signature, args):
        list_text, ours = ListText(context, builder, signature, args), args[4]
        before, ends = list_text.load_places(0), list_text.load_places(1)
        room = builder.add(list_text.gap, ours.type(LARGE_MAX))
        # Characters that a number is shorter than the longest one.
        fewer = before - ends + repeated(builder, room, FOUR)
        slack = ours.type(WORD - (LARGE_MAX - LOW_DIGITS))
        unused = fewer + repeated(builder, builder.sub(slack, list_text.gap), FOUR)
        text, wrong = list_text.split_words(ends, LOW_DIGITS, unused)
        is_minus = (text & 255).compare("==", int(DASH))
        values = digit_values(text)
        lead = values & is_minus.choose(text.filled(0xFF00), text.filled(0xFF))
        # The mask tells LLVM that a product of two words of 32 bits is enough.
        high = merge_digits((values << ((fewer & 3) << 3)), 4).split(64) & 0xFFFF
        limits = (2**k // 10**LOW_DIGITS - 1 for k in (63, 64))
        over = high.compare(">", is_minus.choose(*(text.filled(limit) for limit in limits)))
        n_over = LARGE_MAX - LARGE_MIN
        unusual = (fewer & ~n_over).compare("!=", 0) | lead.compare("==", 0) | over
        unusual = builder.and_(builder.or_(unusual.mask(), wrong), ours)
        numbers = high * 10**LOW_DIGITS + last_digits(list_text, ends)
        minus = is_minus.extended(64, signed=True)
        n_signs = builder.ctpop(builder.and_(is_minus.mask(), ours))
        return list_text.store_unless(unusual, (numbers ^ minus) - minus, n_signs)

    given = (data, places, types.int64, types.int64, types.uint64)
    return types.int64(*given), codegen


@compiled(forceinline=True)
def digits_before(data, end, n):
    """Return the n digits before `end`, at most 24, as three numbers of eight digits."""
    # These loads exist for NUMBA_BOUNDSCHECK only; LLVM removes them otherwise.
    _first, _last = data[U(end - DIGIT_WINDOW)], data[U(end - 1)]
    return _digits_before(data, end, n)


@compiled(forceinline=True)
def number_in(data, first, end):
    """Return (the number in the digits [first, end), whether it is invalid).

    Invalid are numbers without digits, above 64 bits, or with a leading zero.  Bytes other than
    digits are not detected.
    """
    n = U(end - first)
    high, middle, low = digits_before(data, end, end - first)
    value = high * EIGHT_ZEROS * EIGHT_ZEROS + middle * EIGHT_ZEROS + low
    # n - 1 wraps around for n = 0, so that one comparison covers both bounds.
    few = n - U(1) >= U(20) or high >= U(2000)  # so that value overflows at most once
    return value, I(few) | I(value < SMALLEST_OF_LENGTH[n & U(31)])


@compiled(forceinline=True)
def integer_in(data, first, end):
    """Return (the 64 bits of a number with an optional minus, whether invalid as in number_in or
    -0, whether there is a minus).
    """
    minus = I(data[U(first)] == DASH)
    value, wrong = number_in(data, first + minus, end)
    wrong |= minus & I(value - U(1) >= TWO_TO_63)
    return (value ^ U(-minus)) + U(minus), wrong, minus


@compiled(forceinline=True)
def lanes_before(n):
    """Return the bits of the first n of four lanes."""
    return ~(U(2**64 - 1) << U(min(n, FOUR)))


@compiled(forceinline=True)
def check_places(data, places, k):
    """Read the first and the last byte of the texts of four numbers, with NUMBA_BOUNDSCHECK."""
    for place in range(k + 1, k + FOUR + 1):
        end = I(places[U(place)])
        _first, _last = data[U(end - LOW_DIGITS - WORD)], data[U(end - 1)]


@compiled(forceinline=True)
def four_small_numbers(data, places, k, gap, n):
    """Replace places[k : k + 4], of n offsets, by the numbers of at most eight digits behind them.

    Returns 0.  Returns NONE and replaces nothing if a number may be invalid, or with its gap longer
    than a word, or if the bytes between the numbers are wrong.
    """
    check_places(data, places, k)
    return _four_small_numbers(data, places, k, gap, lanes_before(n - k))


@compiled(forceinline=True)
def four_large_numbers(data, places, k, gap, n):
    """Replace places[k : k + 4], of n offsets, by the numbers of 64 bits behind them and return how
    many have a minus.

    Returns NONE and replaces nothing if a number may be invalid, has fewer than LARGE_MIN
    characters or is within 10**16 of the bounds, or if the bytes between the numbers are wrong.
    """
    check_places(data, places, k)
    return _four_large_numbers(data, places, k, gap, lanes_before(n - k))
