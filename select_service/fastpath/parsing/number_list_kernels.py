"""Parser of lists of JSON integers into arrays.

Two passes.  The first uses bit masks over windows of 64 bytes to find the ends of the numbers, and
writes these offsets where the numbers will be; it also validates everything else.  The
second converts the digits between the offsets.  So neither pass waits for the other, and branches
on lengths are rarely mispredicted.

Accepted are numbers separated by a comma, all of them or none followed by a single blank.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.jit.decorators import compiled
from select_service.fastpath.parsing.byte_kernels import (
    BLANK,
    DASH,
    FOUR,
    NONE,
    WINDOW,
    I,
    U,
    bytes_equal,
    bytes_of,
    count_bits,
    digit_mask,
    four_small_numbers,
    integer_in,
    lowest_bit,
    optimization_barrier,
)

COMMA, CLOSE = bytes_of(b",]")
HASHES_PER_WINDOW, TOKENS_PER_WINDOW = I(4), I(8)
"""Offsets written without checking whether the window has that many."""
LIST_SPARE = WINDOW + int(TOKENS_PER_WINDOW)
"""Excess length of an array over the longest list that is sure to fit."""
BEHIND_COMMA, BEHIND_BLANK = U(1), U(2)


@compiled(forceinline=True)
def write_places(bits, base, out, n, at_once):
    """Append base + k for each set bit k; entries after them are overwritten, too."""
    after = n + count_bits(bits)
    while True:
        for _ in range(at_once):
            out[U(n)] = base + lowest_bit(bits)
            bits &= bits - U(1)
            n += 1
        if n >= after:
            return after


@compiled(forceinline=True)
def write_number_ends(data, at, end, out, at_once):
    """Write the offsets of the commas and the bracket after the numbers to `out`.

    Returns (number of entries or NONE, bytes from the end of a number to the next).
    """
    n, n_blanks, wrong = I(0), I(0), U(0)
    before = BEHIND_BLANK  # a number may begin at `at`, a blank may not
    while at < end and n + LIST_SPARE <= out.shape[0]:
        base = min(at, end - WINDOW)
        shift = U(at - base)
        close = optimization_barrier(bytes_equal(data, base, CLOSE)) >> shift
        ours = close ^ (close - U(1))  # bits up to the bracket
        ends = ((optimization_barrier(bytes_equal(data, base, COMMA)) >> shift) | close) & ours
        blanks = (optimization_barrier(bytes_equal(data, base, BLANK)) >> shift) & ours
        minus = U(0)
        if at_once == HASHES_PER_WINDOW:
            minus = (optimization_barrier(bytes_equal(data, base, DASH)) >> shift) & ours
        others = ours & ~(
            (optimization_barrier(digit_mask(data, base)) >> shift) | ends | blanks | minus
        )
        # Carries the state of the window before into this one: a blank may only follow a comma.
        blank_may = (ends << U(1)) | (before & BEHIND_COMMA)
        number_may = (blank_may & ~blanks) | (blanks << U(1)) | (before >> U(1))
        wrong |= others | (blanks & ~blank_may) | (minus & ~number_may)
        before = (ends >> U(63)) | ((blanks >> U(62)) & BEHIND_BLANK)
        n_blanks += count_bits(blanks)
        n = write_places(ends, at, out, n, at_once)
        if close != 0:
            spaced = n > 1 and n_blanks == n - 1
            usual = wrong == 0 and (spaced or n_blanks == 0)
            return (n if usual else NONE), 1 + I(spaced)
        at = base + WINDOW
    return NONE, 0


@compiled()
def read_hashes(data, at, end, out):
    """Parse signed or unsigned 64-bit integers of the list that begins before `at`.

    Returns (number of entries, offset after the list); NONE if not accepted, or empty.
    out: uint64; a list is sure to fit if it is shorter by LIST_SPARE
    """
    n, gap = write_number_ends(data, at, end, out, HASHES_PER_WINDOW)
    first, wrong = at, I(0)
    for k in range(n):
        place = I(out[U(k)])
        out[U(k)], bad = integer_in(data, first, place)
        wrong |= bad
        first = place + gap
    return (n, first - gap + 1) if n > 0 and wrong == 0 else (NONE, at)


@compiled()
def read_tokens(data, at, end, out):
    """Parse numbers of at most eight digits, as read_hashes.  out: uint32"""
    n, gap = write_number_ends(data, at, end, out, TOKENS_PER_WINDOW)
    if n <= 0:
        return NONE, at
    behind = I(out[U(n - 1)])
    # Pad to a multiple of four with a valid offset: the vector code reads all lanes.
    for k in range(n, n + FOUR - 1):
        out[U(k)] = behind
    first, wrong = at, U(0)
    for k in range(0, n, FOUR):
        last = I(out[U(k + FOUR - 1)])
        ours = (U(1) << U(min(n - k, FOUR))) - U(1)
        wrong |= four_small_numbers(data, out, k, first, gap) & ours
        first = last + gap
    return (n, behind + 1) if wrong == 0 else (NONE, at)
