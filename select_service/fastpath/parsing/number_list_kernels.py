"""Parser of lists of JSON integers into arrays.

Two passes.  The first uses bit masks over windows of 64 bytes to find the ends of the numbers, and
writes these offsets where the numbers will be.  The second converts the digits between the offsets,
four numbers at once, and validates what is between them.  So neither pass waits for the other, and
branches on lengths are rarely mispredicted.

Accepted are numbers separated by a comma, all of them or none followed by a single blank.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.jit.decorators import compiled
from select_service.fastpath.parsing.byte_kernels import (
    BLANK,
    NINE,
    NONE,
    WINDOW,
    ZERO,
    I,
    U,
    bytes_below,
    bytes_of,
    count_bits,
    keep_out_of_line,
    lowest_bit,
    optimization_barrier,
)
from select_service.fastpath.parsing.number_kernels import (
    COMMA,
    FOUR,
    four_large_numbers,
    four_small_numbers,
    integer_in,
)

(CLOSE,) = bytes_of(b"]")
LIST_SPARE = WINDOW + 8
"""Excess length of an array over the longest list that is sure to fit."""
HASH_MAX, TOKEN_MAX = U(2**64 - 1), U(10**8 - 1)


@compiled(forceinline=True)
def write_places(bits, base, out, n):
    """Write base + k for each set bit k behind out[n]; entries after them are overwritten, too."""
    after = n + count_bits(bits)
    while n < after:
        for k in range(1, FOUR + 1):
            out[U(n + k)] = base + lowest_bit(bits)
            bits &= bits - U(1)
        n += FOUR
    return after


@compiled(forceinline=True)
def write_number_ends(data, at, end, out):
    """Write the offset after each number of the list that begins before `at` to out[1:].

    Returns (number of entries or NONE, number of bytes of the list other than digits).  The list
    ends at the first byte above the digits; the other bytes are not validated.
    """
    n, n_others = I(0), I(0)
    outside = U(1)  # whether the byte before the window is no digit
    while at < end and n + LIST_SPARE <= out.shape[0]:
        base = min(at, end - WINDOW)
        shift = U(at - base)
        below = optimization_barrier(bytes_below(data, base, ZERO)) >> shift
        above = ~optimization_barrier(bytes_below(data, base, NINE + 1)) >> shift
        others = (below | above) & (above ^ (above - U(1)))  # up to the first byte above
        ends = others & ~((others << U(1)) | outside)
        n_others += count_bits(others)
        outside = others >> U(63)
        n = write_places(ends, at, out, n)
        if above != 0:
            is_closed = n > 0 and I(out[U(n)]) == at + lowest_bit(above)
            return (n if is_closed else NONE), n_others
        at = base + WINDOW
    return NONE, n_others


@compiled()
def read_few_numbers(data, out, k, n, gap, highest):
    """Replace the offsets out[k : k + 4], of n, by the numbers behind them; see number_kernels.

    Returns (whether a number or the bytes before a number are invalid, number of signs).
    """
    wrong, n_signs, place = I(0), I(0), I(out[U(k)])
    for entry in range(k, min(k + FOUR, n)):
        if entry > 0:
            has_blank = gap == 1 or data[U(place + 1)] == BLANK
            wrong |= I(data[U(place)] != COMMA or not has_blank)
        first, place = place + gap, I(out[U(entry + 1)])
        value, bad, minus = integer_in(data, first, place)
        wrong |= bad | I(value > highest)
        n_signs += minus
        out[U(entry)] = value
    return wrong, n_signs


@compiled(forceinline=True)
def read_list(data, at, end, out, read_four, highest):
    """Parse a list of integers up to `highest`; see read_hashes.

    read_four: function that converts the usual numbers
    """
    n, n_others = write_number_ends(data, at, end, out)
    if n <= 0:
        return NONE, at
    behind = I(out[U(n)])
    gap = 1 + I(n > 1 and data[U(I(out[1]) + 1)] == BLANK)
    out[0] = at - gap
    # Three more valid offsets: the vector code reads all lanes.
    for k in range(1, FOUR):
        out[U(n + k)] = behind
    wrong, n_signs = I(data[U(behind)] != CLOSE), I(0)
    for k in range(0, n, FOUR):
        found = read_four(data, out, k, gap, n)
        if found < 0:
            bad, found = read_few_numbers(data, out, k, n, gap, highest)
            wrong |= bad
        n_signs += found
    # No digit, no sign and between no numbers is a byte that makes the list invalid.
    is_usual = wrong == 0 and n_others == n_signs + n + (n - 1) * (gap - 1)
    return (n, behind + 1) if is_usual else (NONE, at)


@compiled(forceinline=False)
def read_hashes(data, at, end, out):
    """Parse signed or unsigned 64-bit integers of the list that begins before `at`.

    Returns (number of entries, offset after the list); NONE if not accepted, or empty.
    out: uint64; a list is sure to fit if it is shorter by LIST_SPARE
    """
    keep_out_of_line()
    return read_list(data, at, end, out, four_large_numbers, HASH_MAX)


@compiled(forceinline=False)
def read_tokens(data, at, end, out):
    """Parse numbers of at most eight digits, as read_hashes.  out: uint32"""
    keep_out_of_line()
    return read_list(data, at, end, out, four_small_numbers, TOKEN_MAX)
