"""Lists of JSON integers to arrays.

Two passes.  The first finds, in windows of 64 bytes as bit masks, where the numbers end, and writes
these places where the numbers will stand; it also sees whether all else is as it should be.  The
second makes numbers of the digits between the places.  So neither waits for the other, and what the
processor guesses about lengths is rarely wrong.

Usual are numbers with a comma between them and, all of them or none, a blank behind the comma.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled
from select_service.fast.byte_kernels import (
    BLANK,
    DASH,
    FOUR,
    NONE,
    WINDOW,
    I,
    U,
    bytes_of,
    count_bits,
    digits,
    equal,
    four_small_numbers,
    integer_in,
    lowest_bit,
    settled,
)

COMMA, CLOSE = bytes_of(b",]")
HASHES_AT_ONCE, TOKENS_AT_ONCE = I(4), I(8)
"""Places that are written without asking whether there are so many in a window."""
SPARE = WINDOW + int(TOKENS_AT_ONCE)
"""How much longer an array is than the longest list that is sure to have room in it."""
BEHIND_COMMA, BEHIND_BLANK = U(1), U(2)


@compiled(forceinline=True)
def write_places(bits, base, out, n, at_once):
    """Append base + k for each bit k; what stands behind is overwritten, too."""
    after = n + count_bits(bits)
    while True:
        for _ in range(at_once):
            out[U(n)] = base + lowest_bit(bits)
            bits &= bits - U(1)
            n += 1
        if n >= after:
            return after


@compiled(forceinline=True)
def number_ends(data, at, end, out, at_once):
    """Places of the commas and of the bracket behind the numbers, to `out`.

    Returns (numbers or NONE, bytes from the end of one to the next).
    """
    n, n_blanks, wrong = I(0), I(0), U(0)
    before = BEHIND_BLANK  # a number may stand at `at`, but no blank
    while at < end and n + SPARE <= out.shape[0]:
        base = min(at, end - WINDOW)
        shift = U(at - base)
        close = settled(equal(data, base, CLOSE)) >> shift
        ours = close ^ (close - U(1))  # up to the bracket
        ends = ((settled(equal(data, base, COMMA)) >> shift) | close) & ours
        blanks = (settled(equal(data, base, BLANK)) >> shift) & ours
        minus = U(0)
        if at_once == HASHES_AT_ONCE:
            minus = (settled(equal(data, base, DASH)) >> shift) & ours
        others = ours & ~((settled(digits(data, base)) >> shift) | ends | blanks | minus)
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
    """Integers of 64 bits, signed or unsigned, of a list whose bracket is before `at`.

    Returns (how many, place behind the list); NONE for what is not usual, an empty list too.
    out: uint64; lists of SPARE numbers less than it is long are sure to have room
    """
    n, gap = number_ends(data, at, end, out, HASHES_AT_ONCE)
    first, wrong = at, I(0)
    for k in range(n):
        place = I(out[U(k)])
        out[U(k)], bad = integer_in(data, first, place)
        wrong |= bad
        first = place + gap
    return (n, first - gap + 1) if n > 0 and wrong == 0 else (NONE, at)


@compiled()
def read_tokens(data, at, end, out):
    """As read_hashes, for numbers of at most eight digits.  out: uint32"""
    n, gap = number_ends(data, at, end, out, TOKENS_AT_ONCE)
    if n <= 0:
        return NONE, at
    behind = I(out[U(n - 1)])
    for k in range(n, n + FOUR - 1):
        out[U(k)] = behind
    first, wrong = at, U(0)
    for k in range(0, n, FOUR):
        last = I(out[U(k + FOUR - 1)])
        ours = (U(1) << U(min(n - k, FOUR))) - U(1)
        wrong |= four_small_numbers(data, out, k, first, gap) & ours
        first = last + gap
    return (n, behind + 1) if wrong == 0 else (NONE, at)
