"""Parser of the JSON body of a common request: lists into arrays, numbers and text offsets into
fields.

A common body is an object of known keys, each once with a value of its type: lists of integers,
integers, fractions of a few digits, and texts of plain ASCII without escapes.  Null is accepted
where it means the same as omission, as generated clients often write it.  Requests that the
ordinary path would refuse, or answer with a warning, are not common.

Source: RFC 8259; the fields are those of `bodies`.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.jit.decorators import compiled
from select_service.fastpath.parsing.byte_kernels import (
    CASE_SENSITIVE,
    DOT,
    NONE,
    QUOTE,
    TEN_TO,
    WINDOW,
    ZERO,
    I,
    U,
    byte_at,
    bytes_of,
    digit_mask,
    index_of_text,
    number_in,
    plain_text_mask,
    run_end,
    skip_blanks,
    words_of,
)
from select_service.fastpath.parsing.number_list_kernels import read_hashes, read_tokens
from select_service.fastpath.parsing.request_layout import (
    COMMON,
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
    NOT_COMMON,
    RESERVATION_ID,
    RESERVE,
    ROUTE,
    SELECTION_ID,
    TENANT_ID,
    TEXT_BYTES_MAX,
    WORKER_ID,
)

COLON, COMMA, OPEN_LIST, OPEN, CLOSE, SMALL_N = bytes_of(b":,[{}n")

U32_MAX, U64_MAX = 2**32 - 1, 2**64 - 1
SELECT_ROUTES, BOOKING_ROUTES, RESERVE_ROUTE, OUTPUT_BLOCK_ROUTE = 0b011, 0b110, 0b100, 0b10000
"""Sets of routes, one bit each: routes that choose, routes that book, the route with a rank chosen
by the caller, and the route that counts an output block.
"""
PROMPT_ROUTES = 0b111
NULL_ONLY = NONE
"""Entry of a key that is accepted only with the value null."""

KEYS = (
    (b"block_hashes", N_BLOCKS, 0b111, 0),
    (b"sequence_hashes", N_SEQUENCE, 0b111, 0),
    (b"token_ids", N_TOKENS, 0b111, 0),
    (b"isl_tokens", ISL_TOKENS, 0b111, LENGTH_MAX),
    (b"worker_id", WORKER_ID, RESERVE_ROUTE, U64_MAX - 1),
    (b"dp_rank", DP_RANK, RESERVE_ROUTE, U32_MAX),
    (b"effective_prefill_tokens", EFFECTIVE_PREFILL_TOKENS, RESERVE_ROUTE, LENGTH_MAX),
    (b"expected_output_tokens", EXPECTED_OUTPUT_TOKENS, 0b111, U32_MAX),
    (b"model_name", MODEL_NAME, 0b111, 0),
    (b"tenant_id", TENANT_ID, 0b111, 0),
    (b"routing_group", TENANT_ID, 0b111, 0),
    (b"selection_id", SELECTION_ID, SELECT_ROUTES, 0),
    (b"reservation_id", RESERVATION_ID, BOOKING_ROUTES, 0),
    (b"decay_fraction", DECAY_FRACTION, OUTPUT_BLOCK_ROUTE, 0),
    (b"lora_name", NULL_ONLY, PROMPT_ROUTES, 0),
    (b"cache_salt", NULL_ONLY, PROMPT_ROUTES, 0),
    (b"is_eagle", NULL_ONLY, PROMPT_ROUTES, 0),
    (b"mm_routing_info", NULL_ONLY, PROMPT_ROUTES, 0),
    (b"block_mm_infos", NULL_ONLY, PROMPT_ROUTES, 0),
    (b"router_config_override", NULL_ONLY, PROMPT_ROUTES, 0),
    (b"priority_jump", NULL_ONLY, SELECT_ROUTES, 0),
    (b"strict_priority", NULL_ONLY, SELECT_ROUTES, 0),
    (b"priority_tier", NULL_ONLY, SELECT_ROUTES, 0),
    (b"timeout_ms", NULL_ONLY, SELECT_ROUTES, 0),
    (b"pinned_worker", NULL_ONLY, SELECT_ROUTES, 0),
    (b"allowed_worker_ids", NULL_ONLY, SELECT_ROUTES, 0),
)
"""Key, its entry in the fields, the routes that accept it, the largest number.

U64_MAX itself is excluded: its 64 bits mean NONE.
"""
NEVER_NULL = (b"worker_id", b"dp_rank", b"model_name", b"tenant_id", b"routing_group")
KEY_WORDS = words_of(*(key for key, _, _, _ in KEYS))
ENTRY_OF_KEY = np.array([entry for _, entry, _, _ in KEYS])
MAY_BE_NULL = np.array([key not in NEVER_NULL for key, _, _, _ in KEYS])
NULL = words_of(b"null")
FRACTION_DIGITS_MAX = 15
"""Limit at which both the digits and the power of ten dividing them are exact as float64, so that
the quotient equals the result of every correct parser.
"""
ROUTES_OF_KEY = np.array([routes for _, _, routes, _ in KEYS])
MAX_OF_KEY = np.array([highest for _, _, _, highest in KEYS], np.uint64)


@compiled()
def read_number(data, at, end, highest):
    """Return (an unsigned integer up to `highest`, the offset after it or NOT_COMMON)."""
    behind = run_end(data, at, end, digit_mask)
    if behind in (at, end):
        return U(0), NOT_COMMON
    value, wrong = number_in(data, at, behind)
    return value, (behind if wrong == 0 and value <= highest else NOT_COMMON)


@compiled(error_model="numpy")
def read_fraction(data, at, end):
    """Return (a number from 0 to 1 without exponent, the offset after it or NOT_COMMON)."""
    point = run_end(data, at, end, digit_mask)
    if point != at + 1:
        return 0.0, NOT_COMMON
    value, behind = I(data[U(at)]) - ZERO, point
    if byte_at(data, point, end) == DOT:
        behind = run_end(data, point + 1, end, digit_mask)
        if not 1 <= behind - point - 1 <= FRACTION_DIGITS_MAX:
            return 0.0, NOT_COMMON
        for place in range(point + 1, behind):
            value = 10 * value + I(data[U(place)]) - ZERO
    scale = float(TEN_TO[max(behind - point - 1, 0)])
    fraction = float(value) / scale
    return fraction, (behind if fraction <= 1.0 else NOT_COMMON)


@compiled()
def read_null(data, at, end, key):
    """Return the offset after null where null is accepted, or NOT_COMMON."""
    is_null = at + 4 < end and index_of_text(data, at, at + 4, NULL, CASE_SENSITIVE) == 0
    return at + 4 if is_null and MAY_BE_NULL[key] else NOT_COMMON


@compiled()
def read_text(data, at, end):
    """Return the offset after the closing quote of the text that begins at `at`, or NOT_COMMON."""
    behind = run_end(data, at, end, plain_text_mask)
    usual = byte_at(data, behind, end) == QUOTE and 0 < behind - at <= TEXT_BYTES_MAX
    return behind + 1 if usual else NOT_COMMON


@compiled(forceinline=True)
def read_numbers(data, at, end, entry, lists):
    """Return (number of entries of the list that begins at `at`, the offset after the list)."""
    if byte_at(data, at, end) != OPEN_LIST:
        return NONE, NOT_COMMON
    blocks, sequence, tokens = lists
    if entry == N_TOKENS:
        return read_tokens(data, at + 1, end, tokens)
    return read_hashes(data, at + 1, end, blocks if entry == N_BLOCKS else sequence)


@compiled(forceinline=True)
def read_value(data, at, end, key, fields, lists):
    """Parse the value of a key; returns the offset after it or NOT_COMMON."""
    entry = ENTRY_OF_KEY[key]
    if byte_at(data, at, end) == SMALL_N:
        return read_null(data, at, end, key)
    if entry == NULL_ONLY:
        return NOT_COMMON
    if entry == DECAY_FRACTION:
        fraction, behind = read_fraction(data, at, end)
        fields[entry] = np.float64(fraction).view(np.int64)
        return behind
    if entry >= SELECTION_ID:
        if byte_at(data, at, end) != QUOTE:
            return NOT_COMMON
        behind = read_text(data, at + 1, end)
        fields[entry], fields[entry + 1] = at + 1, behind - at - 2
        return behind
    if entry >= N_BLOCKS:
        fields[entry], behind = read_numbers(data, at, end, entry, lists)
        return behind if fields[entry] != NONE else NOT_COMMON
    fields[entry], behind = read_number(data, at, end, MAX_OF_KEY[key])
    return behind


@compiled(forceinline=True)
def read_member(data, at, end, fields, lists):
    """Parse a key and its value; returns the offset after them or NOT_COMMON."""
    if byte_at(data, at, end) != QUOTE:
        return NOT_COMMON
    behind = read_text(data, at + 1, end)
    if behind < 0:
        return NOT_COMMON
    key = index_of_text(data, at + 1, behind - 1, KEY_WORDS, CASE_SENSITIVE)
    if key == NONE or (ROUTES_OF_KEY[key] >> fields[ROUTE]) & (fields[KEYS_LEFT] >> key) & 1 == 0:
        return NOT_COMMON
    # tenant_id and routing_group share the entry: both together need the check for equality.
    if ENTRY_OF_KEY[key] == TENANT_ID and fields[TENANT_ID] != NONE:
        return NOT_COMMON
    # Each key clears its bit, so that a duplicate is seen as an unknown key.
    fields[KEYS_LEFT] ^= 1 << key
    at = skip_blanks(data, behind, end)
    if byte_at(data, at, end) != COLON:
        return NOT_COMMON
    at = skip_blanks(data, at + 1, end)
    return read_value(data, at, end, key, fields, lists)


@compiled(forceinline=True)
def read_object(data, at, end, fields, lists):
    """Parse the object that begins at `at`; returns the offset after it or NOT_COMMON."""
    if byte_at(data, at, end) != OPEN:
        return NOT_COMMON
    at = skip_blanks(data, at + 1, end)
    if byte_at(data, at, end) == CLOSE:
        return at + 1
    while at >= 0:
        at = read_member(data, at, end, fields, lists)
        if at >= 0:
            at = skip_blanks(data, at, end)
            mark = byte_at(data, at, end)
            if mark == CLOSE:
                return at + 1
            at = skip_blanks(data, at + 1, end) if mark == COMMA else NOT_COMMON
    return NOT_COMMON


@compiled()
def is_complete(fields):
    """Return whether the fields have a prompt in exactly one form, and all else the route needs."""
    if fields[ROUTE] > RESERVE:
        return True
    if fields[ROUTE] == RESERVE and (fields[RESERVATION_ID] == NONE or fields[WORKER_ID] == NONE):
        return False
    if fields[N_TOKENS] != NONE:
        # NONE is -1, all bits set: the conjunction is NONE only if all three are missing.
        fields_of_hashes = fields[N_BLOCKS] & fields[N_SEQUENCE] & fields[ISL_TOKENS]
        fields[ISL_TOKENS] = fields[N_TOKENS]
        return fields_of_hashes == NONE
    if fields[N_SEQUENCE] == NONE or fields[ISL_TOKENS] < 1:
        return False
    if fields[N_BLOCKS] == NONE:
        return fields[ROUTE] == RESERVE
    return fields[N_BLOCKS] == fields[N_SEQUENCE]


@compiled()
def read_body(data, at, end, fields, lists):
    """Parse the body [at, end) of a request with a parsed head: COMMON or NOT_COMMON.

    lists: tuple (blocks, sequence, tokens) of uint64[], uint64[] and uint32[], output; each is
    SPARE longer than its list may be
    """
    if at == end:
        return COMMON if fields[ROUTE] > RESERVE else NOT_COMMON
    if at < WINDOW:
        return NOT_COMMON
    behind = read_object(data, skip_blanks(data, at, end), end, fields, lists)
    if behind < 0 or skip_blanks(data, behind, end) != end:
        return NOT_COMMON
    return COMMON if is_complete(fields) else NOT_COMMON
