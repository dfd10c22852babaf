"""The JSON body of a usual request: lists to arrays, numbers and places of texts to the fields.

Usual is an object of known keys, each once and with a value of its type: lists of integers,
integers, fractions in a few digits, and texts of plain ASCII without escapes; or null, where that
means the same as leaving the key out, as generators of clients like to write it.  What the ordinary
path would answer in another way than by doing it is not usual, nor is what it would warn of.

Source: RFC 8259; the fields are those of `bodies`.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import compiled
from select_service.fast.byte_kernels import (
    DOT,
    EXACT,
    NONE,
    QUOTE,
    TEN_TO,
    WINDOW,
    ZERO,
    I,
    U,
    byte_at,
    bytes_of,
    digits,
    number_in,
    plain_text,
    run_end,
    skip_blanks,
    text_number,
    words_of,
)
from select_service.fast.list_kernels import read_hashes, read_tokens
from select_service.fast.request_layout import (
    DECAY_FRACTION,
    DP_RANK,
    EFFECTIVE_PREFILL_TOKENS,
    EXPECTED_OUTPUT_TOKENS,
    ISL_TOKENS,
    KEYS_LEFT,
    LENGTH_MAX,
    MODEL_NAME,
    N_BLOCKS,
    N_SEQUENCE,
    N_TOKENS,
    RESERVATION_ID,
    RESERVE,
    ROUTE,
    SELECTION_ID,
    TENANT_ID,
    TEXT_BYTES_MAX,
    UNUSUAL,
    USUAL,
    WORKER_ID,
)

COLON, COMMA, OPEN_LIST, OPEN, CLOSE, SMALL_N = bytes_of(b":,[{}n")

U32_MAX, U64_MAX = 2**32 - 1, 2**64 - 1
SELECTS, BOOKS, RESERVES, FADES = 0b011, 0b110, 0b100, 0b10000
"""Routes by bit: those that choose, those that book, the one with a rank of the caller's, the one
that counts an output block."""
HAVE_PROMPTS = 0b111
NO_ENTRY = NONE
"""Of a key that is only read when it is null."""

KEYS = (
    (b"block_hashes", N_BLOCKS, 0b111, 0),
    (b"sequence_hashes", N_SEQUENCE, 0b111, 0),
    (b"token_ids", N_TOKENS, 0b111, 0),
    (b"isl_tokens", ISL_TOKENS, 0b111, LENGTH_MAX),
    (b"worker_id", WORKER_ID, RESERVES, U64_MAX - 1),
    (b"dp_rank", DP_RANK, RESERVES, U32_MAX),
    (b"effective_prefill_tokens", EFFECTIVE_PREFILL_TOKENS, RESERVES, LENGTH_MAX),
    (b"expected_output_tokens", EXPECTED_OUTPUT_TOKENS, 0b111, U32_MAX),
    (b"model_name", MODEL_NAME, 0b111, 0),
    (b"tenant_id", TENANT_ID, 0b111, 0),
    (b"routing_group", TENANT_ID, 0b111, 0),
    (b"selection_id", SELECTION_ID, SELECTS, 0),
    (b"reservation_id", RESERVATION_ID, BOOKS, 0),
    (b"decay_fraction", DECAY_FRACTION, FADES, 0),
    (b"lora_name", NO_ENTRY, HAVE_PROMPTS, 0),
    (b"cache_salt", NO_ENTRY, HAVE_PROMPTS, 0),
    (b"is_eagle", NO_ENTRY, HAVE_PROMPTS, 0),
    (b"mm_routing_info", NO_ENTRY, HAVE_PROMPTS, 0),
    (b"block_mm_infos", NO_ENTRY, HAVE_PROMPTS, 0),
    (b"router_config_override", NO_ENTRY, HAVE_PROMPTS, 0),
    (b"priority_jump", NO_ENTRY, SELECTS, 0),
    (b"strict_priority", NO_ENTRY, SELECTS, 0),
    (b"priority_tier", NO_ENTRY, SELECTS, 0),
    (b"timeout_ms", NO_ENTRY, SELECTS, 0),
    (b"pinned_worker", NO_ENTRY, SELECTS, 0),
    (b"allowed_worker_ids", NO_ENTRY, SELECTS, 0),
)
"""Key, its entry in the fields, the routes that take it, the highest number.

U64_MAX itself is NONE, as its 64 bits.
"""
NEVER_NULL = (b"worker_id", b"dp_rank", b"model_name", b"tenant_id", b"routing_group")
KEY_WORDS = words_of(*(key for key, _, _, _ in KEYS))
ENTRY = np.array([entry for _, entry, _, _ in KEYS])
MAY_BE_NULL = np.array([key not in NEVER_NULL for key, _, _, _ in KEYS])
NULL = words_of(b"null")
FRACTION_DIGITS_MAX = 15
"""So that the digits and the power of ten by which they are divided are exact as float64, and the
quotient is what every correct reader says."""
TAKEN_BY = np.array([routes for _, _, routes, _ in KEYS])
HIGHEST = np.array([highest for _, _, _, highest in KEYS], np.uint64)


@compiled()
def read_number(data, at, end, highest):
    """(an unsigned integer that is no more than `highest`, place behind it or UNUSUAL)."""
    behind = run_end(data, at, end, digits)
    if behind in (at, end):
        return U(0), UNUSUAL
    value, wrong = number_in(data, at, behind)
    return value, (behind if wrong == 0 and value <= highest else UNUSUAL)


@compiled(error_model="numpy")
def read_fraction(data, at, end):
    """(a number from 0 to 1 without an exponent, place behind it or UNUSUAL)."""
    point = run_end(data, at, end, digits)
    if point != at + 1:
        return 0.0, UNUSUAL
    value, behind = I(data[U(at)]) - ZERO, point
    if byte_at(data, point, end) == DOT:
        behind = run_end(data, point + 1, end, digits)
        if not 1 <= behind - point - 1 <= FRACTION_DIGITS_MAX:
            return 0.0, UNUSUAL
        for place in range(point + 1, behind):
            value = 10 * value + I(data[U(place)]) - ZERO
    scale = float(TEN_TO[max(behind - point - 1, 0)])
    fraction = float(value) / scale
    return fraction, (behind if fraction <= 1.0 else UNUSUAL)


@compiled()
def read_null(data, at, end, key):
    """Place behind null where that is usual, or UNUSUAL."""
    is_null = at + 4 < end and text_number(data, at, at + 4, NULL, EXACT) == 0
    return at + 4 if is_null and MAY_BE_NULL[key] else UNUSUAL


@compiled()
def read_text(data, at, end):
    """Place behind the quote that ends the text whose first byte is at `at`, or UNUSUAL."""
    behind = run_end(data, at, end, plain_text)
    usual = byte_at(data, behind, end) == QUOTE and 0 < behind - at <= TEXT_BYTES_MAX
    return behind + 1 if usual else UNUSUAL


@compiled(forceinline=True)
def read_numbers(data, at, end, entry, blocks, sequence, tokens):
    """(how many numbers the list has that begins at `at`, place behind it)."""
    if byte_at(data, at, end) != OPEN_LIST:
        return NONE, UNUSUAL
    if entry == N_TOKENS:
        return read_tokens(data, at + 1, end, tokens)
    return read_hashes(data, at + 1, end, blocks if entry == N_BLOCKS else sequence)


@compiled(forceinline=True)
def read_value(data, at, end, key, fields, blocks, sequence, tokens):
    """Read the value of a key; the place behind it or UNUSUAL."""
    entry = ENTRY[key]
    if byte_at(data, at, end) == SMALL_N:
        return read_null(data, at, end, key)
    if entry == NO_ENTRY:
        return UNUSUAL
    if entry == DECAY_FRACTION:
        fraction, behind = read_fraction(data, at, end)
        fields[entry] = np.float64(fraction).view(np.int64)
        return behind
    if entry >= SELECTION_ID:
        if byte_at(data, at, end) != QUOTE:
            return UNUSUAL
        behind = read_text(data, at + 1, end)
        fields[entry], fields[entry + 1] = at + 1, behind - at - 2
        return behind
    if entry >= N_BLOCKS:
        fields[entry], behind = read_numbers(data, at, end, entry, blocks, sequence, tokens)
        return behind if fields[entry] != NONE else UNUSUAL
    fields[entry], behind = read_number(data, at, end, HIGHEST[key])
    return behind


@compiled(forceinline=True)
def read_member(data, at, end, fields, blocks, sequence, tokens):
    """Read a key and its value; the place behind them or UNUSUAL."""
    if byte_at(data, at, end) != QUOTE:
        return UNUSUAL
    behind = read_text(data, at + 1, end)
    if behind < 0:
        return UNUSUAL
    key = text_number(data, at + 1, behind - 1, KEY_WORDS, EXACT)
    if key == NONE or (TAKEN_BY[key] >> fields[ROUTE]) & (fields[KEYS_LEFT] >> key) & 1 == 0:
        return UNUSUAL
    if ENTRY[key] == TENANT_ID and fields[TENANT_ID] != NONE:
        return UNUSUAL
    fields[KEYS_LEFT] ^= 1 << key
    at = skip_blanks(data, behind, end)
    if byte_at(data, at, end) != COLON:
        return UNUSUAL
    at = skip_blanks(data, at + 1, end)
    return read_value(data, at, end, key, fields, blocks, sequence, tokens)


@compiled(forceinline=True)
def read_object(data, at, end, fields, blocks, sequence, tokens):
    """Place behind the object that begins at `at`, or UNUSUAL."""
    if byte_at(data, at, end) != OPEN:
        return UNUSUAL
    at = skip_blanks(data, at + 1, end)
    if byte_at(data, at, end) == CLOSE:
        return at + 1
    while at >= 0:
        at = read_member(data, at, end, fields, blocks, sequence, tokens)
        if at >= 0:
            at = skip_blanks(data, at, end)
            mark = byte_at(data, at, end)
            if mark == CLOSE:
                return at + 1
            at = skip_blanks(data, at + 1, end) if mark == COMMA else UNUSUAL
    return UNUSUAL


@compiled()
def is_whole(fields):
    """Does a prompt stand in the fields, in one form, and what else the route needs?"""
    if fields[ROUTE] > RESERVE:
        return True
    if fields[ROUTE] == RESERVE and (fields[RESERVATION_ID] == NONE or fields[WORKER_ID] == NONE):
        return False
    if fields[N_TOKENS] != NONE:
        fields_of_hashes = fields[N_BLOCKS] & fields[N_SEQUENCE] & fields[ISL_TOKENS]
        fields[ISL_TOKENS] = fields[N_TOKENS]
        return fields_of_hashes == NONE
    if fields[N_SEQUENCE] == NONE or fields[ISL_TOKENS] < 1:
        return False
    if fields[N_BLOCKS] == NONE:
        return fields[ROUTE] == RESERVE
    return fields[N_BLOCKS] == fields[N_SEQUENCE]


@compiled()
def read_body(data, at, end, fields, blocks, sequence, tokens):
    """Read the body [at, end) of the request whose head has been read: USUAL or UNUSUAL.

    blocks, sequence: uint64; tokens: uint32: out; each SPARE longer than its lists may be
    """
    if at == end:
        return USUAL if fields[ROUTE] > RESERVE else UNUSUAL
    if at < WINDOW:
        return UNUSUAL
    behind = read_object(data, skip_blanks(data, at, end), end, fields, blocks, sequence, tokens)
    if behind < 0 or skip_blanks(data, behind, end) != end:
        return UNUSUAL
    return USUAL if is_whole(fields) else UNUSUAL
